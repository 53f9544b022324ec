// SPDX-FileCopyrightText: The wcache authors
// SPDX-License-Identifier: MIT

package cache

import (
	"slices"

	"github.com/wcache/wcache/manifest"
)

// Hold gives a ready entry by its [Want.ID], for inspection: unlike Get it doesn't check the
// files, and doesn't count as a use. The error is a [*NoEntry]. The caller releases the
// hold.
func (c *Cache) Hold(id string) (*Hold, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	e := c.entries[id]
	if e == nil || !e.ready {
		return nil, &NoEntry{ID: id}
	}
	return e.hold(c, true), nil
}

// Retire takes the entry out of service, for the given reason. Engines that have mapped it
// keep it; the next request loads it again.
func (h *Hold) Retire(why string) {
	h.cache.mu.Lock()
	if h.cache.entries[h.entry.id] == h.entry { // it isn't retired already
		h.cache.retire(h.entry, why)
	}
	h.cache.mu.Unlock()
	h.cache.changed()
}

// Amend replaces the record of each file of each ready entry by the result of amend. Amend
// is called with the lock held: it has to be quick and must not call the cache.
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
		files := slices.Clone(e.contents.Record.Files) // copies of the record share the old slice
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
