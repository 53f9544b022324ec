// SPDX-FileCopyrightText: The wcache authors
// SPDX-License-Identifier: MIT

package index

import (
	"context"
	"errors"
	"maps"
	"math"
)

// ErrClosed is the error of a look-up in a closed index.
var ErrClosed = errors.New("look up checkpoint: the index of model directories is closed")

// memory is the last answer for a hash.
type memory struct {
	hash    string
	answer  Answer
	seq     uint64         // the answer is certainly the same up to this change; 0: there is no answer
	hung    map[*root]bool // which roots were hung
	spec    spec           // nil if no directory with the hash was known yet
	lost    uint64         // the number of the last change by which a directory stopped having the hash
	waiters int
}

// maxMemory is more than the number of hashes that the engines of one machine ask for.
const maxMemory = 1000

// remember returns the memory of a hash, and makes it if there is none. Precondition: x.mu is held.
func (x *Index) remember(hash string) *memory {
	c := x.memory[hash]
	if c == nil {
		if len(x.memory) >= maxMemory {
			maps.DeleteFunc(x.memory, func(_ string, c *memory) bool { return c.waiters == 0 })
		}
		c = &memory{hash: hash}
		x.memory[hash] = c
		for f := range x.byHash[hash] {
			c.spec = f.model.spec()
			break
		}
	}
	return c
}

// Lookup gives the directories with a checkpoint hash, MD5 or SHA-256 in lower-case hex,
// as they are at the moment of the call or later. It waits for reads that may matter.
// When ctx is done, it gives what is known, and lists the rest as unsure directories and
// roots. The error is for a text that isn't a hash, or [ErrClosed].
func (x *Index) Lookup(ctx context.Context, hash string) (Answer, error) {
	if err := checkHash(hash); err != nil {
		return Answer{}, err
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	c := x.remember(hash)
	c.waiters++
	defer func() { c.waiters-- }()
	for {
		upTo, ok := x.await(ctx, c.matters)
		if x.closed {
			return Answer{}, ErrClosed
		}
		if ok && c.lost > upTo { // it may have moved to a place where it wasn't seen, see lose
			continue
		}
		x.drain()
		x.conclude(c, upTo)
		a := c.answer.clone()
		a.Gone = x.goneOf(hash)
		return a, nil
	}
}

// conclude makes an answer of what is known. Precondition: x.mu is held.
func (x *Index) conclude(c *memory, upTo uint64) {
	hung := make(map[*root]bool)
	for _, r := range x.roots {
		if h, _ := r.hung(); h {
			hung[r] = true
		}
	}
	if c.seq == x.seq && maps.Equal(c.hung, hung) {
		return
	}
	a := x.evaluate(c, upTo, hung)
	if c.answer.Version == 0 || !a.equal(&c.answer) {
		x.version++
		a.Version = x.version
		c.answer = a
	}
	c.hung, c.seq = hung, 0
	if !x.outdated(c) {
		c.seq = x.seq
	}
}

// Gone gives the directories that had a hash a short time ago. It waits for nothing, and
// is no part of an answer's version: what has gone concerns some engines only.
func (x *Index) Gone(hash string) []Gone {
	x.mu.Lock()
	defer x.mu.Unlock()
	return x.goneOf(hash)
}

// Current reports whether [Index.Lookup] would still give the answer of a version. It
// applies the changes that the kernel has reported, and waits for nothing: an unread
// change that may matter makes it false. A root that has begun to hang since counts as
// unchanged.
func (x *Index) Current(hash string, version uint64) bool {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.drain()
	c := x.memory[hash]
	switch {
	case c == nil || version == 0 || c.answer.Version != version || x.closed:
		return false
	case c.seq == x.seq:
		return true
	}
	if x.outdated(c) {
		return false
	}
	hung := make(map[*root]bool)
	for r := range c.hung {
		if h, _ := r.hung(); h {
			hung[r] = true
		}
	}
	if a := x.evaluate(c, math.MaxUint64, hung); !a.equal(&c.answer) {
		return false
	}
	c.seq = x.seq
	return true
}

// outdated reports whether an unread change may matter.
func (x *Index) outdated(c *memory) bool {
	pending, _ := x.pending(math.MaxUint64, c.matters)
	return pending || x.mountsSeen != x.mountsHandled
}

// matters reports whether a folder with changed file contents may have the hash, or may
// have had it.
func (c *memory) matters(f *folder) bool {
	return f.model != nil && (f.model.has(c.hash) || !f.model.excluded(c.spec, f.changed()...))
}

// changed lists the files whose contents have changed since they were read.
func (f *folder) changed() []map[string]struct{} {
	var list []map[string]struct{}
	for _, t := range []*task{f.task, f.reading} {
		if t != nil && len(t.files) > 0 {
			list = append(list, t.files)
		}
	}
	return list
}

// evaluate makes the answer for a hash from what is known. Folders with unread changes,
// up to a number, are unsure. Precondition: x.mu is held.
func (x *Index) evaluate(c *memory, upTo uint64, hung map[*root]bool) Answer {
	found := make(claims)
	for f := range x.byHash[c.hash] {
		found.addFolder(f, c, upTo, hung)
	}
	for f := range x.doubtful {
		found.addFolder(f, c, upTo, hung)
	}
	var roots []Root
	for _, r := range x.roots {
		for _, f := range r.batch {
			found.addFolder(f, c, upTo, hung)
		}
		for _, f := range r.queue {
			found.addFolder(f, c, upTo, hung)
		}
		s := r.now(hung[r], upTo)
		if s.State != Complete && s.State != Missing {
			roots = append(roots, Root{Path: s.Path, Added: s.Added, State: s.State, Reason: s.Reason, Since: s.Since, Whole: s.Whole})
		}
	}
	a := found.answer()
	a.Roots = roots
	a.sort()
	return a
}

// Reasons why a directory is unsure although its files were readable.
var (
	errReading = errors.New("it has changed and is being read")
	errHung    = errors.New("its file system does not answer")
)

// addFolder adds a folder that may have the hash.
func (m claims) addFolder(f *folder, c *memory, upTo uint64, hung map[*root]bool) {
	if f.dropped || f.root.removed || f.model == nil {
		return
	}
	if hung[f.root] { // nothing can be read there
		upTo = math.MaxUint64
	}
	has, unread := f.model.has(c.hash), f.unread(upTo)
	var changed []map[string]struct{}
	if unread {
		changed = f.changed()
	}
	if !has && f.model.excluded(c.spec, changed...) {
		return
	}
	cl := claim{path: f.path, links: f.pathLinks, sure: has, edition: f.model.edition}
	switch {
	case hung[f.root] && (f.blind != "" || unread):
		cl.sure, cl.err = false, errHung
	case unread:
		cl.sure, cl.err = false, errReading
	case has:
	case f.model.err != nil:
		cl.err = f.model.err.in(f.path)
	default:
		return // it has another hash
	}
	m.add(f.key, cl)
}

// unread reports whether the folder has changes, up to a number, that have not been read.
func (f *folder) unread(upTo uint64) bool {
	if f.root.polls() {
		return false
	}
	return f.task != nil && f.task.since <= upTo || f.reading != nil && f.reading.since <= upTo
}

// Model is a folder with weights.
type Model struct {
	Path  string
	Bytes int64 // the model's approximate size, from the sizes of its files
}

// Models lists the model directories, by path. It waits as Lookup does.
func (x *Index) Models(ctx context.Context) []Model {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.await(ctx, func(*folder) bool { return true })
	found := make(claims)
	sizes := make(map[string]int64)
	for _, r := range x.roots {
		for f := range r.known {
			found.add(f.key, claim{path: f.path, links: f.pathLinks, sure: true})
			sizes[f.path] = f.model.bytes()
		}
	}
	a := found.answer()
	a.sort()
	var list []Model
	for _, d := range a.Dirs {
		list = append(list, Model{Path: d.Path, Bytes: sizes[d.Path]})
	}
	return list
}
