// SPDX-FileCopyrightText: The wcache authors
// SPDX-License-Identifier: MIT

package index

import (
	"errors"
	"fmt"
	"slices"
	"time"
)

// batch is one walk: of some folders, and of new or moved folders below them.
type batch struct {
	r     *root
	begun time.Time
	stuck time.Duration // sys.stuck at the start of the walk
	end   time.Time
	stack []visit
	seen  map[*folder]bool // already read; true: with all folders below
	lost  []*folder        // not found where they were
	tries map[*folder]int
	edges bool // some folder may have another path now
	late  bool // it took too long
	full  bool // it walks the whole root, or all of it that isn't watched
}

type visit struct {
	folder *folder
	below  bool
}

func (r *root) newBatch() *batch {
	now := time.Now()
	return &batch{r: r, begun: now, stuck: r.sys.stuck, end: now.Add(r.x.o.WalkTime), seen: make(map[*folder]bool), tries: make(map[*folder]int)}
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

// giveUp leaves the folders that aren't read yet to a later walk.
func (b *batch) giveUp() {
	r := b.r
	late := fmt.Errorf("the walk took longer than %v", r.x.o.WalkTime)
	for _, v := range b.stack {
		r.setProblem(v.folder, late)
	}
	for _, f := range b.lost {
		r.setProblem(f, late)
	}
	b.stack, b.lost, b.late = nil, nil, true
}

func (r *root) setProblem(f *folder, err error) {
	r.x.mu.Lock()
	defer r.x.mu.Unlock()
	f.problem = err
	r.bad[f] = struct{}{}
}

// finish publishes the results of a walk.
func (b *batch) finish() {
	r, x := b.r, b.r.x
	if b.edges {
		r.link()
	}
	now := time.Now()
	took := max(now.Sub(b.begun)-(r.sys.stuck-b.stuck), 0) // time in which the file system hung doesn't count
	if b.full {
		r.took = took
	} else {
		r.last = took
	}
	state := r.summary(b.full)
	state.Walked, state.Took = now, r.took
	switch {
	case len(r.bad)+len(r.blind) == 0 || x.o.Once:
		r.pollAt = time.Time{}
	case b.late: // the rest
		r.pollAt = now.Add(x.o.PollEvery)
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
		clear(x.hints) // the remaining ones don't exist any more
	}
	if r.single && state.State == Missing { // it was added, and is gone
		x.removeRoot(r)
	}
	x.broadcast()
	x.mu.Unlock()
	x.unwatch()
}

// missed handles a folder that can't be opened. If its path doesn't lead to it any
// more, reading the folder above it will tell. When all else has been read, the folder
// is looked for again.
func (b *batch) missed(f *folder, err error) {
	if errors.Is(err, errMoved) || nowhere(err) {
		const tries = 4 // a path may lead over several links that were moved one after the other
		delete(b.seen, f)
		if b.tries[f]++; b.tries[f] < tries {
			b.lost = append(b.lost, f)
			delete(b.seen, f.up)
			b.push(f.up, false)
			return
		}
		b.r.setProblem(f, err)
		return
	}
	rd := &reading{b: b, f: f, whole: true}
	rd.children, rd.problem = make(map[string]child), err
	rd.publish()
}

// find looks again for folders that were not at their path, and reports whether there
// are any.
func (b *batch) find() bool {
	if len(b.lost) == 0 {
		return false
	}
	b.r.link()
	for _, f := range b.lost {
		b.push(f, true)
	}
	b.lost = nil
	return true
}

// arc is a symbolic link from one folder to another.
type arc struct {
	from *folder
	name string
	to   *folder
	path string
}

// link finds the path with the fewest links to each folder, and drops folders that can't
// be reached any more.
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
		slices.SortFunc(arcs, func(a, b arc) int { return comparePaths(a.path, b.path) })
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
			delete(r.blind, f)
			r.x.drop(f)
		} else if f.moved && f.model != nil {
			r.x.show(f)
		}
	}
}

func (f *folder) reachBy(up *folder, name string, links int, round uint64) {
	f.moved = up.moved || f.up != up || f.name != name || f.links != links
	f.up, f.name, f.links, f.round = up, name, links, round
}
