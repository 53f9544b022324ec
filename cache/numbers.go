// SPDX-FileCopyrightText: The wcache authors
// SPDX-License-Identifier: MIT

package cache

import (
	"errors"
	"fmt"
	"maps"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/wcache/wcache/internal/fd"
)

// firstNumber is the first descriptor number of segments. Sockets and other files have lower
// numbers.
const firstNumber = 8192

// firstBelow is the first number for segments at a given limit of open files: a low limit
// leaves half of the numbers to them.
func firstBelow(limit int) int { return min(firstNumber, limit/2) }

// fetchTime is how long after its reply an engine may fetch a descriptor. Engines wait for
// a reply for 5 minutes at most, and map the memory as soon as they have read it.
const fetchTime = 10 * time.Minute

// numbers gives segments descriptor numbers that no other segment had within fetchTime. An
// engine gets a number in its reply and fetches the descriptor a little later. If the
// number meant another segment by then, the engine would get the wrong weights; a closed
// number gives it an error. The zero value is ready to use. Safe for concurrent use.
type numbers struct {
	now func() time.Time // nil: time.Now

	mu    sync.Mutex
	next  int
	rests map[int]time.Time // numbers of segments that were closed, and when
}

// raise moves the pieces of a segment to numbers that no segment has had for fetchTime. It
// fails if there are none, at a low limit of open files.
func (n *numbers) raise(c *Contents) error {
	end, err := numbersEnd()
	if err != nil {
		return err
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	n.wake()
	for i, f := range c.Segment.Pieces {
		got, err := n.dup(f.Int(), firstBelow(end), end)
		if err != nil {
			return fmt.Errorf("number descriptor: %w", err)
		}
		owned, err := fd.New(got)
		if err != nil {
			return err
		}
		if err := f.Close(); err != nil {
			return errors.Join(err, owned.Close())
		}
		owned.OnClose(n.rest) // from now on a reply may contain the number
		c.Segment.Pieces[i] = owned
		n.next = got + 1
	}
	return nil
}

// room reports why there is no number for another segment now: what is loaded then could
// not be told to engines.
func (n *numbers) room() error {
	end, err := numbersEnd()
	if err != nil {
		return err
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	n.wake()
	for at := range end - firstBelow(end) {
		number := end - 1 - at // from above, where the last of them are free
		if _, resting := n.rests[number]; !resting && !isOpen(number) {
			return nil
		}
	}
	return fmt.Errorf("number descriptor: %w", errNoNumber(end-firstBelow(end)))
}

// numbersEnd is the limit of open files, below which numbers are. A number is a C int.
func numbersEnd() (int, error) {
	var limit unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &limit); err != nil {
		return 0, fmt.Errorf("number descriptor: %w", err)
	}
	return int(min(limit.Cur, 1<<31-1)), nil
}

// dup duplicates a descriptor to a number from first on and below end: the next one
// after the last that was given, and from first on again at the end. Precondition: mu
// is held.
func (n *numbers) dup(from, first, end int) (int, error) {
	at := min(max(n.next, first), end)
	for range end - first {
		if at == end {
			at = first
		}
		if _, resting := n.rests[at]; resting || isOpen(at) {
			at++
			continue
		}
		got, err := unix.FcntlInt(uintptr(from), unix.F_DUPFD_CLOEXEC, at)
		if err != nil {
			return 0, err
		}
		if got == at {
			return got, nil
		}
		_ = unix.Close(got) // another goroutine has just got the number; this one may rest
		at++
	}
	return 0, errNoNumber(end - first)
}

func errNoNumber(n int) error {
	//diag loading NUMBER TIME
	// The daemon does not use the number of a descriptor again at once, as a slow engine could find
	// another model under it. Raise the limit of open files as the message says, or wait.
	return fmt.Errorf("the %d numbers for segments are in use or were within the last %v: raise LimitNOFILE= in a drop-in (systemctl --user edit wcache@.service), or ulimit -n", n, fetchTime)
}

// isOpen reports whether the number is an open descriptor.
func isOpen(n int) bool {
	_, err := unix.FcntlInt(uintptr(n), unix.F_GETFD, 0)
	return err == nil
}

// rest records that a segment's descriptor is being closed.
func (n *numbers) rest(number int) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.rests == nil {
		n.rests = make(map[int]time.Time)
	}
	n.rests[number] = n.time()
}

// wake forgets the numbers that have rested for fetchTime. Precondition: mu is held.
func (n *numbers) wake() {
	now := n.time()
	maps.DeleteFunc(n.rests, func(_ int, closed time.Time) bool { return now.Sub(closed) >= fetchTime })
}

func (n *numbers) time() time.Time {
	if n.now == nil {
		return time.Now()
	}
	return n.now()
}
