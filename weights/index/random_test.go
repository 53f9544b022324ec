// SPDX-FileCopyrightText: The wcache authors
// SPDX-License-Identifier: MIT

package index

import (
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/wcache/wcache/weights"
)

var (
	steps = flag.Int("steps", 1500, "how many steps the random test takes")
	seed  = flag.Uint64("seed", 0, "of the random test; 0: another one each time")
)

// world is a set of few folders that random operations change.
type world struct {
	t      *testing.T
	rand   *rand.Rand
	top    string
	log    []string
	dirs   []string // places for folders
	files  []string
	oracle *oracle
	hashes []string // that directories there may get
}

// newWorld makes a world. It begins with a directory of each hash.
func newWorld(t *testing.T, seed uint64) *world {
	w := &world{t: t, rand: rand.New(rand.NewPCG(seed, 1)), top: t.TempDir(), files: []string{"model.safetensors", "model-1.safetensors", "model-2.safetensors"}}
	for _, root := range []string{"r1", "r2", "out"} {
		w.dirs = append(w.dirs, root)
		for _, a := range []string{"a", "b", ".c"} {
			w.dirs = append(w.dirs, root+"/"+a, root+"/"+a+"/x", root+"/"+a+"/x/y")
		}
	}
	w.oracle = &oracle{roots: []string{w.top + "/r1", w.top + "/r2"}, specs: make(map[string]map[string]string)}
	w.hashes = []string{strings.Repeat("0", 32)}
	whole, first, second := w.files[0], w.files[1], w.files[2]
	for i, files := range []map[string]string{{whole: "a"}, {whole: "b"}, {first: "a"}, {first: "a", second: "a"}, {first: "a", second: "b"}} {
		for base, header := range files {
			write(t, fmt.Sprintf("%s/r1/first-%d/%s", w.top, i, base), shard(header, "1"))
		}
		w.hashes = append(w.hashes, hashOf(files))
	}
	return w
}

func (w *world) pick(list []string) string { return list[w.rand.IntN(len(list))] }

// dir is a place for a folder, which may exist or not.
func (w *world) dir() string { return filepath.Join(w.top, w.pick(w.dirs)) }

// contents gives a shard at random: of two headers, two data, and an incomplete one.
func (w *world) contents() []byte {
	switch n := w.rand.IntN(10); {
	case n < 4:
		return shard("a", "1")
	case n < 6:
		return shard("a", "2")
	case n < 8:
		return shard("b", "1")
	case n < 9:
		return shard("a", "1")[:20]
	default:
		return nil
	}
}

func (w *world) index() []byte {
	return []byte(w.pick([]string{
		`{"weight_map":{"x":"model.safetensors"}}`,
		`{"weight_map":{"x":"model-1.safetensors","y":"model-2.safetensors"}}`,
		`{"weight_map":{"x":"model-1.safetensors"}}`,
		`{`,
	}))
}

// act does something at random, and says what. Many of the operations fail, which is useful too.
func (w *world) act() string {
	d := w.dir()
	f := filepath.Join(d, w.pick(w.files))
	switch w.rand.IntN(24) {
	case 0:
		return say("mkdir", d, os.MkdirAll(d, 0o700))
	case 1, 2, 3: // a new file
		_ = os.MkdirAll(d, 0o700)
		tmp := filepath.Join(w.top, "tmp")
		_ = os.WriteFile(tmp, w.contents(), 0o600)
		return say("replace", f, os.Rename(tmp, f))
	case 4, 5: // in place
		file, err := os.OpenFile(f, os.O_WRONLY, 0)
		if err == nil {
			_, err = file.WriteAt(w.contents(), 0)
			_ = file.Close()
		}
		return say("overwrite", f, err)
	case 6:
		return say("write", f, os.WriteFile(f, w.contents(), 0o600))
	case 7:
		return say("truncate", f, os.Truncate(f, int64(w.rand.IntN(30))))
	case 8:
		return say("remove", f, os.Remove(f))
	case 9:
		g := filepath.Join(w.dir(), w.pick(w.files))
		return say("move", f+" "+g, os.Rename(f, g))
	case 10:
		g := filepath.Join(w.dir(), w.pick(w.files))
		return say("hard link", f+" "+g, os.Link(f, g))
	case 11, 12:
		g := filepath.Join(w.dir(), w.pick(w.files))
		target := f
		if w.rand.IntN(2) == 0 {
			if rel, err := filepath.Rel(filepath.Dir(g), f); err == nil {
				target = rel
			}
		}
		_ = os.Remove(g)
		return say("link", g+" to "+target, os.Symlink(target, g))
	case 13, 14, 15:
		e := w.dir()
		return say("move", d+" "+e, os.Rename(d, e))
	case 16:
		e := w.dir()
		target := e
		if rel, err := filepath.Rel(filepath.Dir(d), e); err == nil && w.rand.IntN(2) == 0 {
			target = rel
		}
		return say("link", d+" to "+target, os.Symlink(target, d))
	case 17: // switched as a deployment does
		tmp := filepath.Join(w.top, "tmp")
		_ = os.Remove(tmp)
		_ = os.Symlink(w.dir(), tmp)
		return say("switch", d, os.Rename(tmp, d))
	case 18:
		return say("remove all", d, os.RemoveAll(d))
	case 19:
		_ = os.MkdirAll(d, 0o700)
		return say("index", d, os.WriteFile(filepath.Join(d, weights.ShardIndexName), w.index(), 0o600))
	case 20:
		return say("no index", d, os.Remove(filepath.Join(d, weights.ShardIndexName)))
	case 21:
		return say("config", d, os.WriteFile(filepath.Join(d, "config.json"), w.index(), 0o600))
	case 22:
		if info, err := os.Lstat(d); err == nil && info.IsDir() {
			e := w.dir()
			_ = os.MkdirAll(e, 0o700)
			for _, name := range w.files {
				if b, err := os.ReadFile(filepath.Join(d, name)); err == nil {
					_ = os.WriteFile(filepath.Join(e, name), b, 0o600)
				}
			}
			return say("copy", d+" "+e, nil)
		}
		return say("remove", d, os.Remove(d))
	default:
		return say("chmod", f, os.Chmod(f, 0o600|os.FileMode(w.rand.IntN(2))))
	}
}

func say(what, where string, err error) string {
	if err != nil {
		return ""
	}
	return what + " " + where
}

// After each of many random changes an index says the same as a walk of everything, and
// a version isn't current any more if the answer has changed.
func TestRandom(t *testing.T) {
	n := *seed
	if n == 0 {
		n = uint64(time.Now().UnixNano())
	}
	t.Logf("seed %d", n)
	w := newWorld(t, n)
	o, hashes := w.oracle, w.hashes
	x := start(t, Options{}, o.roots...)
	before, versions := o.ask(hashes), make(map[string]uint64)
	for _, hash := range hashes {
		versions[hash] = lookup(t, x, hash).Version
	}
	for i := range 5 {
		must(t, os.RemoveAll(fmt.Sprintf("%s/r1/first-%d", w.top, i)))
	}
	for step := range *steps {
		did := w.act()
		switch w.rand.IntN(40) {
		case 0:
			dir := w.dir()
			if info, err := os.Stat(dir); err == nil && info.IsDir() {
				x.Add(dir)
				o.added = append(slices.DeleteFunc(o.added, func(a string) bool { return a == dir }), dir)
				did += ", add " + dir
			}
		case 1:
			o.roots = []string{w.top + "/r1", w.top + "/r2"}[:w.rand.IntN(3)]
			x.SetRoots(o.roots)
			did += fmt.Sprint(", roots ", o.roots)
		}
		if did == "" {
			continue
		}
		o.added = slices.DeleteFunc(o.added, func(a string) bool { info, err := os.Stat(a); return err != nil || !info.IsDir() })
		w.log = append(w.log, strings.ReplaceAll(did, w.top, "DIR"))
		now := o.ask(hashes)
		order := w.rand.Perm(len(hashes))
		for _, k := range order {
			hash := hashes[k]
			current := x.Current(hash, versions[hash])
			if current && !now[hash].equal(before[hash]) {
				t.Errorf("step %d: version of %s is current, but the answer has changed: %s\n%s\nto %s\n%s", step, hash, before[hash], before[hash].stamps, now[hash], now[hash].stamps)
			}
			a := lookup(t, x, hash)
			if bad := o.compare(a, now[hash]); bad != "" {
				t.Errorf("step %d, hash %s: %s\nroots %v, added %v\nwant %v %v\ngot\n%s", step, hash, bad, o.roots, o.added, now[hash], now[hash].links, text(a, w.top))
			}
			w.settled(x, hash, a.Version)
			versions[hash] = a.Version
			if t.Failed() {
				t.Fatalf("seed %d, the last of %d operations:\n%s", n, len(w.log), strings.Join(w.log[max(0, len(w.log)-25):], "\n"))
			}
		}
		before = now
	}
}

// settled checks that a version stays when nothing happens. The kernel may report the end
// of an inode only when the index itself has closed it.
func (w *world) settled(x *Index, hash string, version uint64) {
	for range 10 {
		if x.Current(hash, version) {
			return
		}
		if a := lookup(w.t, x, hash); a.Version != version {
			w.t.Errorf("the version of %s became %d after %d, and nothing was changed", hash, a.Version, version)
			return
		}
	}
	w.t.Errorf("the version of %s is not current after the look-up", hash)
}
