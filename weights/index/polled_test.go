// SPDX-FileCopyrightText: The wcache authors
// SPDX-License-Identifier: MIT

package index

import (
	"fmt"
	"math/rand/v2"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/wcache/wcache/internal/testmain"
)

// polled waits until every polled root has been walked from beginning to end since the
// call.
func polled(t testing.TB, x *Index) {
	t.Helper()
	walks := func() map[string]time.Time {
		m := make(map[string]time.Time)
		for _, r := range x.Roots() {
			if r.Polled != "" {
				m[r.Path] = r.Walked
			}
		}
		return m
	}
	for range 2 { // the first may have begun before
		before := walks()
		testmain.Eventually(t, "a walk of every root", func() bool {
			for path, at := range walks() {
				if !at.After(before[path]) {
					return false
				}
			}
			return true
		})
	}
}

// A root whose changes the kernel doesn't report is walked periodically, and says why.
func TestPolled(t *testing.T) {
	const limit = "DIR: the limit of watches is reached, raise fs.inotify.max_user_watches"
	for name, o := range map[string]Options{
		"DIR: its file system may be changed by other machines or programs": {system: remote{}},
		limit:                                  {addWatch: func(int, string, uint32) (int, error) { return 0, unix.ENOSPC }},
		"DIR: inotify: cannot allocate memory": {addWatch: func(int, string, uint32) (int, error) { return 0, unix.ENOMEM }},
	} {
		dir := t.TempDir()
		hash := hashOf(one)
		o.PollEvery = time.Millisecond
		x := start(t, o, dir)
		same(t, name, text(lookup(t, x, hash), dir))
		write(t, dir+"/a/model.safetensors", shard("a", "1"))
		a := eventually(t, x, hash, dir, "dir DIR/a")
		must(t, os.Rename(dir+"/a", dir+"/b"))
		eventually(t, x, hash, dir, "dir DIR/b")
		if x.Current(hash, a.Version) {
			t.Errorf("%s: the version of before is current", name)
		}
		write(t, dir+"/b/model.safetensors", shard("b", "1"))
		testmain.Eventually(t, "another hash", func() bool { return len(lookup(t, x, hash).Dirs) == 0 })
		got := x.Roots()
		if len(got) != 1 || got[0].State != Complete || strings.ReplaceAll(got[0].Polled, dir, "DIR") != name {
			t.Errorf("%s: got %+v", name, got)
		}
		x.Close()
	}
}

// If watches can't always be made, the unwatched parts are read again, and in the end
// nothing is missed.
func TestRandomPolled(t *testing.T) {
	n := uint64(time.Now().UnixNano())
	t.Logf("seed %d", n)
	w := newWorld(t, n)
	var mu sync.Mutex
	chance := rand.New(rand.NewPCG(n, 2))
	o := Options{PollEvery: time.Millisecond, addWatch: func(queue int, path string, mask uint32) (int, error) {
		mu.Lock()
		fails := chance.IntN(3) == 0
		mu.Unlock()
		if fails {
			return 0, unix.ENOSPC
		}
		return unix.InotifyAddWatch(queue, path, mask)
	}}
	x := start(t, o, w.oracle.roots...)
	w.oracle.ask(w.hashes)
	for _, hash := range w.hashes {
		lookup(t, x, hash)
	}
	for step := range 20 {
		for range 5 {
			w.log = append(w.log, w.act())
		}
		polled(t, x)
		now := w.oracle.ask(w.hashes)
		for _, hash := range w.hashes {
			a := lookup(t, x, hash)
			if bad := w.oracle.compare(a, now[hash]); bad != "" {
				t.Fatalf("seed %d, step %d, hash %s: %s\nwant %v\ngot\n%s\n%s", n, step, hash, bad, now[hash], text(a, w.top), strings.Join(w.log[max(0, len(w.log)-25):], "\n"))
			}
		}
	}
}

// A file server that numbers its folders differently at each look can still be walked.
func TestUnsteadyInodes(t *testing.T) {
	dir := t.TempDir()
	write(t, dir+"/a/b/model.safetensors", shard("a", "1"))
	x := start(t, Options{system: &unsteady{}, PollEvery: time.Millisecond}, dir)
	hash := hashOf(one)
	eventually(t, x, hash, dir, "dir DIR/a/b")
	polled(t, x)
	eventually(t, x, hash, dir, "dir DIR/a/b")
	if r := x.Roots()[0]; r.State != Complete || r.Dirs != 3 || r.Models != 1 {
		t.Errorf("got %+v", r)
	}
}

// A root with too many folders, or one that takes too long, is partial and says so.
func TestLimits(t *testing.T) {
	dir := t.TempDir()
	for i := range 10 {
		write(t, fmt.Sprintf("%s/%d/model.safetensors", dir, i), shard("a", "1"))
	}
	hash := hashOf(one)
	x := start(t, Options{MaxDirs: 8}, dir)
	a := lookup(t, x, hash)
	if len(a.Dirs) != 7 {
		t.Errorf("got %d directories", len(a.Dirs))
	}
	a.Dirs = nil
	same(t, "folders", text(a, dir), "root DIR partial: DIR: the root has over 8 folders, the rest is not looked at; name the model directories instead")
	x.Close()

	y := start(t, Options{WalkTime: 1, PollEvery: time.Hour}, dir)
	a = lookup(t, y, hash)
	a.Dirs = nil
	same(t, "time", text(a, dir), "root DIR partial: DIR: the walk took longer than 1ns")
	y.Close()

	z := start(t, Options{WalkTime: 1, PollEvery: time.Millisecond}, dir)
	testmain.Eventually(t, "the rest of the walk", func() bool { a = lookup(t, z, hash); return len(a.Roots) == 0 })
	if len(a.Dirs) != 10 {
		t.Errorf("got %d directories", len(a.Dirs))
	}
}
