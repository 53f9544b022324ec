// SPDX-FileCopyrightText: The wcache authors
// SPDX-License-Identifier: MIT

// Package quota bounds what many do at once by what it takes together, such as bytes
// of memory.
package quota

import (
	"context"
	"slices"
	"sync"
)

// Quota is an amount that is taken and given back. Who asks first is served first, so
// that one who needs much gets it. It is safe for concurrent use.
type Quota struct {
	total int64

	mu    sync.Mutex
	free  int64
	queue []*waiter
}

type waiter struct {
	n    int64
	done chan struct{} // closed when n was taken
}

// New makes a quota of total, of which all is free.
func New(total int64) *Quota { return &Quota{total: total, free: total} }

// Total is what there is when nobody has any.
func (q *Quota) Total() int64 { return q.total }

// Take waits for n to be free, and takes it. Who needs more than there is takes all.
// The error is the cause of ctx's end.
func (q *Quota) Take(ctx context.Context, n int64) (*Share, error) {
	n = min(n, q.total)
	q.mu.Lock()
	if len(q.queue) == 0 && n <= q.free {
		q.free -= n
		q.mu.Unlock()
		return &Share{quota: q, n: n}, nil
	}
	w := &waiter{n, make(chan struct{})}
	q.queue = append(q.queue, w)
	q.mu.Unlock()
	select {
	case <-w.done:
		return &Share{quota: q, n: n}, nil
	case <-ctx.Done():
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	select {
	case <-w.done: // in the same moment
		q.free += n
	default:
		q.queue = slices.DeleteFunc(q.queue, func(x *waiter) bool { return x == w })
	}
	q.serve()
	return nil, context.Cause(ctx)
}

// Share is what somebody has of a quota. A nil Share is nothing of none. It is safe for
// concurrent use.
type Share struct {
	quota *Quota
	n     int64 // guarded by the quota's mu
}

// Keep gives back what is more than n.
func (s *Share) Keep(n int64) {
	if s == nil {
		return
	}
	s.quota.mu.Lock()
	defer s.quota.mu.Unlock()
	if n < s.n {
		s.quota.free += s.n - n
		s.n = n
		s.quota.serve()
	}
}

// Has is how much it is.
func (s *Share) Has() int64 {
	if s == nil {
		return 0
	}
	s.quota.mu.Lock()
	defer s.quota.mu.Unlock()
	return s.n
}

// Give gives all back. A second time it does nothing.
func (s *Share) Give() { s.Keep(0) }

// serve lets those go on for whom there is enough, in their order. Precondition: mu is
// held.
func (q *Quota) serve() {
	for len(q.queue) > 0 && q.queue[0].n <= q.free {
		q.free -= q.queue[0].n
		close(q.queue[0].done)
		q.queue = q.queue[1:]
	}
}
