// SPDX-FileCopyrightText: The wcache authors
// SPDX-License-Identifier: MIT

package index

import (
	"errors"
	"fmt"
	"io/fs"
	"math"
	"slices"
	"time"
)

// root is a root and its walker: one goroutine. Only the walker makes system calls on the
// file systems below the root.
type root struct {
	x      *Index
	path   string // absolute and clean
	single bool   // it is only this folder, given to Index.Add
	sys    *timed
	kick   chan struct{} // the walker has work
	done   chan struct{} // closed when the walker has ended

	// Only the walker uses these.
	top     *folder // stands for the path to the root: its only entry, "", is the root
	folders map[key]*folder
	round   uint64
	buf     []byte
	poll    *batch // a periodic walk in parts, because the kernel doesn't report every change
	pollAt  time.Time
	took    time.Duration        // of the last full walk
	last    time.Duration        // of the last partial walk
	bad     map[*folder]struct{} // folders with a problem
	blind   map[*folder]struct{} // folders whose changes the kernel doesn't report completely

	// Guarded by Index.mu.
	removed bool
	queue   []*folder            // folders with a task
	marked  time.Time            // when the first of them got it
	batch   []*folder            // folders whose tasks are being done
	walked  bool                 // the first walk has ended
	real    string               // its path without links, once it is known
	reach   map[string]struct{}  // its path, and the targets of links below it, without links
	state   Root                 // every state except hung and searching
	known   map[*folder]struct{} // folders with weights
}

func (x *Index) newRoot(path string, single bool) *root {
	r := &root{
		x: x, path: path, single: single, kick: make(chan struct{}, 1), done: make(chan struct{}),
		folders: make(map[key]*folder), bad: make(map[*folder]struct{}), blind: make(map[*folder]struct{}), known: make(map[*folder]struct{}),
		reach: make(map[string]struct{}), buf: make([]byte, 64<<10),
	}
	r.sys = &timed{system: x.o.system, limit: x.o.HungAfter, base: time.Now(), late: func() {
		x.mu.Lock()
		defer x.mu.Unlock()
		x.seq++
		x.broadcast()
	}}
	r.top = &folder{root: r}
	x.markWhole(r.top, true)
	return r
}

// wake tells the walker to look for work. It does not wait.
func (r *root) wake() {
	select {
	case r.kick <- struct{}{}:
	default:
	}
}

// hung reports whether a system call has taken too long. If not, left is how long the
// current call may still take; 0 between calls.
func (r *root) hung() (hung bool, left time.Duration) {
	since := r.sys.since()
	if since.IsZero() {
		return false, 0
	}
	left = r.x.o.HungAfter - time.Since(since)
	return left <= 0, max(left, 0)
}

// run walks until the root is removed or the index closed.
func (r *root) run() {
	defer close(r.done)
	timer := time.NewTimer(math.MaxInt64)
	defer timer.Stop()
	for {
		tasks, wait, ok := r.next()
		switch {
		case !ok:
			if r.end() {
				return
			}
			continue
		case tasks != nil:
			r.walk(tasks)
			continue
		case r.poll != nil:
			if r.poll.step(); len(r.poll.stack) == 0 && !r.poll.find() {
				b := r.poll
				r.poll = nil
				b.finish()
			}
			continue
		}
		timer.Reset(wait)
		select {
		case <-r.kick:
		case <-timer.C:
			if !r.pollAt.IsZero() && !time.Now().Before(r.pollAt) {
				r.startPoll()
			}
		case <-r.x.stop:
		}
	}
}

// next takes the tasks that are due, or says how long to wait. Changes gather for a
// while, unless a request waits for their result.
func (r *root) next() (tasks []*folder, wait time.Duration, ok bool) {
	x := r.x
	x.mu.Lock()
	defer x.mu.Unlock()
	if r.removed || x.closed {
		return nil, 0, false
	}
	r.queue = slices.DeleteFunc(r.queue, func(f *folder) bool { return f.dropped })
	wait = math.MaxInt64
	if len(r.queue) > 0 {
		wait = max(x.o.Gather, min(pollShare*r.last, x.o.PollEvery)) - time.Since(r.marked)
		if x.waiting > 0 || !r.walked || wait <= 0 {
			for _, f := range r.queue {
				f.reading, f.task = f.task, nil
			}
			r.batch, r.queue = r.queue, nil
			return r.batch, 0, true
		}
	}
	if r.poll == nil && !r.pollAt.IsZero() {
		wait = min(wait, max(time.Until(r.pollAt), 0))
	}
	return nil, wait, true
}

// walk does tasks, and everything that they lead to.
func (r *root) walk(tasks []*folder) {
	b := r.newBatch()
	for _, f := range slices.Backward(tasks) {
		b.push(f, f.reading.below)
	}
	for (len(b.stack) > 0 || b.find()) && !r.over() {
		b.step()
		if time.Now().After(b.end) {
			b.giveUp()
		}
	}
	b.finish()
}

// over reports whether the root isn't wanted any more.
func (r *root) over() bool {
	r.x.mu.Lock()
	defer r.x.mu.Unlock()
	return r.removed || r.x.closed
}

// startPoll begins to read again everything whose changes the kernel does not report.
func (r *root) startPoll() {
	r.pollAt = time.Time{}
	r.poll = r.newBatch()
	r.poll.full = true
	for _, set := range []map[*folder]struct{}{r.bad, r.blind} {
		for f := range set {
			r.poll.push(f, false)
		}
	}
	if len(r.poll.stack) == 0 {
		r.poll = nil
	}
}

// pollShare limits the walks of a root to this part of the time while no request waits.
const pollShare = 20

// summary is the root's state, without the fields that change by themselves. anew tells
// that the set of blind folders may have changed.
func (r *root) summary(anew bool) Root {
	s := Root{Path: r.path, Added: r.single, State: Complete, Dirs: len(r.folders)}
	switch first := firstOf(r.bad); {
	case nowhere(r.top.problem):
		s.State, s.Reason = Missing, cause(r.top.problem).Error()
	case first != nil:
		s.State, s.Reason = Partial, fmt.Sprintf("%s: %v", first.at(), cause(first.problem))
		if n := len(r.bad) - 1; n > 0 {
			s.Reason += fmt.Sprintf("; and %d more folders", n)
		}
	}
	switch {
	case len(r.blind) == 0:
	case !anew && r.state.Polled != "":
		s.Polled = r.state.Polled
	default:
		f := firstOf(r.blind)
		s.Polled = fmt.Sprintf("%s: %s", f.at(), f.blind)
	}
	return s
}

// cause is an error without the path of the system call.
func cause(err error) error {
	var e *fs.PathError
	if errors.As(err, &e) {
		return e.Err
	}
	return err
}

// firstOf gives the folder with the first path, nil if the set is empty. The entry for
// the path to the root has the root's path and comes after it.
func firstOf(set map[*folder]struct{}) (first *folder) {
	var path string
	for f := range set {
		if at := f.at(); first == nil || at < path || at == path && f != f.root.top {
			first, path = f, at
		}
	}
	return first
}

// end forgets all that is known of the root, unless the root is wanted again.
func (r *root) end() bool {
	r.x.mu.Lock()
	if !r.removed && !r.x.closed {
		r.x.mu.Unlock()
		return false
	}
	for _, f := range r.folders {
		r.x.drop(f)
	}
	r.x.drop(r.top)
	if name := rootName(r.path, r.single); r.x.ended[name] == r {
		delete(r.x.ended, name)
	}
	r.x.broadcast()
	r.x.mu.Unlock()
	r.x.unwatch()
	return true
}

// concerns reports whether a mount at one of the given paths can change what is below the
// root. Precondition: x.mu is held.
func (r *root) concerns(points []string) bool {
	return slices.ContainsFunc(points, func(p string) bool {
		if touches(r.path, p) || r.real != "" && touches(r.real, p) {
			return true
		}
		for at := range r.reach {
			if touches(at, p) {
				return true
			}
		}
		return false
	})
}
