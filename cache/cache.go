// SPDX-FileCopyrightText: The wcache authors
// SPDX-License-Identifier: MIT

// Package cache holds entries, each of one key and one model directory. The cache loads an
// entry once for any number of concurrent requests, records which engines may map it, and
// evicts it when it needs room or when the model's files have changed. It owns the
// descriptors of its entries.
//
// It neither talks to engines nor knows how models are loaded. Nothing slow happens under
// its lock: [janitor] closes memory and removes descriptors from the store.
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

// Want is what a request asks for. A key depends on the headers of files and not on their
// data, so several directories may have the same one: the caller says which it means.
type Want struct {
	Key fingerprint.Key
	Dir string // absolute, without links
	By  string // how the caller found the directory, for the record; not part of the ID
}

// ID is the [manifest.ID] of the key and the directory.
func (w Want) ID() string { return manifest.ID(w.Key, w.Dir) }

// Load loads a model. It reserves its bytes on the ticket before it allocates them, and
// returns the error of that if there is one. The cache owns the contents. Ctx ends when the
// cache closes. After a [*Moved], requests that came while it ran start a new load.
type Load func(ctx context.Context, want Want, ticket *Ticket) (*Contents, error)

// Stale is the error of [Options.Fresh] for an entry that must not be served any more.
type Stale struct{ Why string }

//diag loading REASON
// A file of the model changed during the load or the request, and the reason says how. Wait until
// its files stay as they are; the next request loads them again.

func (s *Stale) Error() string { return "check entry: " + s.Why }

// Advice is what to do about it.
func (s *Stale) Advice() string { return "wait until its files stay as they are" }

// Moved is the error of a load whose files changed while it ran. For a request that came
// during the load, a new load may succeed.
type Moved struct{ Err error }

func (m *Moved) Error() string { return m.Err.Error() }

// Unwrap gives the error of the load.
func (m *Moved) Unwrap() error { return m.Err }

// Progress is how far a load is, in bytes.
type Progress struct {
	Model     string // the model's directory; "" while it isn't known
	Allocated int64  // on the device so far
	Done      int64  // filled so far
	Total     int64
	Waiting   string // what the load waits for, such as memory; "" if it doesn't wait
}

// Options of a cache.
type Options struct {
	Load   Load
	Budget int64            // the most bytes of all entries together, 0: no limit
	Now    func() time.Time // nil: time.Now
	// Fresh reports as a [*Stale] why an entry no longer matches its directory, such as
	// files that have changed. Another error means that it can't tell now: the request
	// fails and the entry stays. The cache calls it before it serves an entry, also after
	// a load, without a lock. Nil: every entry is fresh.
	Fresh func(context.Context, *Hold) error
	// Changed is called after entries or their engines came or went, without a lock;
	// Records lists the entries. Nil: not called.
	Changed func()
	// Ended is called after each load with its error or nil, before the requests that wait
	// for it go on, and without a lock. Nil: not called.
	Ended func(error)
	// Store keeps descriptors for the next process. Nil: none are kept.
	Store Store
}

// Cache holds loaded models. It is safe for concurrent use.
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
	retired map[*Entry]bool   // no longer served, but engines may still map them
	last    []manifest.Entry  // records when the cache was closed
}

//diag loading
// The service was stopped during the load. The engine loads from disk; the next request starts the
// service again.

// ErrClosed is the error of a cache that is being closed.
var ErrClosed = errors.New("the service is stopping")

// New makes an empty cache. The caller closes it.
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

// SetBudget changes the budget. Entries that exceed it stay until the next load needs room.
func (c *Cache) SetBudget(bytes int64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.budget = bytes
}

// SetPinned replaces the set of pinned directories.
func (c *Cache) SetPinned(pinned map[string]bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, e := range c.entries {
		if e.ready {
			e.contents.Record.Pinned = pinned[e.want.Dir]
		}
	}
}

// fill runs the load of one entry and publishes its result.
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

// publish sets the result of a load in its entry, and gives its error. Precondition: mu is
// held.
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
		// The loader could not fill the entry, for the given reason, and has freed its memory. Mend
		// what the reason names; the next request loads again.
		e.err = fmt.Errorf("load model: %s", e.lost)
		c.retire(e, e.lost)
	}
	return e.err
}

// Adopt adds contents that an earlier process loaded and put into the store, with the
// record that its Records gave; the record's engines are attached. The cache owns the
// contents, and closes them if it already has such an entry or is closed.
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

// Close ends loads, waits for them, and closes every descriptor. Holds stay valid until
// they are released.
func (c *Cache) Close() {
	c.stop()
	c.mu.Lock()
	c.last, c.closed = c.records(), true
	c.mu.Unlock()
	c.loads.Wait()
	c.mu.Lock()
	// The store keeps everything for the next process. When the service is stopped, the
	// service manager empties the store.
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

// Records lists the entries that are ready, oldest first, for a manifest. After Close it
// lists the entries that were held until then.
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
