// SPDX-FileCopyrightText: The wcache authors
// SPDX-License-Identifier: MIT

package weights

import (
	"os"
	"path/filepath"
	"regexp"
)

// The folders of a Hugging Face cache: models--OWNER--NAME has blobs, named by hash,
// and snapshots/COMMIT with links to them (file_download.py of huggingface_hub). A
// directory that is filled without a cache has localFolder in it
// (_local_folder.py).
const (
	blobsName    = "blobs"
	snapshotName = "snapshots"
	localFolder  = ".cache/huggingface/download"
)

var sha256Name = regexp.MustCompile(`^[0-9a-f]{64}$`)

// hubDigest is the SHA-256 of a snapshot's file according to the hub, in hex: the name
// of the blob that the file links to. It is "" for a file that isn't such a link, and
// for small files, which git names by SHA-1.
func hubDigest(path string) string {
	to, err := os.Readlink(path)
	if err != nil || filepath.Base(filepath.Dir(to)) != blobsName || !sha256Name.MatchString(filepath.Base(to)) {
		return ""
	}
	return filepath.Base(to)
}

// hubFolders are the folders in which Hugging Face's library keeps unfinished downloads
// of a directory.
func hubFolders(dir string) []string {
	folders := []string{filepath.Join(dir, localFolder)}
	if real, err := filepath.EvalSymlinks(dir); err == nil && filepath.Base(filepath.Dir(real)) == snapshotName {
		folders = append(folders, filepath.Join(real, "..", "..", blobsName))
	}
	return folders
}
