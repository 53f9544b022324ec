// SPDX-FileCopyrightText: The wcache authors
// SPDX-License-Identifier: MIT

package cache

import (
	"slices"

	"github.com/wcache/wcache/manifest"
)

// Hold gives the entry of a [Want.ID], which has to be ready, for one who looks at it:
// its files are not asked after, and it counts as no use. The error is a [*NoEntry]. The
// caller has to release the hold.
func (c *Cache) Hold(id string) (*Hold, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	e := c.entries[id]
	if e == nil || !e.ready {
		return nil, &NoEntry{ID: id}
	}
	return e.hold(c, true), nil
}

// Retire takes what is held out of service, for the given reason. Engines that have
// mapped it keep it, and what is requested from now on is loaded again.
func (h *Hold) Retire(why string) {
	h.cache.mu.Lock()
	if h.cache.entries[h.entry.id] == h.entry { // not yet for another reason
		h.cache.retire(h.entry, why)
	}
	h.cache.mu.Unlock()
	h.cache.changed()
}

// Amend has the record of each file of each entry be what amend makes of it. That is
// called with a lock held, and has to be quick and to call nothing of the cache.
func (c *Cache) Amend(amend func(manifest.File) manifest.File) {
	if c.amend(amend) {
		c.changed()
	}
}

func (c *Cache) amend(amend func(manifest.File) manifest.File) (changed bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, e := range c.entries {
		if !e.ready {
			continue
		}
		files := slices.Clone(e.contents.Record.Files) // others read those that there are
		for i, f := range files {
			files[i] = amend(f)
		}
		if !slices.Equal(files, e.contents.Record.Files) {
			e.contents.Record.Files = files
			changed = true
		}
	}
	return changed
}
