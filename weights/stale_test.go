// SPDX-FileCopyrightText: The wcache authors
// SPDX-License-Identifier: MIT

package weights

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/wcache/wcache/stamp"
)

func TestStale(t *testing.T) {
	for _, c := range []struct {
		name   string
		model  string
		change func(t *testing.T, dir string)
		want   string
	}{
		{"nothing", "llama", func(*testing.T, string) {}, ""},
		{"shard grown", "llama", func(t *testing.T, dir string) {
			b, err := os.ReadFile(dir + "/model-00002-of-00004.safetensors")
			if err != nil {
				t.Fatal(err)
			}
			write(t, dir+"/model-00002-of-00004.safetensors", append(b, 0))
		}, `check file "DIR/model-00002-of-00004.safetensors": had 62648 bytes, has 62649`},
		{"shard written in place and its time put back", "llama", func(t *testing.T, dir string) {
			path := dir + "/model-00002-of-00004.safetensors"
			info, err := os.Stat(path)
			if err != nil {
				t.Fatal(err)
			}
			flip(t, path)
			if err := os.Chtimes(path, info.ModTime(), info.ModTime()); err != nil {
				t.Fatal(err)
			}
		}, `check file "DIR/model-00002-of-00004.safetensors": was written, or its attributes were changed`},
		{"attributes of one file, contents of a later one", "llama", func(t *testing.T, dir string) {
			if err := os.Chmod(dir+"/config.json", 0o640); err != nil {
				t.Fatal(err)
			}
			flip(t, dir+"/model-00002-of-00004.safetensors")
		}, `check file "DIR/model-00002-of-00004.safetensors": was written`},
		{"pooling has come", "llama", func(t *testing.T, dir string) { write(t, dir+"/modules.json", []byte("[]")) },
			`check file "DIR/modules.json": is new`},
		{"Mistral's configuration has come", "llama", func(t *testing.T, dir string) { write(t, dir+"/params.json", []byte("{}")) },
			`check file "DIR/params.json": is new`},
		{"ModelOpt's configuration has come", "llama", func(t *testing.T, dir string) { write(t, dir+"/hf_quant_config.json", []byte("{}")) },
			`check file "DIR/hf_quant_config.json": is new`},
		{"a model's own code has come", "llama", func(t *testing.T, dir string) { write(t, dir+"/modeling_x.py", nil) },
			`check file "DIR/modeling_x.py": is new`},
		{"shard written in place", "llama", func(t *testing.T, dir string) { flip(t, dir+"/model-00002-of-00004.safetensors") },
			`check file "DIR/model-00002-of-00004.safetensors": was written`},
		{"shard replaced by one of equal size and time", "llama", func(t *testing.T, dir string) {
			path := dir + "/model-00002-of-00004.safetensors"
			info, err := os.Stat(path)
			if err != nil {
				t.Fatal(err)
			}
			write(t, path+".new", make([]byte, info.Size()))
			if err := os.Chtimes(path+".new", info.ModTime(), info.ModTime()); err != nil {
				t.Fatal(err)
			}
			if err := os.Rename(path+".new", path); err != nil {
				t.Fatal(err)
			}
		}, `check file "DIR/model-00002-of-00004.safetensors": was replaced`},
		{"shard gone", "llama", func(t *testing.T, dir string) { remove(t, dir+"/model-00002-of-00004.safetensors") },
			`check file "DIR/model-00002-of-00004.safetensors": is gone`},
		{"shard linked to nothing", "llama", func(t *testing.T, dir string) {
			remove(t, dir+"/model-00002-of-00004.safetensors")
			symlink(t, "/no/blob", dir+"/model-00002-of-00004.safetensors")
		}, `check file "DIR/model-00002-of-00004.safetensors": is gone`},
		{"index written", "llama", func(t *testing.T, dir string) { flip(t, dir+"/"+ShardIndexName) },
			`check file "DIR/model.safetensors.index.json": was written`},
		{"index gone", "llama", func(t *testing.T, dir string) { remove(t, dir+"/"+ShardIndexName) },
			`check file "DIR/model.safetensors.index.json": is gone`},
		{"configuration written", "llama", func(t *testing.T, dir string) { flip(t, dir+"/config.json") },
			`check file "DIR/config.json": was written`},
		{"directory gone", "llama", func(t *testing.T, dir string) {
			if err := os.RemoveAll(dir); err != nil {
				t.Fatal(err)
			}
		}, `check file "DIR": is gone`},
		{"consolidated has come", "llama", func(t *testing.T, dir string) { write(t, dir+"/consolidated.safetensors", nil) },
			`check file "DIR/consolidated.safetensors": is new`},
		{"extra shard that the index doesn't name", "llama", func(t *testing.T, dir string) { write(t, dir+"/mtp.safetensors", nil) }, ""},
		{"extra shard where there is no index", "qwen3", func(t *testing.T, dir string) { write(t, dir+"/mtp.safetensors", nil) },
			`check file "DIR/mtp.safetensors": is new`},
		{"index has come", "qwen3", func(t *testing.T, dir string) { write(t, dir+"/"+ShardIndexName, nil) },
			`check file "DIR/model.safetensors.index.json": is new`},
		{"shards behind consolidated", "llama_consolidated", func(t *testing.T, dir string) { flip(t, dir+"/model-00002-of-00004.safetensors") },
			`check file "DIR/model-00002-of-00004.safetensors": was written`},
		{"tokenizer", "llama", func(t *testing.T, dir string) { write(t, dir+"/tokenizer.json", nil) }, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			dir := copyModel(t, c.model)
			d := open(t, dir)
			c.change(t, dir)
			checkChanged(t, d.Stale(), dir, c.want)
		})
	}
}

func remove(t *testing.T, path string) {
	t.Helper()
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
}

func checkChanged(t *testing.T, err error, dir, want string) {
	t.Helper()
	if want == "" {
		if err != nil {
			t.Errorf("got %v", err)
		}
		return
	}
	var changed *stamp.Changed
	if !errors.As(err, &changed) || relative(err.Error(), dir) != want {
		t.Errorf("got %v, want a Changed: %s", err, want)
	}
}

// Case W2: a file that is written, opened, and at once written again with equal size.
// If Open didn't wait, both writes could fall into one tick of the clock.
func TestWrittenAgainWithinATick(t *testing.T) {
	dir := copyModel(t, "qwen3")
	path := filepath.Join(dir, "model.safetensors")
	for range 10 {
		flip(t, path)
		d := open(t, dir)
		flip(t, path)
		checkChanged(t, d.Stale(), dir, `check file "DIR/model.safetensors": was written`)
	}
}

// A file that changes between the survey and the reading is reported.
func TestChangedWhileRead(t *testing.T) {
	dir := copyModel(t, "qwen3")
	path := filepath.Join(dir, "model.safetensors")
	have, err := settle(dir)
	if err != nil {
		t.Fatal(err)
	}
	flip(t, path)
	_, err = openFile(dir, "model.safetensors", have["model.safetensors"], 0)
	checkChanged(t, err, dir, `check file "DIR/model.safetensors": was written`)
	remove(t, path)
	_, err = openFile(dir, "model.safetensors", have["model.safetensors"], 0)
	checkChanged(t, err, dir, `check file "DIR/model.safetensors": is gone`)
}
