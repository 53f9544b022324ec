// SPDX-FileCopyrightText: The wcache authors
// SPDX-License-Identifier: MIT

package weights

import (
	"crypto/md5"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// Case W1: directories that share a checkpoint hash.
func TestSameContent(t *testing.T) {
	golden := func(name string) func(*testing.T) string {
		return func(t *testing.T) string { return copyModel(t, name) }
	}
	changed := func(name, file string, change func(t *testing.T, path string)) func(*testing.T) string {
		return func(t *testing.T) string {
			dir := copyModel(t, name)
			change(t, filepath.Join(dir, file))
			age(t, dir)
			return dir
		}
	}
	for _, c := range []struct {
		name     string
		a, b     func(*testing.T) string
		sameHash bool
		want     bool
	}{
		{"copies", golden("llama"), golden("llama"), true, true},
		{"one byte of the last shard", golden("llama"), changed("llama", "model-00004-of-00004.safetensors", func(t *testing.T, path string) { flip(t, path) }), true, false},
		{"another random seed", golden("mistral"), golden("llama_tied_extra_head"), true, false},
		{"consolidated files with other values", golden("llama"), golden("llama_consolidated"), true, false},
		{"another configuration", golden("llama"), changed("llama", "config.json", func(t *testing.T, path string) {
			replace(t, path, `"rope_theta": 10000.0`, `"rope_theta": 20000.0`)
		}), true, false},
		{"a configuration from elsewhere", golden("llama"), changed("llama", "config.json", func(t *testing.T, path string) {
			replace(t, path, `{`, `{"_name_or_path": "/elsewhere",`)
		}), true, true},
		{"other tensors", golden("llama"), golden("qwen3"), false, false},
		{"the same in other files", func(t *testing.T) string {
			return model(t, map[string][]byte{"model.safetensors": shard(map[string]byte{"a": 1, "b": 2})})
		}, func(t *testing.T) string {
			return model(t, map[string][]byte{"m-1.safetensors": shard(map[string]byte{"b": 2}), "m-2.safetensors": shard(map[string]byte{"a": 1})})
		}, false, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			a, b := open(t, c.a(t)), open(t, c.b(t))
			if got := a.CheckpointHash(md5.New) == b.CheckpointHash(md5.New); got != c.sameHash {
				t.Errorf("equal hashes: %v, want %v", got, c.sameHash)
			}
			for _, pair := range [][2]*Dir{{a, b}, {b, a}} {
				if got, err := SameContent(pair[0], pair[1]); got != c.want || err != nil {
					t.Errorf("got %v and %v, want %v", got, err, c.want)
				}
			}
			if got, err := SameContent(a, a); !got || err != nil {
				t.Errorf("with itself: got %v and %v", got, err)
			}
		})
	}
}

func replace(t *testing.T, path, old, text string) {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	changed := string(b)
	if i := strings.Index(changed, old); i >= 0 {
		changed = changed[:i] + text + changed[i+len(old):]
	} else {
		t.Fatalf("%s holds no %s:\n%s", path, old, b)
	}
	write(t, path, []byte(changed))
}

// Snapshots of two revisions share equal files on disk: those aren't read.
func TestSameInode(t *testing.T) {
	blob := copyModel(t, "llama")
	snapshot := func() *Dir {
		dir := t.TempDir()
		entries, err := os.ReadDir(blob)
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range entries {
			symlink(t, filepath.Join(blob, e.Name()), filepath.Join(dir, e.Name()))
		}
		return open(t, dir)
	}
	a, b := snapshot(), snapshot()
	for _, f := range a.Load {
		remove(t, filepath.Join(blob, f.Base)) // reading it fails
	}
	if got, err := SameContent(a, b); !got || err != nil {
		t.Errorf("got %v and %v", got, err)
	}
}

func TestSameContentOfChangedFiles(t *testing.T) {
	dir := copyModel(t, "qwen3")
	a, b := open(t, copyModel(t, "qwen3")), open(t, dir)
	flip(t, filepath.Join(dir, "model.safetensors"))
	got, err := SameContent(a, b)
	if got {
		t.Error("called equal")
	}
	checkChanged(t, err, dir, `check file "DIR/model.safetensors": was written`)
	if err := os.Chtimes(filepath.Join(dir, "model.safetensors"), time.Time{}, time.Unix(0, b.Load[0].MTime)); err != nil {
		t.Fatal(err)
	}
	got, err = SameContent(a, b)
	if got {
		t.Error("called equal, with its time set back")
	}
	checkChanged(t, err, dir, `check file "DIR/model.safetensors": was written, or its attributes were changed`)
}
