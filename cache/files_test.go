// SPDX-FileCopyrightText: The wcache authors
// SPDX-License-Identifier: MIT

package cache

import (
	"errors"
	"slices"
	"sync/atomic"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/wcache/wcache/manifest"
	"github.com/wcache/wcache/stamp"
)

// What is looked at stays while it is, whatever becomes of its entry, and is served no
// more once it is known to be wrong.
func TestHold(t *testing.T) {
	l := newLoads()
	c := New(Options{Load: l.load})
	defer c.Close()
	w := want(key(t, "a"))
	var none *NoEntry
	if h, err := c.Hold(w.ID()); !errors.As(err, &none) {
		t.Errorf("got %v, %v, want a *NoEntry", h, err)
	}
	loaded := make(chan *Hold)
	go func() {
		h, _, _ := c.Get(t.Context(), w)
		loaded <- h
	}()
	<-l.begun
	if h, err := c.Hold(w.ID()); !errors.As(err, &none) {
		t.Errorf("while it is loaded: got %v, %v, want a *NoEntry", h, err)
	}
	l.go_ <- nil
	(<-loaded).Release()

	used := c.Status()[0].Used
	h, err := c.Hold(w.ID())
	if err != nil {
		t.Fatal(err)
	}
	if again := c.Status()[0].Used; !again.Equal(used) {
		t.Errorf("it counts as a use, at %v", again)
	}
	var inUse *InUse
	if err := c.Evict(w.ID(), false); !errors.As(err, &inUse) || err.Error() != "evict entry "+w.Key.ID()[:12]+": it is being handed out or verified" {
		t.Errorf("evict: got %v", err)
	}
	h.Retire("memory differs")
	h.Retire("and once more") // says nothing new
	list := c.Status()
	if len(list) != 1 || list[0].State != Leaving || list[0].Reason != "memory differs" || h.Segment().Pieces[0].Int() < 0 {
		t.Errorf("retired: %+v", list)
	}
	l.go_ <- nil
	next := get(t, c, w.Key)
	h.Retire("a late word") // is about none but the one that was held
	next.Release()
	if list := c.Status(); !slices.ContainsFunc(list, func(s Status) bool { return s.State == Ready }) || len(l.started) != 2 {
		t.Errorf("the next one left, too, after %d loads", len(l.started))
	}
	h.Release()
	c.Settle(t.Context())
	if h.Segment().Pieces[0].Int() >= 0 {
		t.Error("what was retired is still there")
	}
}

// Amend changes the file records of all entries at once, but not copies that readers have.
func TestAmend(t *testing.T) {
	l := newLoads()
	var changes atomic.Int64
	c := New(Options{Load: l.load, Changed: func() { changes.Add(1) }})
	defer c.Close()
	shared := manifest.File{Name: "m.safetensors", Stamp: stamp.Stamp{Size: 5, Inode: 7}, Used: true}
	other := manifest.File{Name: "m.safetensors", Stamp: stamp.Stamp{Size: 5, Inode: 8}, Used: true}
	for _, name := range []string{"a", "b", "c"} {
		l.go_ <- nil
		h := get(t, c, key(t, name))
		if name == "c" {
			h.Renew([]manifest.File{other})
		} else {
			h.Renew([]manifest.File{shared})
		}
		h.Release()
	}
	before := c.Status()
	c.loads.Wait() // each tells of a change when it has ended
	changes.Store(0)
	amend := func(f manifest.File) manifest.File {
		if f.Stamp == shared.Stamp {
			f.SHA256, f.Hub = "0a", "0b"
		}
		return f
	}
	c.Amend(amend)
	c.Amend(amend) // changes nothing more
	if n := changes.Load(); n != 1 {
		t.Errorf("told of %d changes", n)
	}
	known := shared
	known.SHA256, known.Hub = "0a", "0b"
	for i, want := range []manifest.File{known, known, other} {
		if diff := cmp.Diff([]manifest.File{want}, c.Records()[i].Files); diff != "" {
			t.Errorf("entry %d (-want +got):\n%s", i, diff)
		}
		if before[i].Files[0].SHA256 != "" {
			t.Error("a status of before has changed")
		}
	}
	if !known.Damaged() || shared.Damaged() || (manifest.File{Hub: "0b"}).Damaged() || (manifest.File{SHA256: "0b", Hub: "0b"}).Damaged() {
		t.Error("damaged is what is known to differ from its name, and nothing else")
	}
}
