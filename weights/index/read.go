// SPDX-FileCopyrightText: The wcache authors
// SPDX-License-Identifier: MIT

package index

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/wcache/wcache/internal/fd"
	"github.com/wcache/wcache/stamp"
	"github.com/wcache/wcache/weights"
)

// maxFiles is how many links and files with names that matter one folder may have.
const maxFiles = 100_000

// reading is the state of reading one folder.
type reading struct {
	b       *batch
	f       *folder
	below   bool                // all folders below have to be read as well
	whole   bool                // read the listing, and not only some names
	names   map[string]bool     // entries and routes to look at; true: what they lead to as well
	dirty   map[string]struct{} // files with changed contents, whatever their stamps say
	here    place               // the folder
	slash   place               // the folder "/", once it is needed
	opened  []*fd.FD            // to be closed at the end
	watches []int32             // to be given up at the end, unless an entry depends on them
	routes  map[string]step     // where the directory part of links leads to
	located map[string]located  // files that have a part in a model
	looked  map[string]struct{} // entries that were looked at
	before  *model              // the model known before, or saved by an earlier process
	findings
}

// findings are the results that a reading publishes.
type findings struct {
	children map[string]child
	via      map[string]string
	holds    map[string][]hold // of entries that were looked at
	model    *model
	blind    string
	problem  error
	cut      bool // there are more files than the limit
}

// located is a file and the folder that contains its last name.
type located struct {
	in   place
	base string
	info stamp.Info
	text string // the target text of a link
	err  error
}

// read reads a folder, and queues the folders below that have to be read too.
func (b *batch) read(f *folder, below bool) {
	rd := &reading{b: b, f: f, below: below, whole: true, looked: make(map[string]struct{}), routes: make(map[string]step), located: make(map[string]located)}
	defer rd.close()
	rd.holds = make(map[string][]hold)
	if f == b.r.top {
		rd.way()
		return
	}
	dir, err := rd.enter()
	if err != nil {
		b.missed(f, err)
		return
	}
	t := f.reading
	if t != nil {
		rd.names, rd.dirty = t.names, t.files
		rd.whole = t.whole || below || f.problem != nil || f.children == nil
	}
	rd.here = place{dir: dir, real: f.real()}
	rd.look(&rd.here)
	rd.begin()
	switch {
	case rd.here.kind == pseudo:
		rd.children = make(map[string]child)
	case rd.whole:
		rd.list()
	default:
		rd.some(t)
	}
	rd.publish()
}

// enter opens the folder, if its path still leads to it.
func (rd *reading) enter() (*fd.FD, error) {
	sys := rd.b.r.sys
	dir, err := sys.open(unix.AT_FDCWD, rd.f.at(), unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NONBLOCK)
	if err != nil {
		return nil, err
	}
	rd.opened = append(rd.opened, dir)
	info, err := sys.stat(dir.Int(), "")
	if err != nil {
		return nil, err
	}
	k, want := keyOf(info.Stamp), rd.f.key
	if k == want {
		return dir, nil
	}
	if on, err := sys.kind(dir.Int()); err == nil && on == foreign && k.device == want.device && k.mount == want.mount {
		return dir, nil // some file systems give files other numbers at each look
	}
	return nil, errMoved
}

var errMoved = errors.New("it was moved while it was being read")

func (rd *reading) close() {
	x := rd.b.r.x
	x.mu.Lock()
	for _, wd := range rd.watches {
		x.letGo(wd, rd.f)
	}
	x.mu.Unlock()
	for _, f := range rd.opened {
		rd.b.r.sys.close(f)
	}
}

// way finds the root itself, as if a link led to it.
func (rd *reading) way() {
	r := rd.b.r
	rd.children = make(map[string]child)
	s := rd.trail("", place{}, r.path)
	switch t := rd.f.reading; {
	case s.err != nil:
		rd.problem = s.err
	case !s.info.Mode.IsDir():
		rd.problem = unix.ENOTDIR
	default:
		rd.child("", s, s.real != r.path, t != nil)
	}
	rd.reached(s.real)
	rd.publish()
}

// list reads every entry.
func (rd *reading) list() {
	rd.children = make(map[string]child)
	type entry struct {
		name string
		kind byte
	}
	var entries []entry
	model := false
	err := rd.b.r.sys.list(rd.here.dir.Int(), func(name string, kind byte) bool {
		isWeights := weights.IsWeights(name)
		switch {
		case kind == unix.DT_DIR && !isWeights && rd.passedOver(name):
			return true
		case kind != unix.DT_DIR && kind != unix.DT_LNK && kind != unix.DT_UNKNOWN && !weights.Decides(name):
			return true
		}
		model = model || isWeights
		entries = append(entries, entry{name, kind})
		if rd.cut = len(entries) >= maxFiles+rd.b.r.x.o.MaxDirs; rd.cut {
			rd.problem = fmt.Errorf("it has over %d entries, the rest is not looked at", len(entries))
		}
		return !rd.cut
	})
	if err != nil {
		rd.problem = err
	}
	for _, e := range entries {
		if model || e.kind == unix.DT_DIR || e.kind == unix.DT_LNK || e.kind == unix.DT_UNKNOWN {
			rd.entry(e.name, e.kind, model)
		}
	}
	if model {
		rd.makeModel() // everything is located
	}
}

// some reads the entries of a task again, and keeps the rest.
func (rd *reading) some(t *task) {
	f := rd.f
	rd.children, rd.via = maps.Clone(f.children), maps.Clone(f.via)
	names := make(map[string]struct{})
	for name := range t.files {
		names[name] = struct{}{}
	}
	for name := range t.names {
		if !strings.HasSuffix(name, "/") {
			names[name] = struct{}{}
			continue
		}
		rd.looked[name] = struct{}{}
		for entry, route := range f.via {
			if route == name {
				names[entry] = struct{}{}
			}
		}
	}
	for name := range names {
		delete(rd.children, name)
		delete(rd.via, name)
		rd.entry(name, unix.DT_UNKNOWN, f.model != nil)
		if f.model == nil && weights.IsWeights(name) && rd.has(name) { // its other files count now, too
			rd.again()
			return
		}
	}
	if f.model == nil {
		return
	}
	if !rd.makeModel() || rd.model == nil { // without weights its other files don't count
		rd.again()
	}
}

// again reads all entries instead.
func (rd *reading) again() {
	rd.whole, rd.via = true, nil
	clear(rd.located)
	rd.list()
}

func (rd *reading) has(name string) bool {
	_, err := rd.b.r.sys.stat(rd.here.dir.Int(), name)
	return err == nil
}

// entry reads one entry. model tells whether files count.
func (rd *reading) entry(name string, kind byte, model bool) {
	rd.looked[name] = struct{}{}
	dir := rd.here.dir.Int()
	var s step
	var err error
	if kind != unix.DT_LNK {
		s.info, err = rd.b.r.sys.stat(dir, name)
		if errors.Is(err, fs.ErrNotExist) {
			return
		}
		if err != nil {
			rd.problem = err
			if model && weights.Decides(name) {
				rd.located[name] = located{err: err}
			}
			return
		}
	}
	at, base := rd.here, name
	link := kind == unix.DT_LNK || s.info.Mode.Type() == fs.ModeSymlink
	if link {
		s = rd.link(name)
		at, base = s.at, s.base
		if s.vanished {
			return
		}
		if s.err != nil && !nowhere(s.err) {
			rd.problem = fmt.Errorf("%s leads to %q: %w", name, s.text, s.err)
		}
	}
	if s.err == nil && s.info.Mode.IsDir() && !rd.passedOver(name) && !rd.lostAndFound(name, s) {
		// The folder may have been replaced by one with the same number.
		rd.child(name, s, link, rd.names[name] || rd.names[rd.via[name]])
	}
	if model && weights.Decides(name) {
		rd.located[name] = located{at, base, s.info, s.text, s.err}
	}
}

// nowhere reports whether an error of following a link means that the target certainly
// doesn't exist.
func nowhere(err error) bool {
	for _, e := range []error{unix.ENOENT, unix.ENOTDIR, unix.ELOOP, unix.ENAMETOOLONG} {
		if errors.Is(err, e) {
			return true
		}
	}
	return false
}

// passedOver reports whether a folder is skipped by its name: what Hugging Face caches
// hold besides snapshots of models.
func (rd *reading) passedOver(name string) bool {
	if strings.HasPrefix(name, "datasets--") || strings.HasPrefix(name, "spaces--") {
		return true
	}
	return (name == "blobs" || name == "refs") && strings.HasPrefix(filepath.Base(rd.f.at()), "models--")
}

// lostAndFound reports whether a folder is fsck's own.
func (rd *reading) lostAndFound(name string, s step) bool {
	if name != "lost+found" || s.info.UID != 0 || s.info.Mode.Perm()&0o077 != 0 {
		return false
	}
	top, err := rd.b.r.sys.mountTop(rd.here.dir.Int())
	return err == nil && top
}

// child notes a folder that an entry leads to, and queues it for reading if it is new.
func (rd *reading) child(name string, s step, link, below bool) {
	r, f := rd.b.r, rd.f
	if r.single && f != r.top {
		return
	}
	c := child{key: keyOf(s.info.Stamp), link: link, real: s.real}
	to := r.folders[c.key]
	old, had := f.children[name]
	switch {
	case to == nil && len(r.folders) >= r.x.o.MaxDirs:
		rd.problem = fmt.Errorf("the root has over %d folders, the rest is not looked at; name the model directories instead", r.x.o.MaxDirs)
		return
	case to == nil:
		to = &folder{root: r, key: c.key, up: f, name: name, links: f.links}
		if link {
			to.links++
		}
		r.folders[c.key] = to
		rd.b.push(to, false)
	case !had || old != c || below || rd.below:
		rd.b.push(to, true)
	case to.problem != nil:
		rd.b.push(to, false)
	}
	rd.children[name] = c
}
