// SPDX-FileCopyrightText: The wcache authors
// SPDX-License-Identifier: MIT

package daemon

import (
	"log/slog"

	"github.com/wcache/wcache/cache"
	"github.com/wcache/wcache/internal/fd"
)

// store keeps descriptors for the next process, if there is a store. Safe for concurrent
// use.
type store struct {
	log  *slog.Logger
	kept cache.Store // nil: descriptors aren't kept
}

// put keeps a descriptor, which stays the caller's.
func (s *store) put(name string, f *fd.FD) error {
	if s.kept == nil {
		return nil
	}
	if err := s.kept.Room(1); err != nil {
		return err
	}
	return s.kept.Put(name, f)
}

// drop closes a descriptor that Recover has no use for, and removes it from the store.
func (s *store) drop(name string, f *fd.FD, reason string) {
	//diag restart
	// The service manager gave back a descriptor that belongs to no entry, and the daemon has
	// closed it. Nothing has to be done.
	s.log.Warn("descriptor is dropped", "name", name, "reason", reason)
	s.forget(name)
	_ = f.Close() // nothing was written to it
}

// forget removes a name from the store.
func (s *store) forget(name string) {
	if s.kept == nil {
		return
	}
	if err := s.kept.Remove(name); err != nil {
		//diag restart
		// The service manager could not be told to close a descriptor, for the logged reason, and
		// its memory may stay in use. Stop and start the service to free it, which drops all
		// weights.
		s.log.Warn("descriptor stays in the store", "name", name, "err", err)
	}
}
