// SPDX-FileCopyrightText: The wcache authors
// SPDX-License-Identifier: MIT

package index

import (
	"path/filepath"
	"slices"

	"github.com/wcache/wcache/internal/fd"
	"github.com/wcache/wcache/stamp"
)

// key identifies a folder whatever its path, so that loops of links end. The mount is
// part of it: a file system mounted below a folder isn't visible below a bind mount of
// the same folder.
type key struct{ device, inode, mount uint64 }

func keyOf(s stamp.Stamp) key { return key{s.Device, s.Inode, s.Mount} }

// folder is one folder below a root. Two roots that share it have one each.
type folder struct {
	root *root
	key  key

	// Only the walker uses these: the edge by which it is reached.
	up    *folder
	name  string
	links int    // symbolic links on the path
	moved bool   // its path has changed since the root was last linked
	round uint64 // the last linking of the root that reached it

	// Guarded by Index.mu; only the walker writes the fields above task.
	children  map[string]child  // folders that can be reached from here
	model     *model            // nil without weights
	holds     map[string][]hold // the watches of each entry; the names of routes end with a slash
	via       map[string]string // the route that a link takes, by entry
	watch     int32             // of the listing, 0 without
	had       []string          // the last known hashes, while they can't be determined
	blind     string            // why the kernel doesn't report every change here
	problem   error             // why it could not be read completely
	path      string            // of a model, as answers give it
	pathLinks int               // symbolic links on that path
	dropped   bool              // it is not below the root any more
	task      *task             // what has to be read again
	busy      bool              // it is being read, so its known names may be outdated
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

// child is an entry of a folder that leads to another folder.
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

// task says what has to be read again in a folder.
type task struct {
	since uint64              // the number of the first change
	whole bool                // the listing
	below bool                // and all folders below it
	names map[string]bool     // entries; true: with all below them
	files map[string]struct{} // files of a model whose contents alone changed
}

// wide reports whether names may have changed too, and not only the contents of known
// files.
func (t *task) wide() bool { return t.whole || t.below || len(t.names) > 0 }

// hold is a watch on which an entry depends: on one name in a watched folder, or ""
// for the watched file or folder itself.
type hold struct {
	watch int32
	on    string
}

// watch is an inode that the kernel watches, and what depends on it.
type watch struct {
	file    bool                        // a file, not a folder
	folders map[*folder]struct{}        // the folders whose listing it watches, one per root
	users   map[string]map[ref]struct{} // by name in it, "" for itself
	readers map[*folder]struct{}        // folders that are being read and need it
}

// ref is an entry of a folder.
type ref struct {
	folder *folder
	entry  string
}

// depend records that an entry depends on a watch. Precondition: x.mu is held.
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

// release undoes depend. Precondition: x.mu is held. Watches that nothing depends on
// any more have to be ended without the lock: see [Index.unwatch].
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

// watch asks the kernel to watch an open file or folder, for a folder that is being
// read. The same inode has the same number, so another goroutine may end the watch as
// unneeded while it is handed out again: then watch makes it anew, or the folder is read
// again.
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

// letGo drops a read folder's claim to a watch; entries that depend on the watch have
// recorded that by now.
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
