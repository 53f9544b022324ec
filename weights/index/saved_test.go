// SPDX-FileCopyrightText: The wcache authors
// SPDX-License-Identifier: MIT

package index

import (
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/wcache/wcache/internal/testmain"
	"github.com/wcache/wcache/stamp"
	"github.com/wcache/wcache/weights"
)

// settle waits until each later write to the files changes their stamps.
func settle(t *testing.T, paths ...string) {
	t.Helper()
	for _, path := range paths {
		testmain.Eventually(t, path+" is settled", func() bool {
			info, err := stamp.Of(path)
			must(t, err)
			return info.Unsettled(time.Now()) == 0
		})
	}
}

// A saved index saves reading the headers of unchanged files, and nothing else.
func TestSaveAndLoad(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(t.TempDir(), "index.json")
	hash := hashOf(one)
	two := map[string]string{"model-1.safetensors": "a", "model-2.safetensors": "b"}
	write(t, dir+"/root/a/model.safetensors", shard("a", "1"))
	write(t, dir+"/root/b/model-1.safetensors", shard("a", "1"))
	write(t, dir+"/root/b/model-2.safetensors", shard("b", "1"))
	write(t, dir+"/root/b/extra.safetensors", shard("c", "1"))
	write(t, dir+"/root/b/"+weights.ShardIndexName, []byte(`{"weight_map":{"x":"model-1.safetensors","y":"model-2.safetensors"}}`))
	write(t, dir+"/added/model.safetensors", shard("a", "1"))
	settle(t, dir+"/root/a/model.safetensors", dir+"/root/b/extra.safetensors", dir+"/root/b/"+weights.ShardIndexName, dir+"/added/model.safetensors")

	x := New(Options{})
	t.Cleanup(x.Close)
	must(t, x.Load(file)) // there is none yet
	x.SetRoots([]string{dir + "/root"})
	x.Add(dir + "/added")
	same(t, "before", text(lookup(t, x, hash), dir), "dir DIR/added", "dir DIR/root/a")
	must(t, x.Save(file))
	x.Close()

	again := func() (*Index, *counted) {
		count := new(counted)
		y := New(Options{system: count})
		t.Cleanup(y.Close)
		must(t, y.Load(file))
		y.SetRoots([]string{dir + "/root"})
		return y, count
	}
	y, count := again()
	same(t, "loaded", text(lookup(t, y, hash), dir), "dir DIR/added", "dir DIR/root/a")
	same(t, "loaded", text(lookup(t, y, hashOf(two)), dir), "dir DIR/root/b")
	if n := count.count(); n != 0 {
		t.Errorf("files were read %d times, and none has changed", n)
	}
	y.Close()

	must(t, overwrite(dir+"/root/a/model.safetensors", shard("b", "1")))
	must(t, os.RemoveAll(dir+"/added"))
	y, count = again()
	same(t, "changed", text(lookup(t, y, hash), dir))
	same(t, "changed", text(lookup(t, y, hashOf(two)), dir), "dir DIR/root/b")
	changed, err := stamp.Of(dir + "/root/a/model.safetensors")
	must(t, err)
	if diff := cmp.Diff(map[uint64]bool{changed.Inode: true}, count.inodes()); diff != "" {
		t.Errorf("other files than the one that has changed were read (-want +got):\n%s", diff)
	}
	testmain.Eventually(t, "what was added and is gone is forgotten", func() bool { return len(y.Roots()) == 1 })
	must(t, y.Save(file))
	y.Close()
	y, _ = again()
	if r := y.Roots(); len(r) != 1 {
		t.Errorf("got %+v", r)
	}

	if err := y.Save(filepath.Join(file, "below-a-file")); err == nil {
		t.Error("saved below a file")
	}
}

// A damaged file is an error, and the index works without it.
func TestLoadDamaged(t *testing.T) {
	dir := t.TempDir()
	write(t, dir+"/m/model.safetensors", shard("a", "1"))
	file := filepath.Join(t.TempDir(), "index.json")
	hash := hashOf(one)
	for name, text1 := range map[string]string{
		"damaged":            `{"version":3,`,
		"of the past":        `{"version":2,"dirs":{}}`,
		"of the future":      `{"version":9,"dirs":{}}`,
		"relative path":      `{"version":3,"dirs":{"a":{}}}`,
		"dirty path":         `{"version":3,"dirs":{"/a/":{}}}`,
		"dirty addition":     `{"version":3,"added":["a"],"dirs":{}}`,
		"short hash":         `{"version":3,"dirs":{"/a":{"md5":"00","sha256":"00"}}}`,
		"one hash":           `{"version":3,"dirs":{"/a":{"md5":"` + qwen3Hash + `"}}}`,
		"hash of nothing":    `{"version":3,"dirs":{"/a":{"md5":"` + qwen3Hash + `","sha256":"` + qwen3Hash + qwen3Hash + `"}}}`,
		"hash of other file": `{"version":3,"dirs":{"/a":{"md5":"` + qwen3Hash + `","sha256":"` + qwen3Hash + qwen3Hash + `","covered":["a.safetensors"]}}}`,
		"no stamp":           `{"version":3,"dirs":{"/a":{"files":{"a.safetensors":{"stamp":"missing","digest":"` + qwen3Hash + `"}}}}}`,
		"no digest":          `{"version":3,"dirs":{"/a":{"files":{"a.safetensors":{"stamp":"` + someStamp + `"}}}}}`,
		"no weights":         `{"version":3,"dirs":{"/a":{"files":{"a.txt":{"stamp":"` + someStamp + `","digest":"` + qwen3Hash + `"}}}}}`,
		"no names":           `{"version":3,"dirs":{"/a":{"files":{"` + weights.ShardIndexName + `":{"stamp":"` + someStamp + `"}}}}}`,
	} {
		write(t, file, []byte(text1))
		x := New(Options{})
		t.Cleanup(x.Close)
		if err := x.Load(file); err == nil {
			t.Errorf("%s: no error", name)
		}
		x.SetRoots([]string{dir})
		same(t, name, text(lookup(t, x, hash), dir), "dir DIR/m")
		x.Close()
	}
}

const someStamp = "size=5 mtime=2026-11-29T12:31:07Z ctime=2026-11-29T12:31:07.5Z inode=42 device=254:0 mount=83"

func FuzzSaved(f *testing.F) {
	file := `{"stamp":"` + someStamp + `","digest":"` + qwen3Hash + `"}`
	f.Add([]byte(`{"version":3,"added":["/b"],"dirs":{"/a":{"md5":"` + qwen3Hash + `","sha256":"` + qwen3Hash + qwen3Hash + `","covered":["a.safetensors"],"files":{"a.safetensors":` + file + `}}}}`))
	f.Add([]byte(`{"version":3,"dirs":{"/a":{"files":{"a.safetensors":` + file + `,"` + weights.ShardIndexName + `":{"stamp":"` + someStamp + `","names":["a.safetensors"]}}}}}`))
	f.Fuzz(func(t *testing.T, b []byte) {
		models, added, err := decode(b)
		if err != nil {
			return
		}
		maps.DeleteFunc(models, func(_ string, m *model) bool { return len(m.files) == 0 }) // such models are useless, and not written
		text, err := encode(models, added)
		if err != nil {
			t.Fatal(err)
		}
		models2, added2, err := decode(text)
		if err != nil {
			t.Fatalf("%v:\n%s", err, text)
		}
		if diff := cmp.Diff(plain(models), plain(models2)); diff != "" {
			t.Error(diff)
		}
		if diff := cmp.Diff(fmt.Sprint(added), fmt.Sprint(added2)); diff != "" {
			t.Error(diff)
		}
	})
}

// savedWords is the saved part of a file.
type savedWords struct {
	Stamp  string
	Digest digest
	Names  []string
}

// plain turns models into text for a comparison.
func plain(models map[string]*model) map[string]string {
	words := make(map[string]string)
	for dir, m := range models {
		files := make(map[string]savedWords)
		for name, f := range m.files {
			text, _ := f.stamp.MarshalText() // it has no errors
			files[name] = savedWords{string(text), f.digest, f.names}
		}
		b, _ := json.Marshal(files) // plain data
		words[dir] = fmt.Sprint(m.md5, m.sha256, m.covered, string(b))
	}
	return words
}
