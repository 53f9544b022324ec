// SPDX-FileCopyrightText: The wcache authors
// SPDX-License-Identifier: MIT

// Package index knows model directories by checkpoint hash. It updates itself beside the
// requests: one goroutine per root walks the folders below, reads the headers that the
// hash covers, and asks the kernel to report changes (inotify(7)). A request applies
// these changes before it trusts what is known, and waits only for what may matter to
// its hash. A file system that does not answer holds up the walker of its own root, and
// nothing else.
//
// Several directories may share a hash and hold other weights, so an [Answer] has all
// of them, and says what could not be looked at.
//
// What the index can't see at once: changes by other machines and through FUSE, for
// which it walks the root periodically, and writes through a shared mapping, which show
// when the file is closed.
package index

import (
	"context"
	"crypto/md5"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"math"
	"path/filepath"
	"slices"
	"sync"
	"time"
)

// Options of an [Index]. The comments give the meaning of zero values.
type Options struct {
	MaxDirs   int           // folders below one root; 200,000
	HungAfter time.Duration // a system call that takes longer makes its root hung; 3 s
	PollEvery time.Duration // least time between two walks of the unwatched parts; 10 s
	WalkTime  time.Duration // for one walk, the next one reads the rest; 10 min
	Gather    time.Duration // how long changes gather before a folder is read again, unless a request waits; 50 ms
	// Once is for listing names only, with [Index.Models]: no headers are read, each root
	// is walked once, and nothing is watched.
	Once bool

	system system // nil: the real one
	// addWatch stands in for inotify_add_watch in tests.
	addWatch func(queue int, path string, mask uint32) (int, error)
}

// Index knows the model directories below its roots. It is safe for concurrent use.
// Its owner has to close it.
type Index struct {
	o         Options
	notes     *notifier
	listening chan struct{} // closed when listen has ended
	stop      chan struct{} // closed by Close
	large     chan struct{} // slots for large shard indexes

	// mu guards the following fields and the fields of roots and folders that say so. No
	// system call that reaches a file system is made under it. It is the only lock.
	mu            sync.Mutex
	closed        bool
	seq           uint64 // number of the last change of anything
	version       uint64 // of the last answer that differed from the one before
	edition       uint64
	waiting       int           // requests that wait for walkers
	changed       chan struct{} // closed when something happens that they may wait for
	rooted        bool          // SetRoots was called
	roots         []*root
	ended         map[string]*root // removed roots whose walker has not ended yet
	watches       map[int32]*watch
	unused        []int32        // watches to end
	adding        int            // calls that make watches
	died          map[int32]bool // watches that ended meanwhile
	byHash        map[string]map[*folder]struct{}
	doubtful      map[*folder]struct{} // folders with weights and without a hash
	memory        map[string]*memory   // by hash
	gone          map[string][]Gone    // by hash, the latest last
	goneLimit     int                  // number of hashes from which old entries are forgotten
	hints         map[string]*model    // models that were loaded and not walked yet, by directory
	mounts        mounts
	mountsSeen    uint64 // number of changes
	mountsHandled uint64
}

// New makes an index without roots. It starts one goroutine, and one more per root.
func New(o Options) *Index {
	setDefault(&o.MaxDirs, 200_000)
	setDefault(&o.HungAfter, 3*time.Second)
	setDefault(&o.PollEvery, 10*time.Second)
	setDefault(&o.WalkTime, 10*time.Minute)
	setDefault(&o.Gather, 50*time.Millisecond)
	if o.system == nil {
		o.system = linux{}
	}
	x := &Index{
		o: o, listening: make(chan struct{}), stop: make(chan struct{}), large: make(chan struct{}, largeSlots), changed: make(chan struct{}),
		ended: make(map[string]*root), watches: make(map[int32]*watch), died: make(map[int32]bool), byHash: make(map[string]map[*folder]struct{}),
		doubtful: make(map[*folder]struct{}), memory: make(map[string]*memory), gone: make(map[string][]Gone), hints: make(map[string]*model),
	}
	if o.Once {
		x.notes = &notifier{err: errors.New("it is walked once")}
		close(x.listening)
		return x
	}
	x.notes = newNotifier()
	if o.addWatch != nil {
		x.notes.add = o.addWatch
	}
	x.mounts, _ = readMounts() // without it, each change of mounts concerns every root
	go x.listen()
	return x
}

func setDefault[T comparable](v *T, otherwise T) {
	var zero T
	if *v == zero {
		*v = otherwise
	}
}

// Close ends the index. It waits for the walkers, except for those whose file system
// does not answer: they end when it does.
func (x *Index) Close() {
	x.mu.Lock()
	if x.closed {
		x.mu.Unlock()
		return
	}
	x.closed = true
	close(x.stop)
	roots := slices.Clone(x.roots)
	for _, r := range x.ended {
		roots = append(roots, r)
	}
	x.mu.Unlock()
	x.notes.ring()
	<-x.listening
	for _, r := range roots {
		r.await()
	}
	x.notes.close()
}

// await waits until the walker has ended, or hangs.
func (r *root) await() {
	for {
		hung, left := r.hung()
		if hung {
			return
		}
		select {
		case <-r.done:
			return
		case <-time.After(left + 10*time.Millisecond):
		}
	}
}

// SetRoots replaces the roots: model directories, folders of them, or Hugging Face
// caches. It does not wait for them to be walked.
func (x *Index) SetRoots(paths []string) {
	var clean []string
	for _, p := range paths {
		if p = absolute(p); !slices.Contains(clean, p) {
			clean = append(clean, p)
		}
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.closed {
		return
	}
	x.rooted = true
	var have []string
	for _, r := range slices.Clone(x.roots) {
		switch {
		case r.single:
		case slices.Contains(clean, r.path):
			have = append(have, r.path)
		default:
			x.removeRoot(r)
		}
	}
	for _, p := range clean {
		if !slices.Contains(have, p) {
			x.startRoot(p, false)
		}
	}
	x.seq++
	x.broadcast()
}

// Add makes a directory outside of all roots known; a goroutine reads it. The index
// forgets the directory when it is gone.
func (x *Index) Add(dir string) {
	dir = absolute(dir)
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.closed || slices.ContainsFunc(x.roots, func(r *root) bool { return r.single && r.path == dir }) {
		return
	}
	x.startRoot(dir, true)
}

// startRoot starts to walk a root. If a root was removed while its walker hung, and is
// back, that walker goes on with it. Precondition: x.mu is held.
func (x *Index) startRoot(path string, single bool) {
	r := x.ended[rootName(path, single)]
	if r != nil {
		delete(x.ended, rootName(path, single))
		r.removed = false
		r.walked = false
		x.roots = append(x.roots, r)
		x.markWhole(r.top, true)
		return
	}
	r = x.newRoot(path, single)
	x.roots = append(x.roots, r)
	go r.run()
}

func rootName(path string, single bool) string { return fmt.Sprint(single, path) }

func (x *Index) removeRoot(r *root) {
	for f := range r.known { // its walker forgets them later
		x.leave(f.path, f.model.hashes())
	}
	r.removed = true
	x.roots = slices.DeleteFunc(x.roots, func(o *root) bool { return o == r })
	x.ended[rootName(r.path, r.single)] = r
	x.seq++
	r.wake()
}

// absolute makes a path absolute, or at least clean if the working directory doesn't
// exist any more.
func absolute(path string) string {
	if abs, err := filepath.Abs(path); err == nil {
		return abs
	}
	return filepath.Clean(path)
}

// broadcast wakes all goroutines that wait for walkers. Precondition: x.mu is held.
func (x *Index) broadcast() {
	if x.waiting > 0 {
		close(x.changed)
		x.changed = make(chan struct{})
	}
}

// await waits until all changes up to now are known, as far as they matter and their
// file systems answer, or until ctx is done. It returns the number of the last of these
// changes, and false if ctx was done first. It unlocks x.mu while it waits.
// Precondition: x.mu is held.
func (x *Index) await(ctx context.Context, matters func(*folder) bool) (upTo uint64, ok bool) {
	x.waiting++
	defer func() { x.waiting-- }()
	x.drain()
	mounts := x.mountsSeen
	upTo = x.seq
	for {
		pending, again := x.pending(upTo, matters)
		if mounts > x.mountsHandled {
			pending = true
		} else if mounts > 0 { // their effects count
			mounts = 0
			upTo = x.seq
			continue
		}
		if !pending || x.closed {
			return upTo, !x.closed
		}
		for _, r := range x.roots {
			if len(r.queue) > 0 {
				r.wake()
			}
		}
		if !x.pause(ctx, again) {
			return upTo, false
		}
	}
}

// pause waits until something has changed that a caller may wait for, at most for limit,
// and reports whether ctx still goes on.
func (x *Index) pause(ctx context.Context, limit time.Duration) bool {
	changed := x.changed
	x.mu.Unlock()
	defer x.mu.Lock()
	timer := time.NewTimer(limit)
	defer timer.Stop()
	select {
	case <-changed:
	case <-timer.C:
	case <-x.stop:
	case <-ctx.Done():
		return false
	}
	return true
}

// pending reports whether a walker has work that matters, and after which time the caller
// has to ask again because a walker may hang by then. Precondition: x.mu is held.
func (x *Index) pending(upTo uint64, matters func(*folder) bool) (pending bool, again time.Duration) {
	again = math.MaxInt64
	for _, r := range x.roots {
		hung, left := r.hung()
		if hung || !r.busy(upTo, matters) {
			continue
		}
		pending = true
		if left > 0 {
			again = min(again, left)
		} else {
			again = min(again, x.o.HungAfter) // a call may begin at any moment
		}
	}
	return pending, again
}

// polls reports whether what is known of a root is as old as its last walk. The kernel
// doesn't report its changes, so nothing waits for the next walk, and if that walk hangs,
// what is known stays.
func (r *root) polls() bool { return r.walked && r.state.Polled != "" }

// busy reports whether the root has tasks that matter, for changes up to a number.
func (r *root) busy(upTo uint64, matters func(*folder) bool) bool {
	if r.polls() {
		return false
	}
	for _, f := range r.batch {
		if t := f.reading; t != nil && t.since <= upTo && (t.wide() || matters(f)) {
			return true
		}
	}
	for _, f := range r.queue {
		if t := f.task; t != nil && t.since <= upTo && (t.wide() || matters(f)) {
			return true
		}
	}
	return false
}

// Roots gives the state of each root, by path.
func (x *Index) Roots() []Root {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.drain()
	var list []Root
	for _, r := range x.roots {
		hung, _ := r.hung()
		s := r.now(hung, x.seq)
		s.Models = len(r.known)
		list = append(list, s)
	}
	slices.SortFunc(list, func(a, b Root) int {
		if a.Path < b.Path {
			return -1
		}
		return 1
	})
	return list
}

// now is a root's state after the changes up to a number. Precondition: x.mu is held.
func (r *root) now(hung bool, upTo uint64) Root {
	s := r.state
	s.Path, s.Added = r.path, r.single
	switch {
	case hung:
		s.Whole = r.walked && s.State == Complete
		s.State, s.Reason, s.Since = Hung, "its file system does not answer", r.sys.since()
	case !r.walked || r.busy(upTo, func(*folder) bool { return false }):
		s.State, s.Reason = Searching, ""
	}
	return s
}

// checkHash refuses a text that can't be a checkpoint hash: MD5 or SHA-256 in lower-case hex.
func checkHash(hash string) error {
	b, err := hex.DecodeString(hash)
	if err != nil || len(b) != md5.Size && len(b) != sha256.Size || hex.EncodeToString(b) != hash {
		return fmt.Errorf("look up checkpoint: %q is not a hash of 32 or 64 hexadecimal digits in lower case", hash)
	}
	return nil
}
