// SPDX-FileCopyrightText: The wcache authors
// SPDX-License-Identifier: MIT

// Package quota limits what concurrent work uses together, such as bytes of memory.
package quota

import (
	"context"
	"slices"
	"sync"
)

// Quota is an amount from which callers take shares. It serves callers in their order, so that
// a caller that needs much isn't overtaken for ever. It is safe for concurrent use.
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

// New makes a quota of total, all of it free.
func New(total int64) *Quota { return &Quota{total: total, free: total} }

// Total is the whole amount, taken or free.
func (q *Quota) Total() int64 { return q.total }

// Take waits until n is free, and takes it; if n is more than the total it takes the total. The
// error is the cause of ctx's end. The caller gives the share back.
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
	case <-w.done: // both happened at once
		q.free += n
	default:
		q.queue = slices.DeleteFunc(q.queue, func(x *waiter) bool { return x == w })
	}
	q.serve()
	return nil, context.Cause(ctx)
}

// Share is a part of a quota that a caller has taken. The methods of a nil Share do nothing. It
// is safe for concurrent use.
type Share struct {
	quota *Quota
	n     int64 // guarded by the quota's mu
}

// Keep gives back all but n.
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

// Has is the share's amount.
func (s *Share) Has() int64 {
	if s == nil {
		return 0
	}
	s.quota.mu.Lock()
	defer s.quota.mu.Unlock()
	return s.n
}

// Give gives all back. A second call does nothing.
func (s *Share) Give() { s.Keep(0) }

// serve serves waiting callers in their order while enough is free. Precondition: mu is held.
func (q *Quota) serve() {
	for len(q.queue) > 0 && q.queue[0].n <= q.free {
		q.free -= q.queue[0].n
		close(q.queue[0].done)
		q.queue = q.queue[1:]
	}
}
