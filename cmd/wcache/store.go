// SPDX-FileCopyrightText: The wcache authors
// SPDX-License-Identifier: MIT

package main

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/wcache/wcache/activation"
	"github.com/wcache/wcache/cache"
	"github.com/wcache/wcache/client"
	"github.com/wcache/wcache/control"
	"github.com/wcache/wcache/daemon"
	"github.com/wcache/wcache/internal/fd"
)

// store is the service manager's fd store, with a count of what is in it: a
// manager that is full closes what comes and tells nobody.
type store struct {
	notifier *activation.Notifier

	mu    sync.Mutex
	names map[string]bool
}

// newStore is nil without a service manager.
func newStore(n *activation.Notifier, kept []daemon.Kept) cache.Store {
	if n == nil {
		return nil
	}
	s := &store{notifier: n, names: make(map[string]bool)}
	for _, k := range kept {
		s.names[k.Name] = true
	}
	return s
}

// spareFiles are the descriptors that a daemon needs at its start beside those
// that are stored: sockets, locks, the runtime's own.
const spareFiles = 64

// Room counts against FileDescriptorStoreMax= and against the number of open
// files with which the next process would start.
func (s *store) Room(n int) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.room(n)
}

// room is Room. Precondition: mu is held.
func (s *store) room(n int) error {
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

// Put takes the place before it sends: of two that come at once for the last one, the
// manager would close one and tell nobody.
func (s *store) Put(name string, f *fd.FD) error {
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

func (s *store) Remove(name string) error {
	if err := s.notifier.Remove(name); err != nil {
		return err
	}
	s.leave(name)
	return nil
}

func (s *store) leave(name string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.names, name)
}

// watchdog tells the manager that the daemon lives as long as it answers a
// request on its own control socket. stop ends that.
func watchdog(ctx context.Context, n *activation.Notifier, socket string, log *slog.Logger) (stop func()) {
	interval := n.WatchdogInterval()
	if interval <= 0 {
		return func() {}
	}
	ctx, cancel := context.WithCancel(ctx)
	done := make(chan struct{})
	go func() {
		defer close(done)
		tick := time.NewTicker(interval / 3)
		defer tick.Stop()
		for {
			select {
			case <-ctx.Done():
				return
			case <-tick.C:
			}
			ask, end := context.WithTimeout(ctx, interval/3)
			_, err := client.Do(ask, socket, control.Request{Method: control.MethodPing}, nil)
			end()
			if err == nil {
				err = n.Watchdog()
			}
			if err != nil && ctx.Err() == nil {
				//diag serving
				// The daemon's own test connection failed, for the logged reason. If that lasts,
				// the service manager restarts the daemon, which keeps the weights.
				log.Error("watchdog is not told", "err", err)
			}
		}
	}()
	return func() { cancel(); <-done }
}
