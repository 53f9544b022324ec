// SPDX-FileCopyrightText: The wcache authors
// SPDX-License-Identifier: MIT

package cache

import (
	"context"
	"sync"
	"time"
)

// janitor does slow work in a goroutine of its own, in order: it puts descriptors into the
// store and removes them, which may take a service manager seconds, and closes memory,
// which takes 0.1 s per GiB. Memory is free when it is removed from the store and closed.
// Safe for concurrent use.
type janitor struct {
	store Store
	ended chan struct{}

	mu    sync.Mutex
	queue []chore
	more  chan struct{} // a token when the queue has grown
	last  bool          // the janitor ends when the queue is empty
	over  bool          // the janitor has ended
}

// chore is one piece of work, given by the fields that are set.
type chore struct {
	put      *Contents     // to put into the store
	kept     func(error)   // called with the result of put
	contents *Contents     // to close
	names    []string      // to remove from the store
	done     chan struct{} // closed at the end
}

func newJanitor(store Store) *janitor {
	j := &janitor{store: store, ended: make(chan struct{}), more: make(chan struct{}, 1)}
	go j.work()
	return j
}

// add queues a chore. It doesn't block.
func (j *janitor) add(c chore) {
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.over { // a hold was released after the cache's end
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
		_ = c.contents.Close() // they are only read, so an error loses no data
	}
	for _, name := range c.names {
		_ = store.Remove(name) // after an error the next process drops it
	}
	if c.done != nil {
		close(c.done)
	}
}

// wait waits until all chores that were added before are done, or ctx is done.
func (j *janitor) wait(ctx context.Context) {
	done := make(chan struct{})
	j.add(chore{done: done})
	select {
	case <-done:
	case <-ctx.Done():
	case <-j.ended:
	}
}

// closing is how long the cache's end waits for the remaining chores. The end of the
// process closes memory, and the next process clears the store.
const closing = 5 * time.Second

// close ends the janitor when it has done all chores, and waits for that for the time of
// closing at most.
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
