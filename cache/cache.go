// SPDX-FileCopyrightText: The wcache authors
// SPDX-License-Identifier: MIT

// Package cache holds entries by key: each is loaded once however many ask, is
// attached to the engines that map it, and leaves when room is needed or its
// files have changed. It owns the descriptors of what it holds.
//
// It neither speaks to engines nor knows how a load is done.
package cache

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/wcache/wcache/device"
	"github.com/wcache/wcache/fingerprint"
	"github.com/wcache/wcache/internal/fd"
	"github.com/wcache/wcache/manifest"
	"github.com/wcache/wcache/tensor"
)

// Contents are what a load makes. The cache owns the descriptors from the moment
// it is given them.
type Contents struct {
	Table    *tensor.Table
	TableFD  *fd.FD
	Segments []device.Segment
	Record   manifest.Entry // all but the names of descriptors and the times, which the cache sets
}

// Close closes the descriptors.
func (c *Contents) Close() error {
	errs := []error{c.TableFD.Close()}
	for _, s := range c.Segments {
		errs = append(errs, s.FD.Close())
	}
	return errors.Join(errs...)
}

// gone reports why there is no memory behind the contents any more.
func (c *Contents) gone() error {
	for _, s := range c.Segments {
		if err := s.Gone(); err != nil {
			return err
		}
	}
	return nil
}

// Load loads one key. It reserves its bytes on the ticket before it takes them,
// and ends with that error if there is one. ctx ends when the cache closes.
type Load func(ctx context.Context, key fingerprint.Key, ticket *Ticket) (*Contents, error)

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
	// Fresh reports why an entry isn't what its key means any more, such as files
	// that have changed; nil if it is. It is asked before an entry is served, with
	// no lock held. Nil: it always is.
	Fresh func(manifest.Entry) error
	// Changed is called after entries or their engines came or went, with no lock
	// held. Records tells what there is. Nil: nobody wants to know.
	Changed func()
	// Store keeps descriptors for the next process. Nil: there is none.
	Store Store
}

// Store keeps descriptors, by name, beyond the end of this process. What it has
// of an entry that is loaded again under the same names is removed before.
type Store interface {
	// Room reports why n more descriptors would not be kept, nil if they would.
	Room(n int) error
	Put(name string, f *fd.FD) error
	Remove(name string) error
}

// Cache is safe for concurrent use.
type Cache struct {
	load    Load
	now     func() time.Time
	fresh   func(manifest.Entry) error
	changed func()
	store   Store
	numbers numbers
	ctx     context.Context
	stop    context.CancelFunc
	loads   sync.WaitGroup

	mu      sync.Mutex
	budget  int64
	closed  bool
	entries map[string]*Entry // by key ID; loading or ready
	retired map[*Entry]bool   // not served any more, but engines may still map them
	stats   Stats
	last    []manifest.Entry // records when the cache was closed
}

// Stats counts since the cache was made.
type Stats struct {
	Hits   int64 `json:"hits"`   // requests answered from memory
	Loads  int64 `json:"loads"`  // loads that ended well
	Failed int64 `json:"failed"` // loads that did not
}

// ErrClosed is the error of a cache that is being closed.
var ErrClosed = errors.New("the service is stopping")

// New makes an empty cache. Close it.
func New(o Options) *Cache {
	ctx, stop := context.WithCancel(context.Background())
	c := &Cache{
		load: o.Load, now: o.Now, fresh: o.Fresh, changed: o.Changed, store: o.Store, budget: o.Budget, ctx: ctx, stop: stop,
		entries: make(map[string]*Entry), retired: make(map[*Entry]bool),
	}
	if c.now == nil {
		c.now = time.Now
	}
	if c.changed == nil {
		c.changed = func() {}
	}
	if c.store == nil {
		c.store = noStore{}
	}
	if c.fresh == nil {
		c.fresh = func(manifest.Entry) error { return nil }
	}
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
func (c *Cache) SetPinned(pinned func(dir string) bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, e := range c.entries {
		if e.ready {
			e.contents.Record.Pinned = pinned(e.contents.Record.Dir)
		}
	}
}

// Get gives the entry of a key, which is loaded if it isn't there; it waits for
// a load that is under way. ctx ends the wait, not the load. The caller has to
// release the hold, and until then the entry's descriptors stay open.
func (c *Cache) Get(ctx context.Context, key fingerprint.Key) (*Hold, error) {
	for {
		e, hold, err := c.find(key)
		if err != nil {
			return nil, err
		}
		if hold == nil {
			select {
			case <-e.done:
			case <-ctx.Done():
				c.unwait(e)
				return nil, fmt.Errorf("wait for load: %w", ctx.Err())
			}
			return c.arrive(e)
		}
		if c.isFresh(hold) {
			return hold, nil
		}
		hold.Release()
	}
}

// find looks a key up and starts a load if there is nothing. It gives a hold on
// an entry that is ready, else the entry to wait for, where it has counted the
// caller as waiting.
func (c *Cache) find(key fingerprint.Key) (*Entry, *Hold, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return nil, nil, ErrClosed
	}
	id := key.ID()
	e := c.entries[id]
	if e != nil && e.ready {
		return e, e.hold(c, true), nil
	}
	if e == nil {
		e = &Entry{key: key, id: id, done: make(chan struct{}), started: c.now(), engines: make(map[int]Engine)}
		c.entries[id] = e
		c.loads.Go(func() { c.fill(e) })
	}
	e.waiting++
	return e, nil, nil
}

// isFresh asks whether what is held may still be served, and retires it if not. A
// file system that doesn't answer keeps this request waiting and no other.
func (c *Cache) isFresh(h *Hold) bool {
	e := h.entry
	if e.contents.gone() != nil {
		c.DropGone()
		return false
	}
	c.mu.Lock()
	record := e.contents.Record
	c.mu.Unlock()
	stale := c.fresh(record)
	c.mu.Lock()
	defer c.mu.Unlock()
	if stale != nil {
		if c.entries[e.id] == e { // not yet by another request
			c.retire(e, stale.Error())
		}
		return false
	}
	c.stats.Hits++
	e.used = c.now()
	return true
}

// arrive turns a wait that is over into a hold.
func (c *Cache) arrive(e *Entry) (*Hold, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	e.waiting--
	if e.err != nil {
		c.closeIfFree(e)
		return nil, e.err
	}
	e.used = c.now()
	return e.hold(c, false), nil
}

func (c *Cache) unwait(e *Entry) {
	c.mu.Lock()
	e.waiting--
	c.closeIfFree(e)
	c.mu.Unlock()
}

// fill runs the load of one entry and publishes what comes of it.
func (c *Cache) fill(e *Entry) {
	contents, err := c.load(c.ctx, e.key, &Ticket{cache: c, entry: e})
	if err == nil {
		err = c.numbers.raise(contents)
	}
	var kept error
	if err == nil {
		describe(&contents.Record, e.id, e.key, contents)
		kept = c.keep(contents)
	}
	defer c.changed()
	c.mu.Lock()
	defer c.mu.Unlock()
	defer close(e.done)
	e.reserved = 0
	if err != nil {
		if contents != nil {
			err = errors.Join(err, contents.Close())
		}
		if c.ctx.Err() != nil {
			err = ErrClosed
		}
		e.err = err
		c.stats.Failed++
		delete(c.entries, e.id)
		return
	}
	e.kept = kept
	e.publish(contents, c.now())
	if e.lost != "" {
		e.err = fmt.Errorf("load model: %s", e.lost)
		c.stats.Failed++
		c.retire(e, e.lost)
		return
	}
	c.stats.Loads++
}

// keep puts the descriptors of contents into the store. An entry that isn't kept
// is served all the same: it is only lost with this process.
func (c *Cache) keep(contents *Contents) error {
	err := c.store.Put(contents.Record.Table, contents.TableFD)
	for i, s := range contents.Segments {
		err = errors.Join(err, c.store.Put(contents.Record.Segments[i].Name, s.FD))
	}
	return err
}

// Adopt takes in contents that were loaded before and are in the store, with the
// record that Records gave of them; the record's engines are attached. If there
// is an entry of their key, or the cache is closed, they are closed.
func (c *Cache) Adopt(key fingerprint.Key, contents *Contents) error {
	if err := c.numbers.raise(contents); err != nil {
		return errors.Join(err, contents.Close())
	}
	defer c.changed()
	c.mu.Lock()
	defer c.mu.Unlock()
	id := key.ID()
	if c.closed || c.entries[id] != nil {
		return errors.Join(fmt.Errorf("adopt entry %.12s: closed or there already", id), contents.Close())
	}
	e := &Entry{key: key, id: id, done: make(chan struct{}), engines: make(map[int]Engine)}
	describe(&contents.Record, id, key, contents)
	e.publish(contents, contents.Record.Loaded)
	e.used = contents.Record.Used
	for _, x := range contents.Record.Engines {
		e.engines[x.PID] = Engine(x)
	}
	close(e.done)
	c.entries[id] = e
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
	defer c.mu.Unlock()
	// Nothing is taken out of the store: whoever starts next finds it there, and
	// whoever stops the service for good empties it.
	for _, e := range c.entries {
		delete(c.entries, e.id)
		c.retired[e] = true
	}
	for e := range c.retired {
		clear(e.engines)
		c.closeIfFree(e)
	}
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
		if !e.ready {
			continue
		}
		record := e.contents.Record
		record.Used = e.used
		record.Engines = nil
		for _, x := range e.engineList() {
			record.Engines = append(record.Engines, manifest.Engine(x))
		}
		list = append(list, record)
	}
	slices.SortFunc(list, func(a, b manifest.Entry) int { return a.Loaded.Compare(b.Loaded) })
	return list
}
