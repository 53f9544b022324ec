// SPDX-FileCopyrightText: The wcache authors
// SPDX-License-Identifier: MIT

package weights

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestDirs(t *testing.T) {
	root := t.TempDir()
	for path, bytes := range map[string]int{
		"a/model-1.safetensors": 3, "a/model-2.safetensors": 4, "a/consolidated.safetensors": 7, "a/config.json": 9,
		"owner/b/consolidated.safetensors": 5, "empty/config.json": 1,
	} {
		path = filepath.Join(root, path)
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, make([]byte, bytes), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	got := make(map[string]int64)
	for _, dir := range Dirs([]string{root, root + "/none"}) {
		name, err := filepath.Rel(root, dir)
		if err != nil {
			t.Fatal(err)
		}
		got[name] = FileBytes(dir)
	}
	if diff := cmp.Diff(map[string]int64{"a": 7, "owner/b": 5}, got); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
	if n := FileBytes(root + "/none"); n != 0 {
		t.Errorf("a directory that isn't there has %d bytes", n)
	}
}
