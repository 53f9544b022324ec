// SPDX-FileCopyrightText: The wcache authors
// SPDX-License-Identifier: MIT

package daemon

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/renameio/v2"

	"github.com/wcache/wcache/internal/testmain"
	"github.com/wcache/wcache/manifest"
)

// What a process has left that was killed in mid-write is removed, and nothing else: C10.
func TestClearLeft(t *testing.T) {
	dir := private(t)
	path := filepath.Join(dir, "manifest.toml")
	for range 3 {
		f, err := renameio.NewPendingFile(path, renameio.WithTempDir(dir))
		do(t, err, f.Close())
	}
	for _, name := range []string{"manifest.toml", ".manifest.toml", ".manifest.toml.bak", ".manifest.toml12x", "manifest.toml12", ".index.json12", ".manifestatoml12"} {
		do(t, os.WriteFile(filepath.Join(dir, name), nil, 0o600))
	}
	do(t, os.Mkdir(filepath.Join(dir, ".manifest.toml7"), 0o700), os.Symlink("none", filepath.Join(dir, ".manifest.toml8")))
	n, err := clearLeft(path)
	if n != 3 || err != nil {
		t.Errorf("got %d, %v", n, err)
	}
	want := ".index.json12 -rw-------\n.manifest.toml -rw-------\n.manifest.toml.bak -rw-------\n.manifest.toml12x -rw-------\n.manifest.toml7 drwx------\n" +
		".manifest.toml8 Lrwxrwxrwx\n.manifestatoml12 -rw-------\nmanifest.toml -rw-------\nmanifest.toml12 -rw-------\n"
	if diff := cmp.Diff(want, testmain.Tree(t, dir)); diff != "" {
		t.Errorf("files -want +got:\n%s", diff)
	}
	if n, err := clearLeft(filepath.Join(dir, "none", "manifest.toml")); n != 0 || err != nil {
		t.Errorf("without a folder: %d, %v", n, err)
	}
}

// Both files are written beside themselves, where what is left is looked for, and not in
// the folder for temporary files.
func TestWrittenBeside(t *testing.T) {
	temporary, dir := t.TempDir(), private(t)
	t.Setenv("TMPDIR", temporary)
	before, err := os.Stat(temporary)
	do(t, err)
	do(t, (&manifest.Manifest{}).Save(filepath.Join(dir, "manifest.toml")), newIndex(t).Save(filepath.Join(dir, "index.json")))
	after, err := os.Stat(temporary)
	do(t, err)
	if !before.ModTime().Equal(after.ModTime()) {
		t.Error("something was written to TMPDIR")
	}
}
