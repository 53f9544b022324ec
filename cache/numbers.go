// SPDX-FileCopyrightText: The wcache authors
// SPDX-License-Identifier: MIT

package cache

import (
	"errors"
	"fmt"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/wcache/wcache/internal/fd"
)

// firstNumber is above the descriptors of sockets and files that come and go.
const firstNumber = 1024

// firstBelow is the first number where so many files may be open: few of them leave
// half to segments.
func firstBelow(limit int) int { return min(firstNumber, limit/2) }

// numbers gives segments descriptor numbers that have not been used before. An
// engine is told a number and uses it a little later: a number that came to mean
// another segment meanwhile would give it the wrong weights, while one that
// means nothing any more gives it an error.
type numbers struct {
	mu   sync.Mutex
	next int
}

// raise moves the segments of contents to fresh numbers. When the limit of open
// files is reached, numbers start over.
func (n *numbers) raise(c *Contents) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	var limit unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &limit); err != nil {
		return fmt.Errorf("number descriptor: %w", err)
	}
	first := firstBelow(int(min(limit.Cur, 2*firstNumber)))
	for i, s := range c.Segments {
		n.next = max(n.next, first)
		got, err := unix.FcntlInt(uintptr(s.FD.Int()), unix.F_DUPFD_CLOEXEC, n.next)
		if errors.Is(err, unix.EINVAL) || errors.Is(err, unix.EMFILE) { // past the limit
			got, err = unix.FcntlInt(uintptr(s.FD.Int()), unix.F_DUPFD_CLOEXEC, first)
		}
		if err != nil {
			return fmt.Errorf("number descriptor: %w", err)
		}
		owned, err := fd.New(got)
		if err != nil {
			return err
		}
		if err := s.FD.Close(); err != nil {
			return errors.Join(err, owned.Close())
		}
		c.Segments[i].FD = owned
		n.next = got + 1
	}
	return nil
}
