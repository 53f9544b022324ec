// SPDX-FileCopyrightText: The wcache authors
// SPDX-License-Identifier: MIT

// Package cache holds entries, each of one key and one model directory: each is
// loaded once however many ask, is attached to the engines that map it, and leaves
// when room is needed or its files have changed. It owns the descriptors of what it
// holds.
//
// It neither speaks to engines nor knows how a load is done. Nothing slow happens
// under its lock: memory is closed and descriptors leave the store in [janitor].
package cache

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/wcache/wcache/fingerprint"
	"github.com/wcache/wcache/manifest"
)

// Want is what a request asks for. A key covers headers and no data, so that it may
// mean several directories: the caller has made sure which.
type Want struct {
	Key fingerprint.Key
	Dir string // absolute, without links
	By  string // what made the caller sure, for the record; no part of what is wanted
}

// ID names what is wanted, as [manifest.ID] does.
func (w Want) ID() string { return manifest.ID(w.Key, w.Dir) }

// Load loads what is wanted. It reserves its bytes on the ticket before it takes
// them, and ends with that error if there is one. ctx ends when the cache closes.
// After a [*Moved] those that came while it ran have it load anew.
type Load func(ctx context.Context, want Want, ticket *Ticket) (*Contents, error)

// Stale is the error of [Options.Fresh] for an entry that must not be served any more.
type Stale struct{ Why string }

//diag loading REASON
// A file of the model changed while it was loaded or handed out, and the reason says how. Wait
// until its files stay as they are; the next request loads them again.

func (s *Stale) Error() string { return "check entry: " + s.Why }

// Advice is what to do about it.
func (s *Stale) Advice() string { return "wait until its files stay as they are" }

// Moved is the error of a load whose files were changed under it: it says nothing of
// the files as they were when a request came later.
type Moved struct{ Err error }

func (m *Moved) Error() string { return m.Err.Error() }

// Unwrap gives what the load ended with.
func (m *Moved) Unwrap() error { return m.Err }

// Progress is how far a load is, in bytes.
type Progress struct {
	Model     string // what is loaded, for people; "" while that isn't known
	Allocated int64  // on the device so far
	Done      int64  // filled
	Total     int64
	Waiting   string // for what nothing can be done yet, such as memory; "" if it goes on
}

// Options of a cache.
type Options struct {
	Load   Load
	Budget int64            // bytes that entries may hold together, 0: no limit
	Now    func() time.Time // nil: time.Now
	// Fresh reports as a [*Stale] why an entry isn't what its directory has any more,
	// such as files that have changed. Another error says that it can't be told now:
	// the request fails and the entry stays. It is asked before an entry is served,
	// after a load too, with no lock held. Nil: every entry is fresh.
	Fresh func(context.Context, *Hold) error
	// Changed is called after entries or their engines came or went, with no lock
	// held. Records tells what there is. Nil: nothing is called.
	Changed func()
	// Ended is told of each load when it has ended, with its error or nil, before those
	// that wait for it and with no lock held. Nil: nobody is.
	Ended func(error)
	// Store keeps descriptors for the next process. Nil: there is none.
	Store Store
}

// Cache is safe for concurrent use.
type Cache struct {
	load    Load
	now     func() time.Time
	fresh   func(context.Context, *Hold) error
	changed func()
	ended   func(error)
	store   Store
	janitor *janitor
	numbers numbers
	ctx     context.Context
	stop    context.CancelFunc
	loads   sync.WaitGroup

	keepWait, keepAgain time.Duration // see keep

	mu      sync.Mutex
	serial  int64 // makes names in the store unique
	budget  int64
	closed  bool
	entries map[string]*Entry // by Want.ID; loading or ready
	retired map[*Entry]bool   // not served any more, but engines may still map them
	last    []manifest.Entry  // records when the cache was closed
}

//diag loading
// The service was stopped during the load. The engine loads from disk; the next request starts the
// service again.

// ErrClosed is the error of a cache that is being closed.
var ErrClosed = errors.New("the service is stopping")

// New makes an empty cache. Close it.
func New(o Options) *Cache {
	ctx, stop := context.WithCancel(context.Background())
	c := &Cache{
		load: o.Load, now: o.Now, fresh: o.Fresh, changed: o.Changed, ended: o.Ended, store: o.Store, budget: o.Budget, ctx: ctx, stop: stop,
		serial: time.Now().UnixNano(), entries: make(map[string]*Entry), retired: make(map[*Entry]bool),
	}
	c.keepWait, c.keepAgain = keepWait, keepAgain
	if c.now == nil {
		c.now = time.Now
	}
	if c.changed == nil {
		c.changed = func() {}
	}
	if c.ended == nil {
		c.ended = func(error) {}
	}
	if c.store == nil {
		c.store = noStore{}
	}
	if c.fresh == nil {
		c.fresh = func(context.Context, *Hold) error { return nil }
	}
	c.janitor = newJanitor(c.store)
	return c
}

// SetBudget changes the budget. Entries that are over it stay until room is
// needed.
func (c *Cache) SetBudget(bytes int64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.budget = bytes
}

// SetPinned says anew which directories are pinned.
func (c *Cache) SetPinned(pinned map[string]bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, e := range c.entries {
		if e.ready {
			e.contents.Record.Pinned = pinned[e.want.Dir]
		}
	}
}

// fill runs the load of one entry and publishes what comes of it.
func (c *Cache) fill(e *Entry) {
	contents, err := c.load(c.ctx, e.want, &Ticket{cache: c, entry: e})
	if err == nil {
		err = c.numbers.raise(contents)
	}
	if err == nil {
		at := c.now()
		contents.Record.Loaded, contents.Record.Used = at, at
		c.describe(e, contents)
		contents.Record.Sure = e.want.By
		if err := label(contents); err != nil {
			c.mu.Lock()
			e.kept = err
			c.mu.Unlock()
		} else {
			c.keep(e, contents)
		}
	}
	if err != nil && contents != nil {
		err = errors.Join(err, contents.Close())
	}
	c.mu.Lock()
	err = c.publish(e, contents, err)
	c.mu.Unlock()
	c.ended(err)
	close(e.done)
	c.changed()
}

// publish ends a load in its entry, and gives its error. Preconditions: mu is held.
func (c *Cache) publish(e *Entry, contents *Contents, err error) error {
	e.reserved = 0
	if err != nil {
		if c.ctx.Err() != nil {
			err = ErrClosed
		}
		e.err = err
		delete(c.entries, e.id)
		return err
	}
	e.contents, e.ready, e.used = contents, true, contents.Record.Used
	if e.lost != "" {
		//diag loading REASON
		// The loader could not fill the entry, for the given reason, and has freed all memory of
		// it. Mend what the reason names; the next request loads again.
		e.err = fmt.Errorf("load model: %s", e.lost)
		c.retire(e, e.lost)
	}
	return e.err
}

// Adopt takes in contents that were loaded before and are in the store, with the
// record that Records gave of them; the record's engines are attached. If there
// is an entry of the same already, or the cache is closed, they are closed.
func (c *Cache) Adopt(contents *Contents) error {
	if err := c.numbers.raise(contents); err != nil {
		return errors.Join(err, contents.Close())
	}
	r := &contents.Record
	want := Want{Key: r.Key, Dir: r.Dir}
	id := want.ID()
	c.mu.Lock()
	if c.closed || c.entries[id] != nil {
		c.mu.Unlock()
		return errors.Join(fmt.Errorf("adopt entry %.12s: closed or there already", id), contents.Close())
	}
	e := &Entry{want: want, id: id, done: make(chan struct{}), engines: make(map[int]Engine), contents: contents, ready: true, used: r.Used}
	for _, x := range r.Engines {
		e.engines[x.PID] = Engine(x)
	}
	close(e.done)
	c.entries[id] = e
	c.mu.Unlock()
	c.changed()
	return nil
}

// Close ends loads, waits for them, and closes every descriptor. Holds that are
// out stay valid until they are released.
func (c *Cache) Close() {
	c.stop()
	c.mu.Lock()
	c.last, c.closed = c.records(), true
	c.mu.Unlock()
	c.loads.Wait()
	c.mu.Lock()
	// Nothing is taken out of the store: the next process finds it there, and
	// stopping the service for good empties it.
	for _, e := range c.entries {
		delete(c.entries, e.id)
		c.retired[e] = true
	}
	for e := range c.retired {
		clear(e.engines)
		c.closeIfFree(e)
	}
	c.mu.Unlock()
	c.janitor.close()
}

// Records are the entries that are ready, oldest first, as a manifest has them.
// After Close they are what was held until then.
func (c *Cache) Records() []manifest.Entry {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return c.last
	}
	return c.records()
}

// records lists the entries that are ready. Preconditions: mu is held.
func (c *Cache) records() []manifest.Entry {
	var list []manifest.Entry
	for _, e := range c.entries {
		if e.ready {
			list = append(list, e.record())
		}
	}
	slices.SortFunc(list, func(a, b manifest.Entry) int { return a.Loaded.Compare(b.Loaded) })
	return list
}
