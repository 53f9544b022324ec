// SPDX-FileCopyrightText: The wcache authors
// SPDX-License-Identifier: MIT

package main

import (
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"

	"github.com/wcache/wcache/fingerprint"
	"github.com/wcache/wcache/weights"
)

// world is the model directories with the history of their contents. It knows what an engine
// may get without asking wcache. It is safe for concurrent use.
type world struct {
	dir   string
	roots []string
	keys  map[rankOf]fingerprint.Key

	doing sync.Mutex // held while something is changed and recorded

	mu      sync.Mutex
	rng     *rand.Rand
	version uint32 // of the next content
	places  []place
	history map[string][]held // by path
	// families are those of all directories that there ever were.
	families map[string]int
}

// rankOf is what an engine asks for, beside the directory.
type rankOf struct{ family, tp, rank int }

// place is a path by which an engine can be started.
type place struct {
	path   string
	family int
	link   bool
}

// held is what a path contained from a moment on.
type held struct {
	since   int64  // by clock
	version uint32 // 0: nothing that can be loaded
	lacks   bool   // files, or all of it
	changes bool   // it may contain its old contents, its next ones, or nothing
	link    string // the directory to which it leads
	how     string // what was done, for people
}

func newWorld(dir string, rng *rand.Rand) (*world, error) {
	w := &world{
		dir: dir, roots: []string{filepath.Join(dir, "root"), filepath.Join(dir, "more")}, keys: make(map[rankOf]fingerprint.Key),
		rng: rng, version: 1, history: make(map[string][]held), families: make(map[string]int),
	}
	for _, d := range append(slices.Clone(w.roots), filepath.Join(dir, "outside")) {
		if err := os.MkdirAll(d, 0o700); err != nil {
			return nil, err
		}
	}
	for i, f := range families() {
		if err := w.computeKeys(i, f); err != nil {
			return nil, err
		}
	}
	for i := range families() {
		if err := w.create(i); err != nil {
			return nil, err
		}
	}
	return w, nil
}

// computeKeys finds the keys of a family, which are those of all of its versions.
func (w *world) computeKeys(i int, f family) error {
	dir := filepath.Join(w.dir, "key")
	files, err := f.files(0)
	if err != nil {
		return err
	}
	if err := writeAll(dir, files); err != nil {
		return err
	}
	d, err := weights.Open(dir)
	if err != nil {
		return err
	}
	for _, x := range []rankOf{{i, 1, 0}, {i, 2, 0}, {i, 2, 1}} {
		if w.keys[x], err = fingerprint.Compute(d, fingerprint.Options{TPSize: x.tp, TPRank: x.rank}); err != nil {
			return err
		}
	}
	return os.RemoveAll(dir)
}

// inside reports whether a path is below a root.
func (w *world) inside(path string) bool {
	return slices.ContainsFunc(w.roots, func(r string) bool { return strings.HasPrefix(path, r+"/") })
}

// nested reports whether a path is inside of another place. Precondition: mu is held.
func (w *world) nested(path string) bool {
	return slices.ContainsFunc(w.places, func(p place) bool { return strings.HasPrefix(path, p.path+"/") })
}

// any gives some place that an engine can be started with, and false if there is none. It
// calls ok with mu held.
func (w *world) any(rng *rand.Rand, ok func(place) bool) (place, bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	var list []place
	dead := rng.IntN(20) == 0 // also places that have gone, or never existed
	for _, p := range w.places {
		if _, err := os.Stat(p.path); (dead || err == nil) && ok(p) {
			list = append(list, p)
		}
	}
	if len(list) == 0 {
		return place{}, false
	}
	return list[rng.IntN(len(list))], true
}

// note adds h, the contents of a path from now on, to its history.
func (w *world) note(path string, h held) {
	w.mu.Lock()
	defer w.mu.Unlock()
	h.since = clock()
	w.history[path] = append(w.history[path], h)
}

// last is the latest entry in the history of a path.
func (w *world) last(path string) held {
	w.mu.Lock()
	defer w.mu.Unlock()
	if list := w.history[path]; len(list) > 0 {
		return list[len(list)-1]
	}
	return held{}
}

// latest is the version that a directory holds now.
func (w *world) latest(dir string) uint32 { return w.last(dir).version }

// during gives the contents of a path between two moments, whether it was at rest all the
// time, and whether for some of it the path didn't exist, lacked files or belonged to
// another family. It waits for a current change, so that the change is recorded completely.
func (w *world) during(path string, family int, from, to int64) (versions []uint32, rest, gone bool) {
	w.doing.Lock()
	defer w.doing.Unlock()
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.between(path, family, from, to)
}

// between is during. Precondition: mu is held.
func (w *world) between(path string, family int, from, to int64) (versions []uint32, rest, gone bool) {
	list := w.history[path]
	rest = true
	n := 0
	add := func(h held) {
		if h.link == "" {
			versions, rest, gone = append(versions, h.version), rest && h.version != 0, gone || h.lacks || w.families[path] != family
			return
		}
		more, still, away := w.between(h.link, family, from, to)
		versions, rest, gone = append(versions, more...), rest && still, gone || away
	}
	for i, h := range list {
		end := to
		if i+1 < len(list) {
			end = list[i+1].since
		}
		if h.since > to || end < from {
			continue
		}
		n++
		rest = rest && h.since < from && !h.changes
		add(h)
		if h.changes && i > 0 {
			add(list[i-1])
		}
		if h.changes && i+1 < len(list) {
			add(list[i+1])
		}
	}
	return versions, rest && n == 1, gone
}

// story lists the latest changes of a path, the last first.
func (w *world) story(path string, now int64) string {
	w.mu.Lock()
	defer w.mu.Unlock()
	var text []string
	for _, h := range slices.Backward(w.history[path]) {
		if len(text) < 6 {
			text = append(text, fmt.Sprintf("%s %d%s %d ms before", h.how, h.version, h.link, (now-h.since)/1e6))
		}
	}
	return strings.Join(text, ", ")
}

// verdict is the judgement of an answer.
type verdict int

const (
	right  verdict = iota
	wrong          // what its path did not hold
	moving         // a mixture, as its path held it
	aside          // its path led to no whole one of its family any more, and its process didn't say it
)

// judge compares the versions that an engine got with the contents of its path since it
// asked. A silent engine's process doesn't tell its path.
func (w *world) judge(path string, family int, silent bool, got []uint32, from, to int64) (verdict, string) {
	versions, rest, gone := w.during(path, family, from, to)
	for _, v := range got {
		switch {
		case v != 0 && slices.Contains(versions, v):
		case silent && gone:
			return aside, ""
		default:
			return wrong, fmt.Sprintf("version %v of %s, which held %v (at rest: %v; %s)", got, path, versions, rest, w.story(path, to))
		}
	}
	switch {
	case len(got) == 1:
		return right, ""
	case len(got) > 1 && !rest:
		return moving, ""
	}
	return wrong, fmt.Sprintf("a mixture of %v of %s, which held %v at rest", got, path, versions)
}
