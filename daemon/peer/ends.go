// SPDX-FileCopyrightText: The wcache authors
// SPDX-License-Identifier: MIT

package peer

import (
	"errors"
	"fmt"
	"os"
	"sync"

	"golang.org/x/sys/unix"
)

// Ends waits for the end of processes that got handles. A process may keep memory mapped
// until it ends, also after it has sent release, so only its end frees an entry. Safe for
// concurrent use.
type Ends struct {
	gone func(pid int) // called once per process, when it has ended
	wait sync.WaitGroup

	mu     sync.Mutex
	closed bool
	fds    map[int]*os.File // pidfds by pid
}

// NewEnds makes an Ends that calls gone once per watched process, when it has ended. The
// caller closes it.
func NewEnds(gone func(pid int)) *Ends {
	return &Ends{gone: gone, fds: make(map[int]*os.File)}
}

// Watch begins to wait for a process, unless it already does. The error is that of
// pidfd_open(2), for example if the process has ended.
func (e *Ends) Watch(pid int) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.closed || e.fds[pid] != nil {
		return nil
	}
	// Non-blocking, so that Go's poller waits, and not a thread.
	n, err := unix.PidfdOpen(pid, unix.PIDFD_NONBLOCK)
	if err != nil {
		return fmt.Errorf("watch process %d: %w", pid, err)
	}
	f := os.NewFile(uintptr(n), fmt.Sprintf("pidfd:%d", pid))
	raw, err := f.SyscallConn()
	if err != nil {
		return errors.Join(fmt.Errorf("watch process %d: %w", pid, err), f.Close())
	}
	e.fds[pid] = f
	e.wait.Go(func() {
		err := raw.Read(func(fd uintptr) bool {
			set := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}
			n, err := unix.Poll(set, 0)
			return err == nil && n > 0
		})
		e.mu.Lock()
		delete(e.fds, pid)
		closed := e.closed
		e.mu.Unlock()
		_ = f.Close() // Close may have closed it before
		if err == nil && !closed {
			e.gone(pid)
		}
	})
	return nil
}

// Close ends all waiting without calling gone.
func (e *Ends) Close() {
	e.mu.Lock()
	e.closed = true
	for _, f := range e.fds {
		_ = f.Close() // a pidfd has nothing to lose
	}
	e.mu.Unlock()
	e.wait.Wait()
}
