// SPDX-FileCopyrightText: The wcache authors
// SPDX-License-Identifier: MIT

package weights

import "path/filepath"

// The folders of a Hugging Face cache: models--OWNER--NAME has blobs, named by hash,
// and snapshots/COMMIT with links to them (file_download.py of huggingface_hub). A
// directory that is filled without a cache has the second one below it
// (_local_folder.py).
const (
	blobsName    = "blobs"
	snapshotName = "snapshots"
	localFolder  = ".cache/huggingface/download"
)

// hubFolders are where Hugging Face's library keeps what it has begun to fetch for a
// directory.
func hubFolders(dir string) []string {
	folders := []string{filepath.Join(dir, localFolder)}
	if real, err := filepath.EvalSymlinks(dir); err == nil && filepath.Base(filepath.Dir(real)) == snapshotName {
		folders = append(folders, filepath.Join(real, "..", "..", blobsName))
	}
	return folders
}
