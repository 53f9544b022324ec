// SPDX-FileCopyrightText: The wcache authors
// SPDX-License-Identifier: MIT

package cache

import (
	"context"
	"sync"
	"time"
)

// janitor does beside requests, in order, what may take long: it puts descriptors into
// the store and takes them out, for which a service manager may take seconds, and
// closes memory, which takes a tenth of a second for a GiB. Memory is free when it is
// out of the store and closed. Safe for concurrent use.
type janitor struct {
	store Store
	ended chan struct{}

	mu    sync.Mutex
	queue []chore
	more  chan struct{} // a token when the queue has grown
	last  bool          // it ends when the queue is empty
	over  bool          // it has ended
}

// chore is one thing to do; what is not set is not done.
type chore struct {
	put      *Contents // to put into the store
	kept     func(error)
	contents *Contents // to close
	names    []string  // to take out of the store
	done     chan struct{}
}

func newJanitor(store Store) *janitor {
	j := &janitor{store: store, ended: make(chan struct{}), more: make(chan struct{}, 1)}
	go j.work()
	return j
}

// add has a chore done. It doesn't block.
func (j *janitor) add(c chore) {
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.over { // of a hold that was released after the cache's end
		go c.do(j.store)
		return
	}
	j.queue = append(j.queue, c)
	j.wake()
}

func (j *janitor) wake() {
	select {
	case j.more <- struct{}{}:
	default: // it will look again anyway
	}
}

func (j *janitor) work() {
	defer close(j.ended)
	for {
		j.mu.Lock()
		list, last := j.queue, j.last
		j.queue = nil
		j.over = last && len(list) == 0
		j.mu.Unlock()
		for _, c := range list {
			c.do(j.store)
		}
		switch {
		case len(list) > 0:
		case last:
			return
		default:
			<-j.more
		}
	}
}

func (c chore) do(store Store) {
	if c.put != nil {
		c.kept(c.put.keep(store))
	}
	if c.contents != nil {
		_ = c.contents.Close() // nothing is written to them: no error can lose data
	}
	for _, name := range c.names {
		_ = store.Remove(name) // what stays there is dropped by the next process
	}
	if c.done != nil {
		close(c.done)
	}
}

// wait waits until all that was added is done, or until ctx is.
func (j *janitor) wait(ctx context.Context) {
	done := make(chan struct{})
	j.add(chore{done: done})
	select {
	case <-done:
	case <-ctx.Done():
	case <-j.ended:
	}
}

// closing is how long a cache's end waits for what is left to clear up. The end of
// the process closes memory, and the next one clears the store.
const closing = 5 * time.Second

// close ends the janitor when it has done all that was added.
func (j *janitor) close() {
	j.mu.Lock()
	j.last = true
	j.mu.Unlock()
	j.wake()
	select {
	case <-j.ended:
	case <-time.After(closing):
	}
}
