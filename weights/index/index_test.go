// SPDX-FileCopyrightText: The wcache authors
// SPDX-License-Identifier: MIT

package index

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/wcache/wcache/internal/testmain"
)

// Case W1: an answer names every directory with the hash.
func TestLookupNamesEveryDirectory(t *testing.T) {
	root, err := filepath.Abs(checkpoints)
	must(t, err)
	x := start(t, Options{}, root)
	for hash, want := range map[string][]string{
		llamaHash:               {"llama", "llama_consolidated"},
		mistralHash:             {"llama_tied_extra_head", "llama_untied_same_head", "mistral", "rope_linear", "v4cfg_default", "v4cfg_llama3", "v4cfg_minimal"},
		qwen3Hash:               {"qwen3"},
		strings.Repeat("0", 32): nil,
	} {
		var lines []string
		for _, name := range want {
			lines = append(lines, "dir DIR/"+name)
		}
		same(t, hash, text(lookup(t, x, hash), root), lines...)
	}
	for _, bad := range []string{"", "llama", "0123", strings.Repeat("0", 40), strings.Repeat("g", 32), strings.ToUpper(llamaHash)} {
		if got, err := x.Lookup(t.Context(), bad); err == nil {
			t.Errorf("%q: got %v", bad, got)
		}
	}
}

var one = map[string]string{"model.safetensors": "a"}

// Every folder below a root counts.
func TestWalk(t *testing.T) {
	root, other := t.TempDir(), t.TempDir()
	source := filepath.Join(other, "source")
	write(t, source+"/model.safetensors", shard("a", "1"))
	for _, sub := range []string{
		"plain", "owner/name", "plain/inside/checkpoint-500", ".hidden/.more", "too/deep/by/far/and/further",
		"models--org--name/snapshots/0123", "models--org--name/blobs/no", "models--org--name/refs/no",
		"datasets--org--name/no", "spaces--org--name/no", "named.safetensors",
	} {
		must(t, os.CopyFS(filepath.Join(root, sub), os.DirFS(source)))
	}
	must(t, os.Symlink(source, root+"/z-linked"))
	must(t, os.Symlink("z-linked", root+"/z-linked-again"))
	must(t, os.Symlink(root, root+"/loop"))
	must(t, os.Symlink("../plain", root+"/owner/a-link"))
	must(t, os.Symlink("nothing", root+"/dangling"))
	must(t, os.Symlink("itself", root+"/itself"))
	hash := hashOf(one)
	all := []string{
		"dir DIR/.hidden/.more", "dir DIR/models--org--name/snapshots/0123", "dir DIR/named.safetensors", "dir DIR/owner/name", "dir DIR/plain",
		"dir DIR/plain/inside/checkpoint-500", "dir DIR/too/deep/by/far/and/further", "dir DIR/z-linked",
	}
	for _, c := range []struct {
		name  string
		roots []string
		want  []string
	}{
		{"none", nil, nil},
		{"a folder", []string{root}, all},
		{"a folder, one below it, and a link", []string{root, root + "/plain/", root + "/loop"}, all},
		{"a model directory", []string{root + "/plain"}, []string{"dir DIR/plain", "dir DIR/plain/inside/checkpoint-500"}},
		{"a Hugging Face model", []string{root + "/models--org--name"}, []string{"dir DIR/models--org--name/snapshots/0123"}},
		{"nothing", []string{root + "/nothing", root + "/plain/model.safetensors"}, nil},
	} {
		x := start(t, Options{}, c.roots...)
		same(t, c.name, text(lookup(t, x, hash), root), c.want...)
		x.Close()
	}
}

// A directory outside of all roots is known from Add until it is gone.
func TestAdd(t *testing.T) {
	dir := t.TempDir()
	hash := hashOf(one)
	write(t, dir+"/root/m/model.safetensors", shard("a", "1"))
	write(t, dir+"/out/model.safetensors", shard("a", "2"))
	write(t, dir+"/out/below/model.safetensors", shard("a", "3"))
	x := start(t, Options{}, dir+"/root")
	same(t, "before", text(lookup(t, x, hash), dir), "dir DIR/root/m")
	x.Add(dir + "/out/")
	x.Add(dir + "/out")
	x.Add(dir + "/root/m")
	same(t, "added", text(lookup(t, x, hash), dir), "dir DIR/out", "dir DIR/root/m")
	must(t, os.WriteFile(dir+"/out/model.safetensors", shard("b", "2"), 0o600))
	same(t, "written", text(lookup(t, x, hash), dir), "dir DIR/root/m")
	must(t, os.WriteFile(dir+"/out/model.safetensors", shard("a", "2"), 0o600))
	x.SetRoots(nil)
	same(t, "without the root", text(lookup(t, x, hash), dir), "dir DIR/out", "dir DIR/root/m")
	must(t, os.Rename(dir+"/out", dir+"/moved"))
	same(t, "gone", text(lookup(t, x, hash), dir), "dir DIR/root/m")
	must(t, os.Rename(dir+"/moved", dir+"/out"))
	same(t, "back", text(lookup(t, x, hash), dir), "dir DIR/root/m")
	x.Add(dir + "/out")
	same(t, "added again", text(lookup(t, x, hash), dir), "dir DIR/out", "dir DIR/root/m")
	x.Add(dir + "/nothing")
	lookup(t, x, hash)
	var names []string
	for _, r := range x.Roots() {
		names = append(names, fmt.Sprint(r.Path, " ", r.Added, " ", r.State))
	}
	same(t, "roots", strings.ReplaceAll(strings.Join(names, "\n")+"\n", dir, "DIR"), "DIR/out true complete", "DIR/root/m true complete")
}

// Models lists the models below roots by file names alone.
func TestModels(t *testing.T) {
	root := t.TempDir()
	for path, bytes := range map[string]int{
		"a/model-1.safetensors": 3, "a/model-2.safetensors": 4, "a/consolidated.safetensors": 7, "a/config.json": 9,
		"owner/b/consolidated.safetensors": 5, "empty/config.json": 1,
	} {
		write(t, filepath.Join(root, path), make([]byte, bytes))
	}
	must(t, os.Symlink(root+"/a", root+"/link"))
	want := []Model{{root + "/a", 7}, {root + "/owner/b", 5}}
	for _, once := range []bool{true, false} {
		x := start(t, Options{Once: once}, root, root+"/none")
		if diff := cmp.Diff(want, x.Models(t.Context())); diff != "" {
			t.Errorf("once %v (-want +got):\n%s", once, diff)
		}
		x.Close()
	}
}

// Roots describes the roots as people see them.
func TestRoots(t *testing.T) {
	dir := t.TempDir()
	write(t, dir+"/root/a/model.safetensors", shard("a", "1"))
	write(t, dir+"/root/b/c/model.safetensors", nil)
	x := start(t, Options{}, dir+"/root", dir+"/none")
	lookup(t, x, hashOf(one))
	got := x.Roots()
	for i := range got {
		got[i].Path = strings.ReplaceAll(got[i].Path, dir, "DIR")
		if got[i].Walked.IsZero() || got[i].Took <= 0 {
			t.Errorf("%s: walked at %v, took %v", got[i].Path, got[i].Walked, got[i].Took)
		}
		got[i].Walked, got[i].Took = time.Time{}, 0
	}
	want := []Root{
		{Path: "DIR/none", State: Missing, Reason: "no such file or directory"},
		{Path: "DIR/root", State: Complete, Dirs: 4, Models: 2},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}

// Watches and descriptors that aren't needed any more are given back.
func TestNothingIsKept(t *testing.T) {
	dir, out := t.TempDir(), t.TempDir()
	x := start(t, Options{}, dir)
	hash := hashOf(one)
	lookup(t, x, hash)
	before := watching(x)
	for i := range 20 {
		write(t, fmt.Sprintf("%s/%d/m/model.safetensors", dir, i), shard("a", "1"))
		write(t, fmt.Sprintf("%s/%d/m/config.json", dir, i), nil)
		write(t, fmt.Sprintf("%s/%d/model.safetensors", out, i), shard("a", "1"))
		must(t, os.Symlink(fmt.Sprintf("%s/%d", out, i), fmt.Sprintf("%s/%d/link", dir, i)))
		must(t, os.MkdirAll(fmt.Sprintf("%s/%d/n", dir, i), 0o700))
		must(t, os.Symlink(fmt.Sprintf("%s/%d/model.safetensors", out, i), fmt.Sprintf("%s/%d/n/model.safetensors", dir, i)))
	}
	if a := lookup(t, x, hash); len(a.Dirs) != 60 {
		t.Errorf("got %d directories", len(a.Dirs))
	}
	if got := watching(x); got == before {
		t.Error("nothing more is watched")
	}
	for i := range 20 {
		must(t, os.RemoveAll(fmt.Sprintf("%s/%d", dir, i)))
	}
	same(t, "gone", text(lookup(t, x, hash), dir))
	testmain.Eventually(t, "watches are given back", func() bool { lookup(t, x, hash); return watching(x) == before })
}

// watching describes what an index watches, and what the kernel watches for it.
func watching(x *Index) string {
	x.mu.Lock()
	defer x.mu.Unlock()
	b, err := os.ReadFile(fmt.Sprintf("/proc/self/fdinfo/%d", x.notes.queue.Int()))
	if err != nil {
		return err.Error()
	}
	return fmt.Sprint(len(x.watches), " ", strings.Count(string(b), "inotify wd:"), " ", len(x.doubtful), " ", len(x.byHash))
}
