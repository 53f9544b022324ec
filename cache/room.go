// SPDX-FileCopyrightText: The wcache authors
// SPDX-License-Identifier: MIT

package cache

import (
	"context"
	"fmt"
	"strings"
	"time"
)

// descriptors is what an entry takes of the store: its table and its segment.
const descriptors = 2

// Ticket is what a load tells the cache with, and asks of it. It is safe for
// concurrent use.
type Ticket struct {
	cache *Cache
	entry *Entry
}

// Reserve says how many bytes the load takes, and evicts what is in the way of
// the budget: entries that are neither pinned nor in use, least recently used
// first. The error is a [*NoRoom] when that isn't enough; then nothing is evicted.
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

// Free evicts entries as Reserve does until the given bytes are free, waits for that
// until ctx is done, and says how many are. When they would be fewer than asked for,
// nothing is evicted and none are. A load that found the device full asks for it
// before a second try.
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

// Settle waits until the memory of what has left is free, or until ctx is done.
func (c *Cache) Settle(ctx context.Context) { c.janitor.wait(ctx) }

// Progress says how far the load is.
func (t *Ticket) Progress(p Progress) {
	t.cache.mu.Lock()
	defer t.cache.mu.Unlock()
	t.entry.progress = p
}

// held is the bytes of all entries and of what still lingers. Preconditions: mu
// is held.
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

// evictLRU evicts idle entries, oldest use first, until enough bytes are free;
// none if all of them are not enough. Preconditions: mu is held.
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

// inUse reports whether somebody may map the entry. Preconditions: mu is held.
func (e *Entry) inUse() bool { return e.holds > 0 || e.waiting > 0 || len(e.engines) > 0 }

// Evict frees an entry by its ID. The error is an [*InUse] if engines may map
// it, unless force is set: then it is not served any more, its descriptors are
// closed at once, and engines that have mapped it keep their mappings.
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

// EvictUnused evicts what is neither in use nor pinned and was not used since a moment,
// and tells how many entries that were.
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

// Drop takes all entries that are ready out of service, whoever uses them, and
// closes the descriptors of those that only engines were in the way of; loads that
// have reserved fail. It is for a device that has lost what it held. It tells how many
// were in service.
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

// DropGone does so with the entries whose memory is there no more, because the
// process that kept it has ended.
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

// Release detaches a process from its entries of one role, and frees those to
// which no other process is attached and which aren't pinned. It tells how many.
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

// BeingLoaded is the error of the eviction of an entry that isn't there yet.
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

// NoRoom is the error of a load that the budget has no room for.
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
	// The model and what engines use of the cache are more than `budget`. Evict entries, end
	// engines, or raise `budget`; the message goes on with what is held and by which processes.
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
