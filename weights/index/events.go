// SPDX-FileCopyrightText: The wcache authors
// SPDX-License-Identifier: MIT

package index

import (
	"time"

	"golang.org/x/sys/unix"
)

// drain applies every change that the kernel has reported. It does not wait, and reads
// no file system. Precondition: x.mu is held.
func (x *Index) drain() {
	if x.closed {
		return
	}
	if x.notes.drain(x.apply) {
		x.seq++
		x.mountsSeen++
	}
}

// apply notes what an event requires to be read again.
func (x *Index) apply(e event) {
	if e.mask&unix.IN_Q_OVERFLOW != 0 { // the lost events can be about anything
		for _, r := range x.roots {
			x.markWhole(r.top, true)
		}
		return
	}
	w := x.watches[e.watch]
	if e.mask&unix.IN_IGNORED != 0 && x.adding > 0 {
		x.died[e.watch] = true
	}
	if w == nil {
		return // its new meaning has not been read yet
	}
	if e.mask&unix.IN_IGNORED != 0 {
		delete(x.watches, e.watch)
		for f := range w.readers {
			x.markWhole(f, false)
		}
		for f := range w.folders {
			x.markWhole(f, false)
		}
		for _, refs := range w.users {
			x.markUsers(refs, w.file)
		}
		return
	}
	for f := range w.folders {
		x.applyToFolder(f, e)
	}
	x.markUsers(w.users[e.name], w.file)
}

// markUsers marks entries that depend on the event's subject: a file's contents, or a
// name on the path that the entry leads to.
func (x *Index) markUsers(refs map[ref]struct{}, file bool) {
	for r := range refs {
		if file {
			x.markFile(r.folder, r.entry)
		} else {
			x.markName(r.folder, r.entry, true)
		}
	}
}

// applyToFolder notes what an event says about a folder's listing.
func (x *Index) applyToFolder(f *folder, e event) {
	if e.name == "" {
		if e.mask&unix.IN_ATTRIB != 0 { // whether it is readable may have changed
			x.markWhole(f, false)
		}
		return // the watch of the parent reports a move or removal
	}
	_, isChild := f.children[e.name]
	_, isVia := f.via[e.name]
	isFile := f.model != nil && f.model.files[e.name] != nil
	switch {
	case e.mask&(unix.IN_CREATE|unix.IN_MOVED_TO) != 0: // anything, such as a link to a folder
		x.markName(f, e.name, true)
	case f.busy || isChild || isVia || isFile:
		x.markName(f, e.name, e.mask&unix.IN_ATTRIB == 0)
	}
}

func (x *Index) markWhole(f *folder, below bool) {
	if t := x.mark(f); t != nil && (!t.whole || below && !t.below) {
		t.whole, t.below = true, t.below || below
		x.seq++
	}
}

// maxNames is how many entries are read one by one; above it, listing is cheaper.
const maxNames = 256

func (x *Index) markName(f *folder, name string, below bool) {
	t := x.mark(f)
	if t == nil {
		return
	}
	if was, ok := t.names[name]; ok && (was || !below) {
		return
	}
	if t.names == nil {
		t.names = make(map[string]bool)
	}
	t.names[name] = below
	if len(t.names) > maxNames {
		t.whole, t.below = true, true
	}
	x.seq++
}

func (x *Index) markFile(f *folder, name string) {
	t := x.mark(f)
	if t == nil {
		return
	}
	if _, ok := t.files[name]; ok {
		return
	}
	if t.files == nil {
		t.files = make(map[string]struct{})
	}
	t.files[name] = struct{}{}
	x.seq++
}

// mark returns the task of a folder, and makes it if there is none. A new task's first
// change gets the next number.
func (x *Index) mark(f *folder) *task {
	if f.dropped || f.root.removed {
		return nil
	}
	if f.task == nil {
		f.task = &task{since: x.seq + 1}
		if len(f.root.queue) == 0 {
			f.root.marked = time.Now()
		}
		f.root.queue = append(f.root.queue, f)
		f.root.wake()
	}
	return f.task
}

// listen applies changes soon after they happen, so that little is left to do for a
// request. It runs until the index is closed.
func (x *Index) listen() {
	defer close(x.listening)
	for x.notes.err == nil {
		x.notes.wait()
		x.mu.Lock()
		x.drain()
		closed, mounted := x.closed, x.mountsSeen != x.mountsHandled
		x.mu.Unlock()
		if closed {
			return
		}
		if mounted {
			x.remount()
		}
		time.Sleep(quiet)
	}
}

// quiet is how long changes gather before they are applied together. The kernel's queue
// holds 16,384 of them by default.
const quiet = 20 * time.Millisecond

// remount finds out which roots a change of mounts concerns.
func (x *Index) remount() {
	x.mu.Lock()
	seen := x.mountsSeen
	x.mu.Unlock()
	now, err := readMounts()
	x.mu.Lock()
	defer x.mu.Unlock()
	points := x.mounts.changed(now)
	for _, r := range x.roots {
		if err != nil || r.concerns(points) {
			x.markWhole(r.top, true)
		}
	}
	if err == nil {
		x.mounts = now
	}
	x.mountsHandled = seen
	x.broadcast()
}
