// SPDX-FileCopyrightText: The wcache authors
// SPDX-License-Identifier: MIT

package cache

import (
	"context"
	"errors"
	"fmt"

	"github.com/wcache/wcache/fingerprint"
)

// Outcome says how a request got its entry; it is also set with an error.
type Outcome struct {
	Before State  // the entry's state when the request came: Ready, Loading, or "" for no entry
	Stale  string // why the entry that was ready is no longer served; "" if it is
}

// maxTries is how often a request tries to get an entry whose files change during the
// load.
const maxTries = 3

// Get gives the entry that is wanted. It loads a missing entry, and waits for a load that is
// under way. The entry has what the directory held when Get was called, or later. Ctx ends
// the wait, not the load. The caller releases the hold; until then the entry's descriptors
// stay open.
func (c *Cache) Get(ctx context.Context, want Want) (*Hold, Outcome, error) {
	var out Outcome
	for try := 1; ; try++ {
		e, before, hold, err := c.find(want)
		if try == 1 {
			out.Before = before
		}
		if err != nil {
			return nil, out, err
		}
		if hold == nil {
			select {
			case <-e.done:
				hold, err = c.arrive(e)
			case <-ctx.Done():
				c.unwait(e)
				err = fmt.Errorf("wait for load: %w", ctx.Err())
			}
			if moved := new(Moved); before == Loading && errors.As(err, &moved) && try < maxTries {
				continue // the files may have changed before this request came
			}
			if err != nil {
				return nil, out, err
			}
		}
		hold.by = want.By
		err = c.check(ctx, hold)
		if err == nil {
			c.use(hold)
			return hold, out, nil
		}
		hold.Release()
		var stale *Stale
		if !errors.As(err, &stale) || try == maxTries {
			return nil, out, err
		}
		if before == Ready {
			out.Stale = stale.Why
		}
	}
}

// find looks up an entry, and starts a load if there is none. It gives a hold on a ready
// entry, else the entry to wait for, on which it has counted the caller as waiting.
func (c *Cache) find(want Want) (*Entry, State, *Hold, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return nil, "", nil, ErrClosed
	}
	id := want.ID()
	e := c.entries[id]
	if e != nil && e.ready {
		return e, Ready, e.hold(c, true), nil
	}
	before := Loading
	if e == nil {
		before = ""
		e = &Entry{want: want, id: id, done: make(chan struct{}), started: c.now(), engines: make(map[int]Engine)}
		c.entries[id] = e
		c.loads.Go(func() { c.fill(e) })
	}
	e.waiting++
	return e, before, nil, nil
}

// check checks whether an entry may be served, and retires it if not. A file system that
// doesn't answer blocks this request only.
func (c *Cache) check(ctx context.Context, h *Hold) error {
	err := h.entry.contents.Segment.Gone()
	if err != nil {
		c.DropGone()
		return &Stale{Why: err.Error()}
	}
	err = c.fresh(ctx, h)
	var stale *Stale
	if errors.As(err, &stale) {
		c.mu.Lock()
		if c.entries[h.entry.id] == h.entry { // another request may have retired it
			c.retire(h.entry, stale.Why)
		}
		c.mu.Unlock()
		c.changed()
	}
	return err
}

// Recheck retires the entries of a key whose files have changed. If the headers in their
// directory have changed too, or it is gone, no request would find that out: requests now
// have another key or another directory.
func (c *Cache) Recheck(ctx context.Context, key fingerprint.Key) {
	var holds []*Hold
	c.mu.Lock()
	for _, e := range c.entries {
		if e.ready && e.want.Key.ID() == key.ID() {
			holds = append(holds, e.hold(c, true))
		}
	}
	c.mu.Unlock()
	for _, h := range holds {
		_ = c.check(ctx, h) // after an error the entry stays
		h.Release()
	}
}

// use records the time at which the entry was used.
func (c *Cache) use(h *Hold) {
	c.mu.Lock()
	defer c.mu.Unlock()
	h.entry.used = c.now()
}

// arrive ends a wait for a load that has ended: it gives a hold, or the load's error.
func (c *Cache) arrive(e *Entry) (*Hold, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	e.waiting--
	if e.err != nil {
		c.closeIfFree(e)
		return nil, e.err
	}
	return e.hold(c, false), nil
}

func (c *Cache) unwait(e *Entry) {
	c.mu.Lock()
	e.waiting--
	c.closeIfFree(e)
	c.mu.Unlock()
}
