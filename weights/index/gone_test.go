// SPDX-FileCopyrightText: The wcache authors
// SPDX-License-Identifier: MIT

package index

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// A directory that had a hash is reported as gone for as long as an engine may ask that
// read it there: if it was removed, moved, made incomplete or replaced; not if it is
// complete again.
func TestGone(t *testing.T) {
	dir := t.TempDir()
	hash := hashOf(one)
	begin := time.Now()
	for _, name := range []string{"stays", "removed", "moved", "cut", "other", "back"} {
		write(t, dir+"/"+name+"/model.safetensors", shard("a", "1"))
	}
	x := start(t, Options{}, dir)
	first := lookup(t, x, hash)
	if len(first.Dirs) != 6 || first.Gone != nil {
		t.Fatalf("got %s and %v", text(first, dir), first.Gone)
	}
	must(t, os.RemoveAll(dir+"/removed"))
	must(t, os.Rename(dir+"/moved", dir+"/elsewhere"))
	must(t, os.Remove(dir+"/cut/model.safetensors"))
	write(t, dir+"/other/model.safetensors", shard("b", "1"))
	must(t, os.Remove(dir+"/back/model.safetensors"))
	lookup(t, x, hash)
	write(t, dir+"/back/model.safetensors", shard("a", "1"))

	a := lookup(t, x, hash)
	same(t, "those that have it", text(a, dir), "dir DIR/back", "dir DIR/elsewhere", "dir DIR/stays")
	var gone []string
	for _, g := range a.Gone {
		gone = append(gone, strings.TrimPrefix(g.Path, dir+"/"))
		if g.At.Before(begin) || g.At.After(time.Now()) {
			t.Errorf("%s is gone since %v", g.Path, g.At)
		}
	}
	slices.Sort(gone)
	if diff := cmp.Diff([]string{"cut", "moved", "other", "removed"}, gone); diff != "" {
		t.Errorf("gone (-want +got):\n%s", diff)
	}
	if x.Current(hash, first.Version) || !x.Current(hash, a.Version) {
		t.Error("the version before is current, or that of now isn't")
	}
}

// However many directories come and go, the index remembers the latest of each hash, and
// forgets hashes of which none went for a long time.
func TestGoneIsBounded(t *testing.T) {
	x := start(t, Options{}, t.TempDir())
	x.mu.Lock()
	defer x.mu.Unlock()
	for n := range 3 * maxGone {
		x.part(&folder{root: new(root), path: fmt.Sprintf("/m%d", n)}, &model{md5: "a", sha256: "b"}, nil)
	}
	if list := x.gone["a"]; len(list) != maxGone || list[0].Path != fmt.Sprintf("/m%d", 2*maxGone) {
		t.Errorf("%d of a hash, the first %v", len(list), list[0])
	}
	for n := range 2 * maxMemory {
		x.part(&folder{root: new(root), path: "/m"}, &model{md5: fmt.Sprint(n), sha256: "b"}, nil)
		list := x.gone[fmt.Sprint(n)]
		list[0].At = list[0].At.Add(-2 * GoneFor)
	}
	if len(x.gone) > maxMemory+2 {
		t.Errorf("%d hashes", len(x.gone))
	}
}
