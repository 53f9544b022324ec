// SPDX-FileCopyrightText: The wcache authors
// SPDX-License-Identifier: MIT

package index

import (
	"context"
	"errors"
	"os"
	"strings"
	"testing"
	"testing/fstest"
	"time"

	"github.com/wcache/wcache/internal/hungfs"
	"github.com/wcache/wcache/internal/testmain"
)

// eventually waits until an answer has a text.
func eventually(t *testing.T, x *Index, hash, dir string, want ...string) Answer {
	t.Helper()
	var a Answer
	testmain.Eventually(t, strings.Join(want, "\n"), func() bool {
		a = lookup(t, x, hash)
		return text(a, dir) == strings.Join(want, "\n")+"\n"
	})
	return a
}

// A root whose file system hangs delays no request, and has one walker goroutine,
// however often requests ask for it.
func TestHung(t *testing.T) {
	g := &gate{word: "hang"}
	dir := t.TempDir()
	hash := hashOf(one)
	write(t, dir+"/good/model/model.safetensors", shard("a", "1"))
	write(t, dir+"/hang/model/model.safetensors", shard("a", "1"))
	g.hold()
	x := start(t, Options{system: g, HungAfter: 300 * time.Millisecond}, dir+"/good", dir+"/hang")
	t.Cleanup(g.release) // before the index is closed
	hung := "root DIR/hang hung: its file system does not answer"
	first := eventually(t, x, hash, dir, "dir DIR/good/model", hung)
	if !x.Current(hash, first.Version) {
		t.Error("not current, and nothing has changed")
	}
	if len(first.Roots) != 1 || first.Roots[0].Since.IsZero() || first.Roots[0].Whole {
		t.Errorf("since when it hangs, or that it was never walked, is not told: %+v", first.Roots)
	}

	write(t, dir+"/good/twin/model.safetensors", shard("a", "2"))
	if x.Current(hash, first.Version) {
		t.Error("current after a twin has come")
	}
	eventually(t, x, hash, dir, "dir DIR/good/model", "dir DIR/good/twin", hung)

	for range 5 {
		x.SetRoots([]string{dir + "/good"})
		eventually(t, x, hash, dir, "dir DIR/good/model", "dir DIR/good/twin")
		x.SetRoots([]string{dir + "/good", dir + "/hang"})
		eventually(t, x, hash, dir, "dir DIR/good/model", "dir DIR/good/twin", hung)
	}
	if n := g.held(); n != 1 {
		t.Errorf("%d walkers hang", n)
	}

	before := lookup(t, x, hash)
	g.release()
	a := eventually(t, x, hash, dir, "dir DIR/good/model", "dir DIR/good/twin", "dir DIR/hang/model")
	if a.Version == before.Version || x.Current(hash, before.Version) {
		t.Error("the version is still current after the root has come back")
	}
}

// If a root begins to hang, an existing answer stays current; for other hashes its known
// directories become unsure.
func TestBecomesHung(t *testing.T) {
	g := &gate{word: "hang"}
	dir := t.TempDir()
	hash := hashOf(one)
	write(t, dir+"/good/model/model.safetensors", shard("a", "1"))
	write(t, dir+"/hang/model/model.safetensors", shard("a", "1"))
	// It is polled, like a root on a file server.
	x := start(t, Options{system: foreignGate{g}, HungAfter: 300 * time.Millisecond, PollEvery: time.Millisecond}, dir+"/good", dir+"/hang")
	t.Cleanup(g.release)
	both := []string{"dir DIR/good/model", "dir DIR/hang/model"}
	a := eventually(t, x, hash, dir, both...)
	g.hold()
	testmain.Eventually(t, "the root hangs", func() bool {
		for _, r := range x.Roots() {
			if r.State == Hung {
				return r.Path == dir+"/hang"
			}
		}
		return false
	})
	if !x.Current(hash, a.Version) {
		t.Error("not current because a root hangs")
	}
	b := eventually(t, x, hash, dir, "dir DIR/good/model", "unsure DIR/hang/model: its file system does not answer", "root DIR/hang hung: its file system does not answer")
	if len(b.Roots) != 1 || !b.Roots[0].Whole {
		t.Errorf("the root was known whole before, and that is not told: %+v", b.Roots)
	}
	if x.Current(hash, a.Version) || !x.Current(hash, b.Version) {
		t.Error("a look-up has said that the root hangs, and the version before is current")
	}
	g.release()
	eventually(t, x, hash, dir, both...)
	if x.Current(hash, b.Version) {
		t.Error("the version that has the root hung is current")
	}
}

// foreignGate is a gate to a file server.
type foreignGate struct{ *gate }

func (foreignGate) kind(int) (kind, error) { return foreign, nil }

// A file system that really hangs, during the first walk and during a later one.
func TestHungFileSystem(t *testing.T) {
	dir := t.TempDir()
	write(t, dir+"/good/model/model.safetensors", shard("a", "1"))
	must(t, os.Mkdir(dir+"/mnt", 0o700))
	hung, err := hungfs.Mount(dir+"/mnt", fstest.MapFS{"deep/model/model.safetensors": &fstest.MapFile{Data: shard("a", "1"), Mode: 0o644}})
	var unavailable *hungfs.Unavailable
	if errors.As(err, &unavailable) {
		t.Skip(err, "; TestHung and TestBecomesHung cover it")
	}
	must(t, err)
	t.Cleanup(func() { must(t, hung.Close()) })
	hash := hashOf(one)
	hung.Hang()
	x := start(t, Options{HungAfter: 300 * time.Millisecond, PollEvery: time.Millisecond}, dir+"/good", dir+"/mnt")
	t.Cleanup(hung.Resume)
	const told = "root DIR/mnt hung: its file system does not answer"
	eventually(t, x, hash, dir, "dir DIR/good/model", told)
	hung.Resume()
	a := eventually(t, x, hash, dir, "dir DIR/good/model", "dir DIR/mnt/deep/model")
	hung.Hang()
	testmain.Eventually(t, "the root hangs", func() bool { r := x.Roots(); return len(r) == 2 && r[1].State == Hung })
	if !x.Current(hash, a.Version) {
		t.Error("not current because a root hangs")
	}
	eventually(t, x, hash, dir, "dir DIR/good/model", "unsure DIR/mnt/deep/model: its file system does not answer", told)
	hung.Resume()
	eventually(t, x, hash, dir, "dir DIR/good/model", "dir DIR/mnt/deep/model")
	if r := x.Roots(); r[1].Polled == "" || r[0].Polled != "" {
		t.Errorf("got %+v", r)
	}
}

// While a root is walked for the first time, a look-up waits until its deadline, and then
// says what is not known.
func TestDeadlineOfLookup(t *testing.T) {
	g := &gate{word: "hang"}
	dir := t.TempDir()
	write(t, dir+"/hang/model/model.safetensors", shard("a", "1"))
	g.hold()
	x := start(t, Options{system: g, HungAfter: time.Hour}, dir+"/hang")
	t.Cleanup(g.release)
	testmain.Eventually(t, "the walk begins", func() bool { return g.held() == 1 })
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	hash := hashOf(one)
	a, err := x.Lookup(ctx, hash)
	must(t, err)
	same(t, "searching", text(a, dir), "root DIR/hang searching: ")
	if x.Current(hash, a.Version) {
		t.Error("an answer that did not wait is current")
	}
	g.release()
	same(t, "found", text(lookup(t, x, hash), dir), "dir DIR/hang/model")
}

// Closing waits for no file system.
func TestCloseWhileHung(t *testing.T) {
	g := &gate{word: "hang"}
	dir := t.TempDir()
	must(t, os.Mkdir(dir+"/hang", 0o700))
	g.hold()
	x := start(t, Options{system: g, HungAfter: 100 * time.Millisecond}, dir+"/hang")
	testmain.Eventually(t, "the walk begins", func() bool { return g.held() == 1 })
	x.Close()
	x.Close()
	if _, err := x.Lookup(t.Context(), hashOf(one)); !errors.Is(err, ErrClosed) {
		t.Errorf("got %v", err)
	}
	if x.Current(hashOf(one), 1) {
		t.Error("current after the end")
	}
	x.Add(dir)
	x.SetRoots([]string{dir})
	r := x.ended
	if len(r) != 0 {
		t.Errorf("got %v", r)
	}
	g.release()
	testmain.Eventually(t, "the walk ends", func() bool { return g.held() == 0 })
}
