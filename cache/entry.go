// SPDX-FileCopyrightText: The wcache authors
// SPDX-License-Identifier: MIT

package cache

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/wcache/wcache/device"
	"github.com/wcache/wcache/manifest"
	"github.com/wcache/wcache/tensor"
)

// Entry is what a request wanted and, once it is loaded, its contents. The cache's mu guards
// all fields but id, want, done and started; once contents are set, only their record
// changes.
type Entry struct {
	id      string // of want
	want    Want
	started time.Time
	done    chan struct{} // closed when the load has ended

	err      error // of the load
	ready    bool
	contents *Contents
	progress Progress
	reserved int64 // bytes that the load said it takes
	used     time.Time
	waiting  int    // requests that wait for the load
	holds    int    // holds that haven't been released
	kept     error  // why the store doesn't have it, nil if it has
	left     string // why it is no longer served, for a retired entry
	lost     string // why the memory of the running load is gone, "" if it isn't
	engines  map[int]Engine
}

// Engine is a process that has been given an entry's handles and may map them.
type Engine struct {
	PID   int
	Name  string // /proc/PID/comm
	Start uint64 // its start time in /proc/PID/stat, which tells apart processes with the same pid
	Since time.Time
}

// describe fills in the fields of an entry's record that the cache knows.
func (c *Cache) describe(e *Entry, contents *Contents) {
	c.mu.Lock()
	c.serial++
	name := fmt.Sprintf("%.12s-%x", e.id, c.serial)
	c.mu.Unlock()
	r := &contents.Record
	r.ID, r.Key, r.Dir = e.id, e.want.Key, e.want.Dir
	r.Table = "t-" + name
	r.Pieces = nil
	size, _ := contents.Segment.PieceBytes() // the loader has checked it
	for i, f := range contents.Segment.Pieces {
		file, _ := f.File() // it is open, so there is no error; without File the next process would drop the entry
		r.Pieces = append(r.Pieces, manifest.Piece{Name: fmt.Sprintf("s-%s-%d", name, i), Bytes: size, File: file})
	}
	r.Tensors, r.Bytes = len(contents.Table.Tensors), contents.Table.Bytes()
}

// Times of keeping: how long the answer to a load waits for the store, and the pause after
// a failed try.
const (
	keepWait  = 2 * time.Second
	keepAgain = 5 * time.Second
)

// errNotYet is why an entry isn't kept until the store has taken it.
var errNotYet = errors.New("keep descriptors: the service manager has not taken them yet")

// keep puts an entry into the store, and waits for that for keepWait at most, so that an
// entry mostly is in the store before an engine gets it. If that fails, the entry is still
// served, but would be lost with this process; keep tries again until it succeeds or the
// entry leaves.
func (c *Cache) keep(e *Entry, contents *Contents) {
	c.mu.Lock()
	if e.kept == nil {
		e.kept = errNotYet
	}
	c.mu.Unlock()
	done := make(chan struct{})
	c.janitor.add(chore{put: contents, done: done, kept: func(err error) {
		c.mu.Lock()
		e.kept = err
		c.mu.Unlock()
		if err != nil {
			time.AfterFunc(c.keepAgain, func() { c.retry(e, contents) })
		}
	}})
	timer := time.NewTimer(c.keepWait)
	defer timer.Stop()
	select {
	case <-done:
	case <-timer.C:
	case <-c.ctx.Done():
	}
	c.changed()
}

// retry calls keep for an entry that the store did not take, if the cache still has it.
func (c *Cache) retry(e *Entry, contents *Contents) {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case c.closed || c.entries[e.id] != e:
	case !e.ready: // its load is about to end
		time.AfterFunc(c.keepAgain, func() { c.retry(e, contents) })
	default:
		c.loads.Go(func() { c.keep(e, contents) })
	}
}

// String names an engine for people.
func (e Engine) String() string { return fmt.Sprintf("%s (pid %d)", e.Name, e.PID) }

// bytes is how many bytes the entry has or will have on the device. Precondition: mu is
// held.
func (e *Entry) bytes() int64 {
	if !e.ready {
		return max(e.reserved, e.progress.Allocated)
	}
	return e.contents.Segment.Bytes
}

// hold makes a hold on a ready entry. Precondition: mu is held.
func (e *Entry) hold(c *Cache, hit bool) *Hold {
	e.holds++
	return &Hold{cache: c, entry: e, hit: hit}
}

// Hold keeps an entry's descriptors open until Release, while a request is answered. It is
// safe for concurrent use.
type Hold struct {
	cache *Cache
	entry *Entry
	once  sync.Once
	hit   bool
	by    string
}

// ID is the [Want.ID] of the entry.
func (h *Hold) ID() string { return h.entry.id }

// Record is the entry's current record.
func (h *Hold) Record() manifest.Entry {
	h.cache.mu.Lock()
	defer h.cache.mu.Unlock()
	return h.entry.record()
}

// Renew replaces the record of the entry's files. The caller has made sure that their
// contents are equal to the entry's.
func (h *Hold) Renew(files []manifest.File) {
	h.cache.mu.Lock()
	h.entry.contents.Record.Files = files
	h.cache.mu.Unlock()
	h.cache.changed()
}

// Table is the entry's table. The caller must not change it.
func (h *Hold) Table() *tensor.Table { return h.entry.contents.Table }

// By is how the caller of Get found the directory, see [Want.By].
func (h *Hold) By() string { return h.by }

// Segment is the entry's memory. The cache owns the descriptors, which stay open until
// Release at least.
func (h *Hold) Segment() device.Segment { return h.entry.contents.Segment }

// Model is the directory from which the entry was loaded.
func (h *Hold) Model() string { return h.entry.want.Dir }

// Hit tells whether the entry was ready when the request came.
func (h *Hold) Hit() bool { return h.hit }

// Attach records that a process may map the entry, until Detach.
func (h *Hold) Attach(engine Engine) {
	defer h.cache.changed()
	h.cache.mu.Lock()
	defer h.cache.mu.Unlock()
	h.entry.engines[engine.PID] = engine
}

// Release ends the hold. A second call does nothing.
func (h *Hold) Release() {
	h.once.Do(func() {
		h.cache.mu.Lock()
		defer h.cache.mu.Unlock()
		h.entry.holds--
		h.cache.closeIfFree(h.entry)
	})
}

// Detach removes a process from all entries that it was attached to.
func (c *Cache) Detach(pid int) {
	defer c.changed()
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, e := range c.entries {
		delete(e.engines, pid)
	}
	for e := range c.retired {
		delete(e.engines, pid)
		c.closeIfFree(e)
	}
}

// engineList lists the engines by pid, never nil. Precondition: mu is held.
func (e *Entry) engineList() []Engine {
	list := make([]Engine, 0, len(e.engines))
	for _, x := range e.engines {
		list = append(list, x)
	}
	slices.SortFunc(list, func(a, b Engine) int { return a.PID - b.PID })
	return list
}

// record is the entry's current record. Preconditions: mu is held, the entry is ready.
func (e *Entry) record() manifest.Entry {
	r := e.contents.Record
	r.Used = e.used
	r.Engines = nil
	for _, x := range e.engineList() {
		r.Engines = append(r.Engines, manifest.Engine(x))
	}
	return r
}

// retire takes an entry out of service. Its memory is freed when the last engine that got
// its handles has ended: a handle is a descriptor's number, and an engine that fetches the
// descriptor late would fail if it were closed. Preconditions: mu is held, the entry is
// ready.
func (c *Cache) retire(e *Entry, why string) {
	if c.entries[e.id] == e {
		delete(c.entries, e.id)
	}
	e.left = why
	c.retired[e] = true
	// It leaves the store now and not when the last engine has ended: the next process must
	// not serve it.
	names := []string{e.contents.Record.Table}
	for _, p := range e.contents.Record.Pieces {
		names = append(names, p.Name)
	}
	c.janitor.add(chore{names: names})
	c.closeIfFree(e)
}

// closeIfFree closes a retired entry that is no longer in use. Precondition: mu is held.
func (c *Cache) closeIfFree(e *Entry) {
	if !c.retired[e] || e.holds > 0 || e.waiting > 0 || len(e.engines) > 0 {
		return
	}
	delete(c.retired, e)
	c.janitor.add(chore{contents: e.contents})
}

// InUse is the error of an eviction while engines or requests use the entry.
type InUse struct {
	ID      string // of its key
	Engines []Engine
}

func (e *InUse) Error() string {
	if len(e.Engines) == 0 {
		//diag entries KEY
		// The daemon is answering an engine with this entry, or `wcache verify` reads its memory.
		// Repeat the command in a moment.
		return fmt.Sprintf("evict entry %.12s: it is being handed out or verified", e.ID)
	}
	var who []string
	for _, x := range e.Engines {
		who = append(who, x.String())
	}
	//diag entries KEY PROCESSES
	// The listed engines were given this entry and still run. End them, or evict with `--force`:
	// they go on with their memory, which stays in use until they end.
	return fmt.Sprintf("evict entry %.12s: it may still be mapped by %s", e.ID, strings.Join(who, ", "))
}

// Advice is what to do about it.
func (e *InUse) Advice() string {
	return "end the engines, or evict with --force: they keep what they have mapped"
}
