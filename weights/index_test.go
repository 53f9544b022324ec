// SPDX-FileCopyrightText: The wcache authors
// SPDX-License-Identifier: MIT

package weights

import (
	"crypto/md5"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// The hashes of golden checkpoints, from their layouts.
const (
	llamaHash   = "d0b480a03b1c2a44061558d5eab5335f" // llama and llama_consolidated
	qwen3Hash   = "bc21eefee30a52e78781b27a0b65763f"
	mistralHash = "3eb77e322e2c93942ae9289fd0323cc0"
)

func lookup(t testing.TB, x *Index, hash string) []string {
	t.Helper()
	dirs, err := x.Lookup(hash)
	if err != nil {
		t.Fatal(err)
	}
	return dirs
}

// Case W1: every directory of a hash is named.
func TestLookupNamesEveryDirectory(t *testing.T) {
	root, err := filepath.Abs(checkpoints)
	if err != nil {
		t.Fatal(err)
	}
	x := NewIndex([]string{root})
	under := func(names ...string) []string {
		for i, name := range names {
			names[i] = filepath.Join(root, name)
		}
		return names
	}
	for hash, want := range map[string][]string{
		llamaHash:               under("llama", "llama_consolidated"),
		mistralHash:             under("llama_tied_extra_head", "llama_untied_same_head", "mistral", "rope_linear", "v4cfg_default", "v4cfg_llama3", "v4cfg_minimal"),
		qwen3Hash:               under("qwen3"),
		strings.Repeat("0", 32): nil,
		open(t, filepath.Join(root, "qwen3")).CheckpointHash(sha256.New): under("qwen3"),
	} {
		if diff := cmp.Diff(want, lookup(t, x, hash)); diff != "" {
			t.Errorf("%s: %s", hash, diff)
		}
	}
	for _, bad := range []string{"", "llama", "0123", strings.Repeat("0", 40), strings.Repeat("g", 32)} {
		if got, err := x.Lookup(bad); err == nil {
			t.Errorf("%q: got %v", bad, got)
		}
	}
	if problems := x.Problems(); len(problems) > 0 {
		t.Errorf("got %v", problems)
	}
}

// tree makes a root with the same model in many kinds of places.
func tree(t *testing.T) (root string, want []string) {
	t.Helper()
	source := copyModel(t, "qwen3")
	root = t.TempDir()
	for _, sub := range []string{
		"plain",
		"owner/name",
		"models--org--name/snapshots/" + oldCommit,
		"models--org--name/snapshots/" + newCommit,
	} {
		dir := filepath.Join(root, sub)
		if err := os.CopyFS(dir, os.DirFS(source)); err != nil {
			t.Fatal(err)
		}
		want = append(want, dir)
	}
	symlink(t, source, filepath.Join(root, "z-linked"))
	want = append(want, filepath.Join(root, "z-linked"))
	for _, sub := range []string{".hidden", "datasets--org--name/snapshots/" + oldCommit, "too/deep/by/one", "plain/inside"} {
		if err := os.CopyFS(filepath.Join(root, sub), os.DirFS(source)); err != nil {
			t.Fatal(err)
		}
	}
	write(t, filepath.Join(root, "models--org--name/blobs/1234"), nil)
	symlink(t, root, filepath.Join(root, "loop"))
	age(t, root)
	return root, want
}

func TestRoots(t *testing.T) {
	root, want := tree(t)
	slices.Sort(want)
	for _, c := range []struct {
		name  string
		roots []string
		want  []string
	}{
		{"none", nil, nil},
		{"a folder", []string{root}, want},
		{"a folder, one below it, and a link", []string{root, root + "/plain/", root + "/loop"}, want},
		{"a model directory", want[:1], want[:1]},
		{"a Hugging Face model", []string{root + "/models--org--name"}, want[:2]},
	} {
		if diff := cmp.Diff(c.want, lookup(t, NewIndex(c.roots), qwen3Hash)); diff != "" {
			t.Errorf("%s: %s", c.name, diff)
		}
	}
}

// Headers are read again where something has changed, and nowhere else.
func TestLookupSeesChanges(t *testing.T) {
	root := t.TempDir()
	dir := filepath.Join(root, "model")
	if err := os.CopyFS(dir, os.DirFS(copyModel(t, "qwen3"))); err != nil {
		t.Fatal(err)
	}
	age(t, dir)
	x := NewIndex([]string{root})
	if got := lookup(t, x, qwen3Hash); !cmp.Equal(got, []string{dir}) {
		t.Fatalf("got %v", got)
	}
	before := x.known[dir]
	if lookup(t, x, qwen3Hash); x.known[dir] != before {
		t.Error("read again without a reason")
	}

	flip(t, filepath.Join(dir, "model.safetensors")) // data alone
	if got := lookup(t, x, qwen3Hash); !cmp.Equal(got, []string{dir}) || x.known[dir] == before {
		t.Errorf("data written: got %v, read again: %v", got, x.known[dir] != before)
	}
	write(t, filepath.Join(dir, "extra.safetensors"), shard(nil))
	if got := lookup(t, x, qwen3Hash); got != nil {
		t.Errorf("file added: got %v", got)
	}
	if got := lookup(t, x, open(t, dir).CheckpointHash(md5.New)); !cmp.Equal(got, []string{dir}) {
		t.Errorf("new hash: got %v", got)
	}
	remove(t, filepath.Join(dir, "extra.safetensors"))
	if got := lookup(t, x, qwen3Hash); !cmp.Equal(got, []string{dir}) {
		t.Errorf("file removed: got %v", got)
	}
	if err := os.RemoveAll(dir); err != nil {
		t.Fatal(err)
	}
	if got := lookup(t, x, qwen3Hash); got != nil || len(x.known) != 0 {
		t.Errorf("directory removed: got %v, known %v", got, x.known)
	}
}

func TestAdd(t *testing.T) {
	dir := copyModel(t, "qwen3")
	x := NewIndex(nil)
	x.Add(dir + "/")
	if got := lookup(t, x, qwen3Hash); !cmp.Equal(got, []string{dir}) {
		t.Errorf("got %v", got)
	}
	x.SetRoots([]string{filepath.Dir(dir)})
	if got := lookup(t, x, qwen3Hash); !cmp.Equal(got, []string{dir}) {
		t.Errorf("with a root: got %v", got)
	}
	x.SetRoots(nil)
	flip(t, filepath.Join(dir, "model.safetensors"))
	if got := lookup(t, x, qwen3Hash); !cmp.Equal(got, []string{dir}) {
		t.Errorf("without it, and written: got %v", got)
	}
}

func TestProblems(t *testing.T) {
	root := t.TempDir()
	write(t, root+"/short/model.safetensors", []byte("short"))
	write(t, root+"/shards/model-1.safetensors", shard(nil))
	write(t, root+"/shards/"+ShardIndexName, []byte(`{"weight_map":{"a":"model-2.safetensors"}}`))
	age(t, root)
	x := NewIndex([]string{root, root + "/none"})
	check := func(x *Index) {
		t.Helper()
		lookup(t, x, qwen3Hash)
		var got []string
		for _, err := range x.Problems() {
			got = append(got, relative(err.Error(), root))
		}
		want := []string{
			`search root "DIR/none": stat DIR/none: no such file or directory`,
			`read weights "DIR/shards/model.safetensors.index.json": names 1 files that are missing: ["model-2.safetensors"]; fetch the model again`,
			`read weights "DIR/short/model.safetensors": read safetensors header: a file of 5 bytes has no room for the header's length; the file is damaged or not complete, fetch it again`,
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Error(diff)
		}
	}
	check(x)
	check(x) // from memory
	path := filepath.Join(t.TempDir(), "index.json")
	if err := x.Save(path); err != nil {
		t.Fatal(err)
	}
	y := NewIndex([]string{root, root + "/none"})
	if err := y.Load(path); err != nil {
		t.Fatal(err)
	}
	check(y) // from the file
}

func TestSaveAndLoad(t *testing.T) {
	dir := copyModel(t, "qwen3")
	path := filepath.Join(t.TempDir(), "index.json")
	x := NewIndex(nil)
	if err := x.Load(path); err != nil {
		t.Errorf("no file yet: %v", err)
	}
	x.Add(dir)
	lookup(t, x, qwen3Hash)
	if err := x.Save(path); err != nil {
		t.Fatal(err)
	}
	y := NewIndex(nil)
	if err := y.Load(path); err != nil {
		t.Fatal(err)
	}
	loaded := y.known[dir]
	if got := lookup(t, y, qwen3Hash); !cmp.Equal(got, []string{dir}) || y.known[dir] != loaded {
		t.Errorf("got %v, read again: %v", got, y.known[dir] != loaded)
	}

	for name, text := range map[string]string{
		"damaged":       `{"version":2,`,
		"of the future": `{"version":9,"dirs":{}}`,
		"relative path": `{"version":2,"dirs":{"a":{}}}`,
		"dirty path":    `{"version":2,"dirs":{"/a/":{}}}`,
		"no record":     `{"version":2,"dirs":{"/a":null}}`,
		"short hash":    `{"version":2,"dirs":{"/a":{"md5":"00","sha256":"00"}}}`,
		"one hash":      `{"version":2,"dirs":{"/a":{"md5":"` + qwen3Hash + `"}}}`,
		"no hash":       `{"version":2,"dirs":{"/a":{"files":{}}}}`,
	} {
		write(t, path, []byte(text))
		z := NewIndex(nil)
		z.Add(dir)
		if err := z.Load(path); err == nil {
			t.Errorf("%s: no error", name)
		}
		if got := lookup(t, z, qwen3Hash); !cmp.Equal(got, []string{dir}) {
			t.Errorf("%s: got %v after it", name, got)
		}
	}
	if err := x.Save(filepath.Join(path, "below-a-file")); err == nil {
		t.Error("saved below a file")
	}
}

func TestIndexIsSafeForConcurrentUse(t *testing.T) {
	x := NewIndex([]string{checkpoints})
	path := filepath.Join(t.TempDir(), "index.json")
	var group sync.WaitGroup
	for i := range 8 {
		group.Go(func() {
			x.Add(fmt.Sprintf("/nonexistent/%d", i))
			if got, err := x.Lookup(qwen3Hash); len(got) != 1 || err != nil {
				t.Errorf("got %v and %v", got, err)
			}
			if err := x.Save(path); err != nil {
				t.Error(err)
			}
			x.Problems()
		})
	}
	group.Wait()
}

func FuzzIndexFile(f *testing.F) {
	x := NewIndex([]string{checkpoints})
	lookup(f, x, qwen3Hash)
	b, err := json.Marshal(saved{Version: savedVersion, Dirs: x.known})
	if err != nil {
		f.Fatal(err)
	}
	f.Add(b)
	f.Add([]byte(`{"version":2,"dirs":{"/a":{"files":{"b":{"size":1,"mtime":2,"inode":3}},"problem":"x","added":true}}}`))
	f.Fuzz(func(t *testing.T, b []byte) {
		known, err := decodeIndex(b)
		if (known == nil) != (err != nil) {
			t.Fatalf("got %v and %v", known, err)
		}
		if err != nil {
			return
		}
		text, err := json.Marshal(saved{Version: savedVersion, Dirs: known})
		if err != nil {
			t.Fatal(err)
		}
		again, err := decodeIndex(text)
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(known, again, cmp.AllowUnexported(record{})); diff != "" {
			t.Error(diff)
		}
	})
}

// Many directories with four shards each, as a warm daemon has them.
func BenchmarkLookup(b *testing.B) {
	root := b.TempDir()
	for i := range 200 {
		if err := os.CopyFS(filepath.Join(root, fmt.Sprintf("model-%03d", i)), os.DirFS(filepath.Join(checkpoints, "llama"))); err != nil {
			b.Fatal(err)
		}
	}
	age(b, root)
	x := NewIndex([]string{root})
	if got := lookup(b, x, llamaHash); len(got) != 200 {
		b.Fatalf("got %d directories", len(got))
	}
	for b.Loop() {
		lookup(b, x, llamaHash)
	}
}

func BenchmarkStale(b *testing.B) {
	d := open(b, filepath.Join(checkpoints, "llama"))
	for b.Loop() {
		if err := d.Stale(); err != nil {
			b.Fatal(err)
		}
	}
}
