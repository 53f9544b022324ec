// SPDX-FileCopyrightText: The wcache authors
// SPDX-License-Identifier: MIT

package daemon

import (
	"errors"
	"net"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/wcache/wcache/internal/fd"
	"github.com/wcache/wcache/internal/testmain"
)

// fdStore keeps duplicates by name as the service manager does: it hands them to
// each process anew, keeps them meanwhile, and has nothing against a name that
// comes twice.
type fdStore struct {
	mu   sync.Mutex
	held []Kept
	full error // why there is no room
}

func newFDStore(t *testing.T) *fdStore {
	s := new(fdStore)
	t.Cleanup(func() {
		for _, k := range s.held {
			_ = k.FD.Close()
		}
	})
	return s
}

func (s *fdStore) Room(int) error { return s.full }

func (s *fdStore) Put(name string, f *fd.FD) error {
	dup, err := f.Dup()
	if err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.held = append(s.held, Kept{name, dup})
	return nil
}

func (s *fdStore) Remove(name string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.held = slices.DeleteFunc(s.held, func(k Kept) bool {
		if k.Name != name {
			return false
		}
		_ = k.FD.Close()
		return true
	})
	return nil
}

// pass gives what a new process is started with.
func (s *fdStore) pass(t *testing.T) []Kept {
	t.Helper()
	s.mu.Lock()
	defer s.mu.Unlock()
	var list []Kept
	for _, k := range s.held {
		dup, err := k.FD.Dup()
		if err != nil {
			t.Fatal(err)
		}
		list = append(list, Kept{k.Name, dup})
	}
	return list
}

// names are those in the store, sorted, without what is of no interest in them.
func (s *fdStore) names() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	var list []string
	for _, k := range s.held {
		if k.Name != attachedName { // there is always one
			list = append(list, k.Name[:2])
		}
	}
	slices.Sort(list)
	return strings.Join(list, " ")
}

// slowStore is one that keeps no watch until it is let.
type slowStore struct {
	*fdStore
	let chan struct{}
}

func (s *slowStore) Put(name string, f *fd.FD) error {
	if strings.HasPrefix(name, watchPrefix) {
		<-s.let
	}
	return s.fdStore.Put(name, f)
}

// A watch is in the store before it is answered, so that no crash ends one that was. A
// manager that takes its time keeps the answer waiting only for a while.
func TestWatchKept(t *testing.T) {
	t.Parallel()
	store := newFDStore(t)
	i := startStored(t, store)
	c := send(t, i.target, frame(recorded(t, "0.33.0-watch")))
	wantAnswer(t, receive(t, c), "ok")
	if got := store.names(); got != "w-" {
		t.Errorf("stored are %q when the watch is answered", got)
	}
	slow := &slowStore{newFDStore(t), make(chan struct{})}
	i = start(t, func(s *setup) { s.Store = slow })
	c = send(t, i.target, frame(recorded(t, "0.33.0-watch")))
	wantAnswer(t, receive(t, c), "ok")
	if got := slow.names(); got != "" {
		t.Errorf("stored are %q", got)
	}
	close(slow.let)
	testmain.Eventually(t, "the watch in the store", func() bool { return slow.names() == "w-" })
	do(t, c.Close())
	testmain.Eventually(t, "the end of the watch", func() bool { return slow.names() == "" })
}

// smallStore is one that is full with so many.
type smallStore struct {
	*fdStore
	limit int
}

func (s *smallStore) Room(n int) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.held)+n > s.limit {
		return errors.New("it is full")
	}
	return nil
}

// However many watch, also at once, half of what is free in the store is left to
// entries.
func TestWatchesLeaveRoom(t *testing.T) {
	t.Parallel()
	store := &smallStore{newFDStore(t), 9} // one of them has the engines
	i := start(t, func(s *setup) { s.Store = store })
	var watching []*net.UnixConn
	for range 12 {
		watching = append(watching, send(t, i.target, frame(recorded(t, "0.33.0-watch"))))
	}
	for _, c := range watching {
		wantAnswer(t, receive(t, c), "ok")
	}
	if got := store.names(); len(got) > len("w- w- w- w-") {
		t.Errorf("stored are %q", got)
	}
	wantAnswer(t, engineAsk(t, i.target, getState(t, key(t, "llama-tp1r0"))), "ok")
	if got := store.names(); !strings.HasPrefix(got, "s- t-") {
		t.Errorf("stored are %q", got)
	}
	for _, c := range watching {
		do(t, c.Close())
	}
	testmain.Eventually(t, "no watch in the store", func() bool { return store.names() == "s- t-" })
	wantAnswer(t, receive(t, send(t, i.target, frame(recorded(t, "0.33.0-watch")))), "ok")
	if got := store.names(); got != "s- t- w-" {
		t.Errorf("stored are %q", got)
	}
}
