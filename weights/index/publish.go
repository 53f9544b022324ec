// SPDX-FileCopyrightText: The wcache authors
// SPDX-License-Identifier: MIT

package index

import (
	"maps"
	"slices"
	"strings"
)

// begin notes that a folder is being listed: from here on changes of any name in it
// are noted, because the new listing is not known yet.
func (rd *reading) begin() {
	x, f := rd.b.r.x, rd.f
	x.mu.Lock()
	defer x.mu.Unlock()
	f.busy = true
	if rd.here.watch != 0 {
		w := x.watched(rd.here.watch, false)
		if w.folders == nil {
			w.folders = make(map[*folder]struct{})
		}
		w.folders[f] = struct{}{}
	}
	rd.before = f.model
	if f.model == nil {
		rd.before = x.hints[f.at()]
	}
}

// publish makes the results of a reading known.
func (rd *reading) publish() {
	f, r := rd.f, rd.b.r
	x := r.x
	rd.b.edges = rd.b.edges || !maps.Equal(f.children, rd.children)
	x.mu.Lock()
	defer x.mu.Unlock()
	rd.settleHolds()
	if f.watch != 0 && f.watch != rd.here.watch {
		x.unlist(f)
	}
	f.children, f.via, f.watch, f.problem, f.busy = rd.children, rd.via, rd.here.watch, rd.problem, false
	if rd.whole || f.blind == "" {
		f.blind = rd.blind
	}
	note(r.bad, f, f.problem != nil)
	note(r.blind, f, f.blind != "")
	if f != r.top {
		delete(x.hints, f.at())
	}
	x.setModel(f, rd.model)
	if f.model != nil {
		x.show(f)
	}
}

// note puts a folder into a set, or takes it out.
func note(set map[*folder]struct{}, f *folder, in bool) {
	if in {
		set[f] = struct{}{}
	} else {
		delete(set, f)
	}
}

// settleHolds keeps what the entries depend on now, and releases what they depended
// on before.
func (rd *reading) settleHolds() {
	x, f := rd.b.r.x, rd.f
	used := make(map[string]bool, len(rd.via))
	for _, route := range rd.via {
		used[route] = true
	}
	for entry, holds := range f.holds {
		_, looked := rd.looked[entry]
		gone := strings.HasSuffix(entry, "/") && !used[entry]
		if !rd.whole && !looked && !gone {
			rd.holds[entry] = holds
			continue
		}
		for _, h := range holds {
			if !slices.Contains(rd.holds[entry], h) {
				x.release(ref{f, entry}, h)
			}
		}
	}
	f.holds = rd.holds
}

// unlist ends the folder's dependence on the watch of its listing.
func (x *Index) unlist(f *folder) {
	if w := x.watches[f.watch]; w != nil {
		delete(w.folders, f)
		x.forget(f.watch, w)
	}
}

// setModel replaces what is known of a folder's weights. If nothing has changed, the old
// model stays, and its edition with it.
func (x *Index) setModel(f *folder, m *model) {
	old := f.model
	if old == nil && m == nil || old != nil && m != nil && old.same(m) {
		if m != nil { // its watches may have changed
			m.edition = old.edition
			f.model = m
		}
		return
	}
	x.seq++
	if old != nil {
		x.lose(old, m)
		x.part(f, old, m)
		for _, hash := range []string{old.md5, old.sha256} {
			delete(x.byHash[hash], f)
			if len(x.byHash[hash]) == 0 {
				delete(x.byHash, hash)
			}
		}
		delete(x.doubtful, f)
		delete(f.root.known, f)
	}
	f.model = m
	if m == nil {
		return
	}
	x.edition++
	m.edition = x.edition
	f.root.known[f] = struct{}{}
	if m.md5 == "" {
		x.doubtful[f] = struct{}{}
		return
	}
	for _, hash := range []string{m.md5, m.sha256} {
		if x.byHash[hash] == nil {
			x.byHash[hash] = make(map[*folder]struct{})
		}
		x.byHash[hash][f] = struct{}{}
		if c := x.memory[hash]; c != nil && c.spec == nil {
			c.spec = m.spec()
		}
	}
}

// lose tells waiting requests that a directory doesn't have their hash any more, or may
// have lost it. The directory may now be in a folder that was read before it moved
// there.
func (x *Index) lose(old, now *model) {
	for hash, c := range x.memory {
		may := func(m *model) bool {
			return m != nil && (m.has(hash) || m.md5 == "" && !m.excluded(c.spec))
		}
		if c.waiters > 0 && may(old) && !may(now) {
			c.lost = x.seq
		}
	}
}

// show sets a model's path for answers.
func (x *Index) show(f *folder) {
	if path := f.at(); path != f.path || f.links != f.pathLinks {
		if f.path != "" && f.path != path && !f.root.removed {
			x.leave(f.path, f.model.hashes())
		}
		f.path, f.pathLinks = path, f.links
		x.seq++
	}
}

// drop forgets a folder. Precondition: x.mu is held.
func (x *Index) drop(f *folder) {
	if f.dropped {
		return
	}
	f.dropped = true
	x.setModel(f, nil)
	for entry, holds := range f.holds {
		for _, h := range holds {
			x.release(ref{f, entry}, h)
		}
	}
	f.holds = nil
	x.unlist(f)
}
