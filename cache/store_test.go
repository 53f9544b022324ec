// SPDX-FileCopyrightText: The wcache authors
// SPDX-License-Identifier: MIT

package cache

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/wcache/wcache/internal/fd"
	"github.com/wcache/wcache/internal/testmain"
	"github.com/wcache/wcache/manifest"
	"github.com/wcache/wcache/tensor"
)

// shelf is a store in memory that keeps duplicates.
type shelf struct {
	mu   sync.Mutex
	has  map[string]*fd.FD
	full error
}

func (s *shelf) Room(int) error { return s.full }

func (s *shelf) Put(name string, f *fd.FD) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.has[name] != nil {
		return fmt.Errorf("%s is there twice", name)
	}
	d, err := f.Dup()
	s.has[name] = d
	return err
}

func (s *shelf) Remove(name string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	f := s.has[name]
	delete(s.has, name)
	if f == nil {
		return fmt.Errorf("%s isn't there", name)
	}
	return f.Close()
}

// What is served is in the store with its record, what isn't any more is not, and the
// end of the process leaves it all there for the next.
func TestStore(t *testing.T) {
	l := newLoads()
	s := &shelf{has: make(map[string]*fd.FD)}
	stale := 0
	c := New(Options{Load: l.load, Store: s, Fresh: changed(&stale)})
	k := key(t, "a")
	check := func(when string) []string {
		t.Helper()
		c.Settle(t.Context())
		s.mu.Lock()
		defer s.mu.Unlock()
		records := c.Records()
		if len(records) != 1 {
			t.Fatalf("%s: %d records", when, len(records))
		}
		r := records[0]
		want := []string{r.Pieces[0].Name, r.Table}
		if diff := cmp.Diff(want, slices.Sorted(maps.Keys(s.has))); diff != "" {
			t.Errorf("%s (-want +got):\n%s", when, diff)
		}
		b, err := s.has[r.Table].ReadSealed(1 << 20)
		if err != nil {
			t.Fatal(err)
		}
		label, table, err := manifest.DecodeLabel(b)
		if err != nil {
			t.Fatal(err)
		}
		r.Engines, r.Used = nil, r.Loaded // came after the load
		if diff := cmp.Diff(r, label, cmpopts.IgnoreFields(manifest.Entry{}, "Fields"), cmpopts.EquateEmpty()); diff != "" {
			t.Errorf("%s: label (-want +got):\n%s", when, diff)
		}
		if _, err := tensor.Decode(table); err != nil {
			t.Error(err)
		}
		return want
	}
	l.go_ <- nil
	h := get(t, c, k)
	h.Attach(Engine{PID: 5})
	h.Release()
	first := check("loaded")
	stale = h.Segment().Pieces[0].Int()
	l.go_ <- nil
	get(t, c, k).Release()
	second := check("loaded again")
	if first[0] == second[0] || first[1] == second[1] {
		t.Errorf("names are used twice: %v and %v", first, second)
	}
	c.Detach(5) // the old entry goes, and leaves the new one's names alone
	check("detached")
	c.Close()
	if diff := cmp.Diff(second, slices.Sorted(maps.Keys(s.has))); diff != "" {
		t.Errorf("closed (-want +got):\n%s", diff)
	}
	s.full = errors.New("no room in the store")
	c = New(Options{Load: l.load, Store: s})
	defer c.Close()
	if _, _, err := c.Get(t.Context(), want(key(t, "b"))); !errors.Is(err, s.full) {
		t.Errorf("got %v, want it said before the load", err)
	}
	for _, n := range second {
		if err := s.Remove(n); err != nil {
			t.Error(err)
		}
	}
}

// What the store doesn't take is served, and tried again until the store has it.
func TestStoreTakesItLater(t *testing.T) {
	l := newLoads()
	s := &lateStore{shelf: shelf{has: make(map[string]*fd.FD)}}
	s.set(errors.New("the manager is away"))
	c := New(Options{Load: l.load, Store: s})
	c.keepAgain = time.Millisecond
	l.go_ <- nil
	get(t, c, key(t, "a")).Release()
	notKept := func() string { list := c.Status(); return list[0].NotKept }
	if got := notKept(); got != "the manager is away" {
		t.Errorf("not kept because of %q", got)
	}
	s.set(nil)
	testmain.Eventually(t, "the store has it", func() bool { return notKept() == "" })
	r := c.Records()[0]
	c.Close()
	for _, name := range []string{r.Table, r.Pieces[0].Name} {
		if err := s.Remove(name); err != nil {
			t.Error(err)
		}
	}
}

// lateStore is a shelf that takes nothing while it has an error.
type lateStore struct {
	shelf
	err error
}

func (s *lateStore) set(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.err = err
}

func (s *lateStore) Put(name string, f *fd.FD) error {
	s.mu.Lock()
	err := s.err
	s.mu.Unlock()
	if err != nil {
		return err
	}
	return s.shelf.Put(name, f)
}

// A service manager that takes nothing for a while holds up a load's answer for a
// moment and no longer. What has left by the time it takes it is taken out again.
func TestStoreTakesNothing(t *testing.T) {
	l := newLoads()
	s := &hangingPut{shelf: shelf{has: make(map[string]*fd.FD)}, hang: make(chan struct{})}
	c := New(Options{Load: l.load, Store: s})
	defer c.Close()
	c.keepWait = time.Millisecond
	l.go_ <- nil
	h := get(t, c, key(t, "a"))
	h.Release()
	list := c.Status()
	if got := list[0].NotKept; got != errNotYet.Error() {
		t.Errorf("not kept because of %q", got)
	}
	if err := c.Evict(h.ID(), false); err != nil {
		t.Fatal(err)
	}
	close(s.hang)
	c.Settle(t.Context())
	if len(s.has) != 0 {
		t.Errorf("left in the store are %v", s.has)
	}
}

type hangingPut struct {
	shelf
	hang chan struct{}
}

func (s *hangingPut) Put(name string, f *fd.FD) error {
	<-s.hang
	return s.shelf.Put(name, f)
}

// A service manager that hangs blocks only requests that need its memory to be freed.
func TestStoreHangs(t *testing.T) {
	l := newLoads()
	hang := make(chan struct{})
	s := &hangingStore{hang: hang}
	c := New(Options{Load: l.load, Store: s})
	defer c.Close()
	l.go_ <- nil
	l.go_ <- nil
	get(t, c, key(t, "a")).Release()
	get(t, c, key(t, "b")).Release()
	if err := c.Evict(want(key(t, "a")).ID(), false); err != nil {
		t.Fatal(err)
	}
	h := get(t, c, key(t, "b")) // while the manager is told of a
	h.Release()
	if !h.Hit() {
		t.Error("loaded again")
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	c.Settle(ctx)
	close(hang)
	c.Settle(t.Context())
	if diff := cmp.Diff(2, s.removed); diff != "" {
		t.Errorf("names that were removed (-want +got):\n%s", diff)
	}
}

type hangingStore struct {
	noStore
	hang    chan struct{}
	removed int
}

func (s *hangingStore) Remove(string) error {
	<-s.hang
	s.removed++
	return nil
}
