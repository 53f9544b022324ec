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

// State is where an entry is in its life.
type State string

// The states of an entry. A leaving one is served to nobody and is freed when
// the last engine that was given its handles has ended.
const (
	Loading State = "loading"
	Ready   State = "ready"
	Leaving State = "leaving"
)

// Status is an entry as people and programs want to see it.
type Status struct {
	ID       string
	Key      fingerprint.Key
	State    State
	Model    string // the directory, "" while it isn't known
	Sure     string // by what the directory was certain
	Loader   string
	Reason   string // why this loader; for a leaving entry, why it leaves
	Bytes    int64  // on the device
	Tensors  int
	Pinned   bool
	NotKept  string   // why it would not outlive the daemon, "" if it would
	Engines  []Engine // by pid, never nil
	Waiting  int      // requests that wait for the load
	Started  time.Time
	Loaded   time.Time // zero while loading
	Used     time.Time
	Seconds  float64 // that the load took
	Progress Progress
	Files    []manifest.File // none while loading; they must not be changed
}

// Status lists all entries, oldest first.
func (c *Cache) Status() []Status {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.status()
}

// status lists all entries. Preconditions: mu is held.
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

// Empty reports whether the cache holds nothing and loads nothing.
func (c *Cache) Empty() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.entries) == 0 && len(c.retired) == 0
}

// Memory is the bytes that are on the device now and that the next engine will
// most likely map; draft tells which of its two models. An engine asks before it
// says which model it wants. With one entry there is no doubt. With several it
// is the largest: an engine that is charged too much gives itself a smaller KV
// cache, one that is charged too little runs out of memory.
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
			n = max(n, min(e.progress.Allocated, e.progress.Total)) // without what the device rounds up
		}
	}
	return n
}

// Nearest gives what is held of another key, the one that differs from the given key
// in the fewest fields; false if there is none. Loads count from the moment they tell
// a [Progress.Model]. With a directory only its entries count.
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
