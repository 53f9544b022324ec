// SPDX-FileCopyrightText: The wcache authors
// SPDX-License-Identifier: MIT

package index

import (
	"fmt"
	"math"
	"slices"
	"strings"
	"time"
)

// root is a root and its walker: one goroutine, which alone makes system calls on the
// file systems below it.
type root struct {
	x      *Index
	path   string // absolute and clean
	single bool   // this one folder: it was added
	sys    *timed
	kick   chan struct{} // something is to be done
	done   chan struct{} // closed when the walker has ended

	// The walker's own.
	top     *folder // stands for the way to the root: its only entry, "", is the root
	folders map[key]*folder
	round   uint64
	buf     []byte
	poll    *batch // a walk because the kernel doesn't tell of everything, in parts
	pollAt  time.Time
	took    time.Duration        // the last walk of the whole
	bad     map[*folder]struct{} // with a problem, or blind

	// Guarded by Index.mu.
	removed bool
	queue   []*folder            // with a task
	marked  time.Time            // when the first of them got it
	batch   []*folder            // with tasks that are being done
	walked  bool                 // the first walk has ended
	real    string               // its path without links, once it is known
	reach   map[string]struct{}  // paths without links that it is at, or that links lead to
	state   Root                 // all but hung and searching
	known   map[*folder]struct{} // folders with weights
}

func (x *Index) newRoot(path string, single bool) *root {
	r := &root{
		x: x, path: path, single: single, kick: make(chan struct{}, 1), done: make(chan struct{}),
		folders: make(map[key]*folder), bad: make(map[*folder]struct{}), known: make(map[*folder]struct{}),
		reach: make(map[string]struct{}), buf: make([]byte, 64<<10),
	}
	r.sys = &timed{system: x.o.system, limit: x.o.HungAfter, late: func() {
		x.mu.Lock()
		defer x.mu.Unlock()
		x.seq++
		x.broadcast()
	}}
	r.top = &folder{root: r}
	x.markWhole(r.top, true)
	return r
}

// wake has the walker look for what is to be done. It does not wait.
func (r *root) wake() {
	select {
	case r.kick <- struct{}{}:
	default:
	}
}

// hung reports whether a system call has not returned for too long. Where it has not
// yet, left is how long it may still take; 0 between calls.
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
// while, unless somebody waits for what comes of them.
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
		wait = x.o.Gather - time.Since(r.marked)
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

// walk does tasks, and all that comes of them.
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

// over reports whether nobody wants the root any more.
func (r *root) over() bool {
	r.x.mu.Lock()
	defer r.x.mu.Unlock()
	return r.removed || r.x.closed
}

// startPoll begins to look again at all of which the kernel does not tell.
func (r *root) startPoll() {
	r.pollAt = time.Time{}
	r.poll = r.newBatch()
	r.poll.full = true
	for f := range r.bad {
		r.poll.push(f, false)
	}
	if len(r.poll.stack) == 0 {
		r.poll = nil
	}
}

// batch is a walk: of some folders, and of those below that are new or moved.
type batch struct {
	r     *root
	begun time.Time
	end   time.Time
	stack []visit
	seen  map[*folder]bool // read already; true: with all below
	lost  []*folder        // not found where they were
	tries map[*folder]int
	edges bool // some folder may be reached in another way now
	full  bool // it is of the whole root, or of all that isn't watched
}

type visit struct {
	folder *folder
	below  bool
}

func (r *root) newBatch() *batch {
	now := time.Now()
	return &batch{r: r, begun: now, end: now.Add(r.x.o.WalkTime), seen: make(map[*folder]bool), tries: make(map[*folder]int)}
}

func (b *batch) push(f *folder, below bool) { b.stack = append(b.stack, visit{f, below}) }

// step reads one folder.
func (b *batch) step() {
	v := b.stack[len(b.stack)-1]
	b.stack = b.stack[:len(b.stack)-1]
	f := v.folder
	if below, ok := b.seen[f]; f.dropped || ok && (below || !v.below) {
		return
	}
	b.seen[f] = v.below
	b.full = b.full || f == b.r.top
	b.read(f, v.below)
}

// giveUp leaves what is not read yet to a later walk.
func (b *batch) giveUp() {
	r := b.r
	late := fmt.Errorf("the walk took longer than %v", r.x.o.WalkTime)
	for _, v := range b.stack {
		r.setProblem(v.folder, late)
	}
	for _, f := range b.lost {
		r.setProblem(f, late)
	}
	b.stack, b.lost = nil, nil
}

func (r *root) setProblem(f *folder, err error) {
	r.x.mu.Lock()
	defer r.x.mu.Unlock()
	f.problem = err
	r.bad[f] = struct{}{}
}

// finish publishes what a walk has come to.
func (b *batch) finish() {
	r, x := b.r, b.r.x
	if b.edges {
		r.link()
	}
	now := time.Now()
	if b.full {
		r.took = now.Sub(b.begun)
	}
	state := r.summary()
	state.Walked, state.Took = now, r.took
	switch {
	case len(r.bad) == 0 || x.o.Once:
		r.pollAt = time.Time{}
	case r.poll == nil && r.pollAt.IsZero():
		r.pollAt = now.Add(max(x.o.PollEvery, pollShare*r.took))
	}
	x.mu.Lock()
	r.state, r.walked = state, true
	for _, f := range r.batch {
		f.reading = nil
	}
	r.batch = nil
	x.seq++
	if x.rooted && !slices.ContainsFunc(x.roots, func(r *root) bool { return !r.walked }) {
		clear(x.hints) // what is left is not there any more
	}
	if r.single && state.State == Missing { // it was added, and is gone
		x.removeRoot(r)
	}
	x.broadcast()
	x.mu.Unlock()
	x.unwatch()
}

// pollShare bounds the part of the time that a polled root is walked.
const pollShare = 20

// summary is the root's state, without what changes by itself.
func (r *root) summary() Root {
	s := Root{Path: r.path, Added: r.single, State: Complete, Dirs: len(r.folders)}
	var problems, blind []string
	for f := range r.bad {
		if f.problem != nil {
			problems = append(problems, fmt.Sprintf("%s: %v", f.at(), f.problem))
		}
		if f.blind != "" {
			blind = append(blind, fmt.Sprintf("%s: %s", f.at(), f.blind))
		}
	}
	slices.Sort(problems)
	slices.Sort(blind)
	switch {
	case nowhere(r.top.problem):
		s.State, s.Reason = Missing, r.top.problem.Error()
	case len(problems) > 0:
		s.State, s.Reason = Partial, problems[0]
		if len(problems) > 1 {
			s.Reason += fmt.Sprintf("; and %d more folders", len(problems)-1)
		}
	}
	if len(blind) > 0 {
		s.Polled = blind[0]
	}
	return s
}

// end forgets all that is known of the root, unless it is wanted again.
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

// concerns reports whether a mount at one of the given paths can change what is below
// the root. Precondition: x.mu is held.
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

// arc is a symbolic link from one folder to another.
type arc struct {
	from *folder
	name string
	to   *folder
	path string
}

// link finds out how each folder is reached with as few links as possible, and drops
// those that aren't reached any more.
func (r *root) link() {
	r.round++
	r.top.round = r.round
	ready, level := []*folder{r.top}, 0
	var arcs []arc
	for {
		for len(ready) > 0 {
			f := ready[len(ready)-1]
			ready = ready[:len(ready)-1]
			for name, c := range f.children {
				switch to := r.folders[c.key]; {
				case to == nil || to.round == r.round:
				case c.link:
					arcs = append(arcs, arc{f, name, to, ""})
				default:
					to.reachBy(f, name, level, r.round)
					ready = append(ready, to)
				}
			}
		}
		level++
		arcs = slices.DeleteFunc(arcs, func(a arc) bool { return a.to.round == r.round })
		if len(arcs) == 0 {
			break
		}
		for i, a := range arcs {
			arcs[i].path = a.from.at() + "/" + a.name
		}
		slices.SortFunc(arcs, func(a, b arc) int { return strings.Compare(a.path, b.path) })
		for _, a := range arcs {
			if a.to.round != r.round {
				a.to.reachBy(a.from, a.name, level, r.round)
				ready = append(ready, a.to)
			}
		}
	}
	r.x.mu.Lock()
	defer r.x.mu.Unlock()
	for k, f := range r.folders {
		if f.round != r.round {
			delete(r.folders, k)
			delete(r.bad, f)
			r.x.drop(f)
		} else if f.model != nil {
			r.x.show(f)
		}
	}
}

func (f *folder) reachBy(up *folder, name string, links int, round uint64) {
	f.up, f.name, f.links, f.round = up, name, links, round
}
