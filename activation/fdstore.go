// SPDX-FileCopyrightText: The wcache authors
// SPDX-License-Identifier: MIT

package activation

import (
	"fmt"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/wcache/wcache/internal/fd"
)

// FDStore is the manager's fd store with a count of what is in it: a manager that is
// full closes what comes and tells nobody. Each descriptor has a name of its own. It is
// safe for concurrent use.
type FDStore struct {
	notifier *Notifier

	mu    sync.Mutex
	names map[string]bool
}

// NewFDStore makes the store of a manager in which there are descriptors of these names.
func NewFDStore(n *Notifier, names ...string) *FDStore {
	s := &FDStore{notifier: n, names: make(map[string]bool)}
	for _, name := range names {
		s.names[name] = true
	}
	return s
}

// spareFiles are the descriptors that a daemon needs at its start beside those
// that are stored: sockets, locks, the runtime's own.
const spareFiles = 64

// Room reports why n more descriptors would not be kept, nil if they would. They count
// against FileDescriptorStoreMax= and against the number of open files with which the
// next process would start.
func (s *FDStore) Room(n int) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.room(n)
}

// room is Room. Precondition: mu is held.
func (s *FDStore) room(n int) error {
	want := len(s.names) + n
	if limit, known := s.notifier.StoreLimit(); known && want > limit {
		//diag loading NUMBER NUMBER
		// The service manager keeps the weights' descriptors up to this limit and would close
		// further ones without a message. Raise `FileDescriptorStoreMax=`, as the message says, or
		// evict entries.
		return fmt.Errorf("keep descriptors: %d are needed and FileDescriptorStoreMax=%d: raise it in a drop-in (systemctl --user edit wcache@.service)", want, limit)
	}
	var files unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &files); err == nil && uint64(want+spareFiles) > files.Max {
		//diag loading NUMBER NUMBER
		// A daemon that starts with so many stored descriptors could not open what it needs. Raise
		// `LimitNOFILE=` in a drop-in of the service, or evict entries.
		return fmt.Errorf("keep descriptors: %d are needed and the limit of open files is %d: raise LimitNOFILE= in a drop-in", want+spareFiles, files.Max)
	}
	return nil
}

// Put leaves a duplicate of f with the manager; f stays the caller's. It takes the place
// before it sends: of two that come at once for the last one, the manager would close one
// and tell nobody.
func (s *FDStore) Put(name string, f *fd.FD) error {
	s.mu.Lock()
	err := s.room(1)
	if err == nil {
		s.names[name] = true
	}
	s.mu.Unlock()
	if err != nil {
		return err
	}
	if err := s.notifier.Store(name, f); err != nil {
		s.leave(name)
		return err
	}
	return nil
}

// Remove has the manager close what it keeps under a name.
func (s *FDStore) Remove(name string) error {
	if err := s.notifier.Remove(name); err != nil {
		return err
	}
	s.leave(name)
	return nil
}

func (s *FDStore) leave(name string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.names, name)
}
