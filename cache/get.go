// SPDX-FileCopyrightText: The wcache authors
// SPDX-License-Identifier: MIT

package cache

import (
	"context"
	"errors"
	"fmt"

	"github.com/wcache/wcache/fingerprint"
)

// Outcome is how a request came by its entry, whether it got one or not.
type Outcome struct {
	Before State  // what there was when it asked: Ready, Loading, or "" for nothing
	Stale  string // why what there was is not served any more; "" if it is
}

// maxTries is how often a request tries to get an entry whose files change under
// its load.
const maxTries = 3

// Get gives the entry of what is wanted, which is loaded if it isn't there; it waits
// for a load that is under way. What it gives is what the directory held when Get was
// called, or later. ctx ends the wait, not the load. The caller has to release the
// hold, and until then the entry's descriptors stay open.
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
				continue // that was perhaps over before this request came
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

// find looks up what is wanted and starts a load if there is nothing. It gives a hold
// on an entry that is ready, else the entry to wait for, where it has counted the
// caller as waiting.
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

// check asks whether what is held may be served, and retires it if not. A file system
// that doesn't answer keeps this request waiting and no other.
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
		if c.entries[h.entry.id] == h.entry { // not yet by another request
			c.retire(h.entry, stale.Why)
		}
		c.mu.Unlock()
		c.changed()
	}
	return err
}

// Recheck retires the entries of a key whose files have changed. Nobody asks for those
// any more: what their directory holds now has other headers, or it is gone.
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
		_ = c.check(ctx, h) // an error costs no entry
		h.Release()
	}
}

// use notes a use of what is held.
func (c *Cache) use(h *Hold) {
	c.mu.Lock()
	defer c.mu.Unlock()
	h.entry.used = c.now()
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
	return e.hold(c, false), nil
}

func (c *Cache) unwait(e *Entry) {
	c.mu.Lock()
	e.waiting--
	c.closeIfFree(e)
	c.mu.Unlock()
}
