// SPDX-FileCopyrightText: The wcache authors
// SPDX-License-Identifier: MIT

package cache

import (
	"slices"
	"strings"
	"time"

	"github.com/wcache/wcache/fingerprint"
	"github.com/wcache/wcache/manifest"
)

// State is the state of an entry.
type State string

// The states of an entry. A leaving entry is no longer served, and is freed when the last
// engine that got its handles has ended.
const (
	Loading State = "loading"
	Ready   State = "ready"
	Leaving State = "leaving"
)

// Status describes an entry for people and programs.
type Status struct {
	ID       string
	Key      fingerprint.Key
	State    State
	Model    string // the directory, "" while it isn't known
	Sure     string // how the directory was found, see [Want.By]
	Loader   string
	Reason   string // why this loader; for a leaving entry, why it leaves
	Bytes    int64  // on the device
	Tensors  int
	Pinned   bool
	NotKept  string   // why the store doesn't have it, "" if it has
	Engines  []Engine // by pid, never nil
	Waiting  int      // requests that wait for the load
	Started  time.Time
	Loaded   time.Time // zero while loading
	Used     time.Time
	Seconds  float64 // duration of the load
	Progress Progress
	Files    []manifest.File // none while loading; the caller must not change them
}

// Status lists all entries, oldest first.
func (c *Cache) Status() []Status {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.status()
}

// status lists all entries, oldest first. Precondition: mu is held.
func (c *Cache) status() []Status {
	list := make([]Status, 0, len(c.entries)+len(c.retired))
	for _, e := range c.entries {
		list = append(list, e.status())
	}
	for e := range c.retired {
		s := e.status()
		s.State, s.Reason = Leaving, e.left
		list = append(list, s)
	}
	slices.SortFunc(list, func(a, b Status) int {
		if n := a.Started.Compare(b.Started); n != 0 {
			return n
		}
		return strings.Compare(a.ID, b.ID)
	})
	return list
}

func (e *Entry) status() Status {
	s := Status{
		ID: e.id, Key: e.want.Key, State: Loading, Model: e.want.Dir, Sure: e.want.By, Bytes: e.bytes(), Engines: e.engineList(),
		Waiting: e.waiting, Started: e.started, Used: e.started, Progress: e.progress,
	}
	if e.ready {
		r := e.contents.Record
		s.State, s.Model, s.Sure, s.Loader, s.Reason = Ready, r.Dir, r.Sure, r.Loader, r.Reason
		s.Tensors, s.Pinned, s.Seconds = r.Tensors, r.Pinned, r.Seconds
		s.Loaded, s.Used, s.Files = r.Loaded, e.used, r.Files
		if e.kept != nil {
			s.NotKept = e.kept.Error()
		}
		if s.Started.IsZero() { // adopted
			s.Started = r.Loaded
		}
	}
	return s
}

// Empty reports whether the cache has no entries, loaded, loading or leaving.
func (c *Cache) Empty() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.entries) == 0 && len(c.retired) == 0
}

// Memory is how many bytes, now on the device, the next engine will most likely map; draft
// says for which of its two models. An engine asks for this number before it says which
// model it wants. With several entries Memory gives the size of the largest: with a number
// that is too large an engine makes its KV cache smaller, with one that is too small it runs
// out of memory.
func (c *Cache) Memory(draft bool) int64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	var n int64
	for _, e := range c.entries {
		switch {
		case e.want.Key.Bool("is_draft") != draft:
		case e.ready:
			n = max(n, e.contents.Record.Bytes)
		default:
			n = max(n, min(e.progress.Allocated, e.progress.Total)) // without the rounding of the device
		}
	}
	return n
}

// Nearest gives the entry of another key that differs from the given key in the fewest
// fields; false if there is none. Loads count from the moment they report a
// [Progress.Model]. If dir isn't "", only its entries count.
func (c *Cache) Nearest(key fingerprint.Key, dir string) (Want, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	var nearest *Entry
	fewest := 0
	for _, e := range c.entries {
		if !e.ready && e.progress.Model == "" || e.want.Key.ID() == key.ID() || dir != "" && e.want.Dir != dir {
			continue
		}
		n := len(fingerprint.Compare(key, e.want.Key))
		if nearest == nil || n < fewest || n == fewest && e.id < nearest.id {
			nearest, fewest = e, n
		}
	}
	if nearest == nil {
		return Want{}, false
	}
	return nearest.want, true
}

func sortByUse(list []*Entry) {
	slices.SortFunc(list, func(a, b *Entry) int { return a.used.Compare(b.used) })
}
