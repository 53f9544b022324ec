// SPDX-FileCopyrightText: The wcache authors
// SPDX-License-Identifier: MIT

package weights

import (
	"os"
	"path/filepath"
	"testing"
)

func TestRecord(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "m")
	if err := os.CopyFS(dir, os.DirFS("../testdata/checkpoints/llama_consolidated")); err != nil {
		t.Fatal(err)
	}
	d, err := Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	r := d.Record()
	if err := r.Stale(); err != nil {
		t.Errorf("nothing has changed: %v", err)
	}
	if err := os.WriteFile(filepath.Join(dir, "README.md"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := r.Stale(); err != nil {
		t.Errorf("a file that has no part in it has come: %v", err)
	}
	other := filepath.Join(dir, "consolidated.00.safetensors")
	if err := os.WriteFile(other, []byte("new"), 0o600); err != nil {
		t.Fatal(err)
	}
	want := `check file "` + other + `": is new`
	if err := r.Stale(); err == nil || err.Error() != want {
		t.Errorf("got %v, want %s", err, want)
	}
}
