// SPDX-FileCopyrightText: The wcache authors
// SPDX-License-Identifier: MIT

package cache

import (
	"context"
	"fmt"
	"strings"
	"time"
)

// descriptors is how many descriptors an entry has in the store, at the least: its table
// and its segment.
const descriptors = 2

// Ticket connects a running load with the cache: the load reserves room by it and reports
// progress. It is safe for concurrent use.
type Ticket struct {
	cache *Cache
	entry *Entry
}

// Reserve reserves the given bytes for the load. To stay within the budget it evicts
// entries that are neither pinned nor in use, least recently used first. If that isn't
// enough it evicts none, and the error is a [*NoRoom].
func (t *Ticket) Reserve(bytes int64) error {
	c := t.cache
	if err := c.store.Room(descriptors); err != nil {
		return fmt.Errorf("make room: %w", err)
	}
	if err := c.numbers.room(); err != nil {
		return fmt.Errorf("make room: %w", err)
	}
	defer c.changed()
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return ErrClosed
	}
	if over := c.held() - t.entry.bytes() + bytes - c.budget; c.budget > 0 && over > 0 && c.evictLRU(over) < over {
		return &NoRoom{Want: bytes, Budget: c.budget, Held: c.status()}
	}
	t.entry.reserved, t.entry.lost = bytes, ""
	return nil
}

// Free evicts entries as Reserve does until the given bytes are free, waits until their
// memory is free or ctx is done, and gives the number of bytes. If they would be fewer than
// asked for, it evicts none and gives 0. A load that found the device full calls it before
// its second try.
func (t *Ticket) Free(ctx context.Context, bytes int64) int64 {
	c := t.cache
	c.mu.Lock()
	freed := c.evictLRU(bytes)
	c.mu.Unlock()
	if freed > 0 {
		c.janitor.wait(ctx)
		c.changed()
	}
	return freed
}

// Settle waits until the memory of all evicted entries that can be freed is free, or until
// ctx is done.
func (c *Cache) Settle(ctx context.Context) { c.janitor.wait(ctx) }

// Progress sets the load's progress.
func (t *Ticket) Progress(p Progress) {
	t.cache.mu.Lock()
	defer t.cache.mu.Unlock()
	t.entry.progress = p
}

// held is the bytes of all entries, with retired ones that engines still map.
// Precondition: mu is held.
func (c *Cache) held() int64 {
	var n int64
	for _, e := range c.entries {
		n += e.bytes()
	}
	for e := range c.retired {
		n += e.bytes()
	}
	return n
}

// evictLRU evicts idle entries, least recently used first, until enough bytes are free;
// none if all of them aren't enough. Precondition: mu is held.
func (c *Cache) evictLRU(bytes int64) int64 {
	var idle []*Entry
	var all int64
	for _, e := range c.entries {
		if e.ready && !e.contents.Record.Pinned && !e.inUse() {
			idle = append(idle, e)
			all += e.bytes()
		}
	}
	if all < bytes {
		return 0
	}
	sortByUse(idle)
	var freed int64
	for _, e := range idle {
		if freed >= bytes {
			break
		}
		freed += e.bytes()
		c.retire(e, "evicted to make room")
	}
	return freed
}

// inUse reports whether an engine or a request uses the entry. Precondition: mu is held.
func (e *Entry) inUse() bool { return e.holds > 0 || e.waiting > 0 || len(e.engines) > 0 }

// Evict frees an entry by its ID. If engines may map it, the error is an [*InUse], unless
// force is set: then the cache takes it out of service and closes its descriptors at once,
// and engines that have mapped it keep their mappings. Other errors are [*NoEntry] and
// [*BeingLoaded].
func (c *Cache) Evict(id string, force bool) error {
	defer c.changed()
	c.mu.Lock()
	defer c.mu.Unlock()
	e := c.entries[id]
	switch {
	case e == nil:
		return &NoEntry{ID: id}
	case !e.ready:
		return &BeingLoaded{ID: e.want.Key.ID()}
	case e.inUse() && !force:
		return &InUse{ID: e.want.Key.ID(), Engines: e.engineList()}
	}
	clear(e.engines)
	c.retire(e, "evicted on request")
	return nil
}

// EvictUnused evicts entries that are neither in use nor pinned and were last used before
// the given time. It gives their number.
func (c *Cache) EvictUnused(since time.Time, why string) int {
	c.mu.Lock()
	n := 0
	for _, e := range c.entries {
		if e.ready && !e.contents.Record.Pinned && !e.inUse() && e.used.Before(since) {
			c.retire(e, why)
			n++
		}
	}
	c.mu.Unlock()
	if n > 0 {
		c.changed()
	}
	return n
}

// Drop is for a device that has lost its memory. It takes all ready entries out of service,
// also those in use, and closes their descriptors as soon as no request holds them; loads
// that have reserved fail. It gives the number of entries that were in service.
func (c *Cache) Drop(why string) int {
	defer c.changed()
	c.mu.Lock()
	defer c.mu.Unlock()
	n := 0
	for _, e := range c.entries {
		if e.ready {
			clear(e.engines)
			c.retire(e, why)
			n++
			continue
		}
		e.lost = why
	}
	for e := range c.retired {
		clear(e.engines)
		c.closeIfFree(e)
	}
	return n
}

// DropGone does the same with entries whose memory is gone because the process that kept
// it has ended.
func (c *Cache) DropGone() int {
	defer c.changed()
	c.mu.Lock()
	defer c.mu.Unlock()
	n := 0
	for _, e := range c.entries {
		if !e.ready {
			continue
		}
		if err := e.contents.Segment.Gone(); err != nil {
			clear(e.engines)
			c.retire(e, err.Error())
			n++
		}
	}
	for e := range c.retired {
		if e.contents.Segment.Gone() != nil {
			clear(e.engines)
			c.closeIfFree(e)
		}
	}
	return n
}

// Release detaches a process from its entries of one role, and frees the entries that
// aren't pinned and that no other process is attached to. It gives their number.
func (c *Cache) Release(pid int, draft bool) int {
	defer c.changed()
	c.mu.Lock()
	defer c.mu.Unlock()
	freed := 0
	for _, e := range c.entries {
		if _, attached := e.engines[pid]; !attached || e.want.Key.Bool("is_draft") != draft {
			continue
		}
		delete(e.engines, pid)
		if !e.inUse() && !e.contents.Record.Pinned {
			c.retire(e, "released by its engine")
			freed++
		}
	}
	for e := range c.retired {
		if e.want.Key.Bool("is_draft") == draft {
			delete(e.engines, pid)
			c.closeIfFree(e)
		}
	}
	return freed
}

// BeingLoaded is the error of an eviction of an entry that is still being loaded.
type BeingLoaded struct{ ID string } // of its key

func (e *BeingLoaded) Error() string {
	//diag entries KEY
	// A loader fills the entry now. Wait until the load has ended, and repeat the command.
	return fmt.Sprintf("evict entry %.12s: it is being loaded", e.ID)
}

// Advice is what to do about it.
func (e *BeingLoaded) Advice() string { return "evict it when it is loaded" }

// NoEntry is the error for an entry that the cache doesn't hold.
type NoEntry struct{ ID string }

//diag entries KEY
// The instance has no entry with this key. `wcache status` lists the keys.

func (e *NoEntry) Error() string { return fmt.Sprintf("find entry: no key %q is held", e.ID) }

// Advice is what to do about it.
func (e *NoEntry) Advice() string { return "wcache status lists the keys" }

// NoRoom is the error of a load that doesn't fit into the budget. Sizes are in bytes.
type NoRoom struct {
	Want, Budget int64
	Held         []Status
}

func (e *NoRoom) Error() string {
	var held []string
	for _, s := range e.Held {
		if s.Bytes > 0 {
			held = append(held, s.holder())
		}
	}
	//diag loading NUMBER NUMBER
	// The model and the entries that are in use or pinned need more than `budget`. Evict entries,
	// end engines, or raise `budget`; the message goes on with the entries and their engines.
	text := fmt.Sprintf("make room: the model takes %d bytes and the budget is %d", e.Want, e.Budget)
	if len(held) > 0 {
		text += "; held are " + strings.Join(held, ", ")
	}
	return text
}

// Advice is what to do about it.
func (e *NoRoom) Advice() string {
	return "wcache evict frees what is held, budget in wcache.toml allows more"
}

func (s Status) holder() string {
	text := fmt.Sprintf("%d bytes of %s (%.12s", s.Bytes, s.Model, s.Key.ID())
	if s.Pinned {
		text += ", pinned"
	}
	for _, e := range s.Engines {
		text += fmt.Sprintf(", %s pid %d", e.Name, e.PID)
	}
	return text + ")"
}
