// SPDX-FileCopyrightText: The wcache authors
// SPDX-License-Identifier: MIT

package activation

import (
	"fmt"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/wcache/wcache/internal/fd"
)

// FDStore is the service manager's fd store with a count of its descriptors: a full store
// closes further descriptors without an error. Each descriptor has a name of its own. It is
// safe for concurrent use.
type FDStore struct {
	notifier *Notifier

	mu    sync.Mutex
	names map[string]bool
}

// NewFDStore makes the FDStore of a service manager that already has descriptors of the
// given names.
func NewFDStore(n *Notifier, names ...string) *FDStore {
	s := &FDStore{notifier: n, names: make(map[string]bool)}
	for _, name := range names {
		s.names[name] = true
	}
	return s
}

// spareFiles is how many descriptors a daemon needs at its start in addition to stored ones:
// sockets, locks, and those of Go's runtime.
const spareFiles = 64

// Room reports why the store would not keep n more descriptors, nil if it would. Its limits
// are FileDescriptorStoreMax= and the limit of open files at the start of the next process.
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

// Put stores a duplicate of f; f stays the caller's. It counts the descriptor before it sends
// it: of two concurrent calls for the last place, the service manager would close one
// descriptor without an error.
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

// Remove has the service manager close the descriptor of a name.
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
