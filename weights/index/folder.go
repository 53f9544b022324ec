// SPDX-FileCopyrightText: The wcache authors
// SPDX-License-Identifier: MIT

package index

import (
	"path/filepath"
	"slices"

	"github.com/wcache/wcache/internal/fd"
	"github.com/wcache/wcache/stamp"
)

// key tells a folder apart whatever its path, so that loops of links end. The mount
// is part of it: what is mounted below a folder is not below the same folder where
// that is bound to another place.
type key struct{ device, inode, mount uint64 }

func keyOf(s stamp.Stamp) key { return key{s.Device, s.Inode, s.Mount} }

// folder is one folder below a root. Two roots that share it have one each.
type folder struct {
	root *root
	key  key

	// The walker's own: the edge by which it is reached.
	up    *folder
	name  string
	links int    // symbolic links on the path
	moved bool   // its path is another one since the root was linked the last time
	round uint64 // the last time that the root was linked in which it was reached

	// Guarded by Index.mu; of these, the walker alone writes those above task.
	children  map[string]child  // folders that can be reached from here
	model     *model            // nil without weights
	holds     map[string][]hold // what tells of changes, by entry; routes have a name that ends with a slash
	via       map[string]string // which route an entry goes, for links
	watch     int32             // of the listing, 0 without
	had       []string          // the hashes that it had before it could not be told
	blind     string            // why the kernel doesn't tell of every change here
	problem   error             // why it could not be looked at, or not completely
	path      string            // of a model, as it is told
	pathLinks int               // symbolic links on that path
	dropped   bool              // it is not below the root any more
	task      *task             // what has to be read again
	busy      bool              // it is being read: what is known of its names may be outdated
	reading   *task             // what is being read
}

// real is the folder's path without links.
func (f *folder) real() string {
	switch c := f.up.children[f.name]; {
	case c.link || f.up == f.root.top:
		return c.real
	default:
		return filepath.Join(f.up.real(), f.name)
	}
}

// child is an entry of a folder that leads to a folder.
type child struct {
	key  key
	link bool
	real string // where it leads to, a path without links
}

// at is the path by which a walker reaches the folder.
func (f *folder) at() string {
	if f.up == nil || f.up == f.root.top {
		return f.root.path
	}
	return filepath.Join(f.up.at(), f.name)
}

// task is what has to be read again of a folder.
type task struct {
	since uint64              // the number of the first change
	whole bool                // the listing
	below bool                // and all folders below it
	names map[string]bool     // entries; true: what is below them as well
	files map[string]struct{} // files of a model of which only the contents changed
}

// wide reports whether anything may have come of it, and not only other contents of
// files that are known.
func (t *task) wide() bool { return t.whole || t.below || len(t.names) > 0 }

// hold is a watch on which an entry depends: on one name in a watched folder, or ""
// for the watched file or folder itself.
type hold struct {
	watch int32
	on    string
}

// watch is an inode that the kernel watches, and what depends on it.
type watch struct {
	file    bool                        // no folder
	folders map[*folder]struct{}        // those whose listing it is, one a root
	users   map[string]map[ref]struct{} // by name in it, "" for itself
	readers map[*folder]struct{}        // those that are being read and need it
}

// ref is an entry of a folder.
type ref struct {
	folder *folder
	entry  string
}

// depend notes that an entry depends on a watch. Precondition: x.mu is held.
func (x *Index) depend(r ref, h hold, isFile bool) {
	w := x.watched(h.watch, isFile)
	if w.users[h.on] == nil {
		if w.users == nil {
			w.users = make(map[string]map[ref]struct{})
		}
		w.users[h.on] = make(map[ref]struct{})
	}
	w.users[h.on][r] = struct{}{}
}

func (x *Index) watched(wd int32, isFile bool) *watch {
	w := x.watches[wd]
	if w == nil {
		w = &watch{file: isFile}
		x.watches[wd] = w
	}
	return w
}

// release undoes depend. Precondition: x.mu is held. The watches that nothing depends
// on any more have to be ended without the lock: see [Index.unwatch].
func (x *Index) release(r ref, h hold) {
	w := x.watches[h.watch]
	if w == nil {
		return
	}
	delete(w.users[h.on], r)
	if len(w.users[h.on]) == 0 {
		delete(w.users, h.on)
	}
	x.forget(h.watch, w)
}

// forget drops a watch that nothing depends on.
func (x *Index) forget(wd int32, w *watch) {
	if len(w.users) == 0 && len(w.folders) == 0 && len(w.readers) == 0 {
		delete(x.watches, wd)
		x.unused = append(x.unused, wd)
	}
}

// watch has the kernel watch an open file or folder, for a folder that is being read.
// The same inode has the same number, so that a watch may be ended by somebody who
// needs it no more just when it is handed out again: then it is made anew, or the
// folder is read again.
func (x *Index) watch(f *fd.FD, mask uint32, reader *folder) (int32, error) {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.adding++
	defer func() {
		if x.adding--; x.adding == 0 {
			clear(x.died)
		}
	}()
	for {
		x.mu.Unlock()
		wd, err := x.notes.watch(f, mask)
		x.mu.Lock()
		if err != nil {
			return 0, err
		}
		if x.died[wd] {
			continue
		}
		w := x.watched(wd, mask == fileMask)
		if w.readers == nil {
			w.readers = make(map[*folder]struct{})
		}
		w.readers[reader] = struct{}{}
		return wd, nil
	}
}

// letGo ends that a folder which was read needs a watch; what depends on it has said so
// meanwhile.
func (x *Index) letGo(wd int32, reader *folder) {
	if w := x.watches[wd]; w != nil {
		delete(w.readers, reader)
		x.forget(wd, w)
	}
}

// unwatch ends watches that nothing depends on.
func (x *Index) unwatch() {
	x.mu.Lock()
	unused := slices.DeleteFunc(x.unused, func(wd int32) bool { return x.watches[wd] != nil })
	x.unused = nil
	x.mu.Unlock()
	for _, wd := range unused {
		x.notes.unwatch(wd)
	}
}
