// SPDX-FileCopyrightText: The wcache authors
// SPDX-License-Identifier: MIT

package index

import (
	"bytes"
	"crypto/md5"
	"encoding/hex"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"sort"
	"strings"

	"github.com/wcache/wcache/stamp"
	"github.com/wcache/wcache/weights"
	"github.com/wcache/wcache/weights/safetensors"
)

// oracle computes what an index should say, the slow way: it walks all folders and reads
// every header whole.
type oracle struct {
	roots []string
	added []string
	specs map[string]map[string]string // headers by base name, by hash
}

// truth is an answer of the oracle. It identifies directories by device and inode.
type truth struct {
	sure, unsure []string
	links        map[string]int // the fewest links by which each is reached
	stamps       string         // of all files that count in the sure directories
}

func (t truth) String() string { return fmt.Sprint("sure ", t.sure, ", unsure ", t.unsure) }

func (t truth) equal(o truth) bool {
	return slices.Equal(t.sure, o.sure) && slices.Equal(t.unsure, o.unsure) && t.stamps == o.stamps
}

func identity(path string) string {
	info, err := stamp.Of(path)
	if err != nil {
		return path + " is gone"
	}
	return fmt.Sprintf("%x:%d", info.Device, info.Inode)
}

// folders gives every folder that can be reached, with the fewest links on a path to it
// and such a path.
func (o *oracle) folders() (links map[string]int, paths map[string]string) {
	links, paths = make(map[string]int), make(map[string]string)
	type at struct {
		path  string
		links int
		deep  bool
	}
	var queue []at
	visit := func(a at) {
		info, err := os.Stat(a.path)
		if err != nil || !info.IsDir() {
			return
		}
		id := identity(a.path)
		if n, ok := links[id]; ok && n <= a.links {
			return
		}
		links[id], paths[id] = a.links, a.path
		if a.deep {
			queue = append(queue, a)
		}
	}
	for _, r := range o.roots {
		n := 0
		if real, err := filepath.EvalSymlinks(r); err == nil && real != r {
			n = 1
		}
		visit(at{r, n, true})
	}
	for len(queue) > 0 {
		a := queue[0]
		queue = queue[1:]
		entries, _ := os.ReadDir(a.path)
		for _, e := range entries {
			n := a.links
			if e.Type()&os.ModeSymlink != 0 {
				n++
			}
			visit(at{filepath.Join(a.path, e.Name()), n, true})
		}
	}
	for _, r := range o.added {
		n := 0
		if real, err := filepath.EvalSymlinks(r); err == nil && real != r {
			n = 1
		}
		visit(at{r, n, false})
	}
	return links, paths
}

// contents is what the oracle knows of a directory.
type contents struct {
	hash    string
	covered []string // nil: not known
	headers map[string]string
	names   []string
	stamps  string
}

func look(dir string) (contents, bool) {
	c := contents{headers: make(map[string]string)}
	entries, _ := os.ReadDir(dir)
	var all []string
	var stamps strings.Builder
	for _, e := range entries {
		name := e.Name()
		if !weights.Decides(name) {
			continue
		}
		path := filepath.Join(dir, name)
		info, _ := stamp.Of(path)
		if !info.Mode.IsRegular() {
			info.Stamp = stamp.Stamp{Inode: info.Inode, Device: info.Device} // what happens inside a folder doesn't count
		}
		text, _ := info.MarshalText()
		fmt.Fprintf(&stamps, "%s %s\n", name, text)
		if !weights.IsWeights(name) {
			continue
		}
		all = append(all, name)
		if b, err := os.ReadFile(path); err == nil {
			if raw, err := safetensors.ReadRaw(bytes.NewReader(b), int64(len(b))); err == nil {
				c.headers[name] = raw
			}
		}
	}
	if len(all) == 0 {
		return c, false
	}
	c.names, c.stamps, c.covered = all, stamps.String(), all
	index := filepath.Join(dir, weights.ShardIndexName)
	broken := false
	if _, err := os.Lstat(index); err == nil {
		b, err := os.ReadFile(index)
		if err == nil {
			c.covered, err = weights.ParseShardIndex(b)
		}
		if err != nil {
			c.covered = nil
			return c, true
		}
		missing, err := weights.Covered(index, c.covered, all)
		broken = err != nil || len(missing) > 0
	}
	sum := md5.New()
	for _, name := range c.covered {
		raw, ok := c.headers[name]
		broken = broken || !ok
		weights.HashPrefix(sum, name, int64(len(raw)))
		sum.Write([]byte(raw))
	}
	if !broken {
		c.hash = hex.EncodeToString(sum.Sum(nil))
	}
	return c, true
}

// differs reports whether a directory certainly doesn't have the hash of a spec.
func (c contents) differs(spec map[string]string) bool {
	if spec == nil {
		return false
	}
	for name, want := range spec {
		if !slices.Contains(c.names, name) {
			return true
		}
		if got, ok := c.headers[name]; ok && got != want {
			return true
		}
	}
	if c.covered == nil {
		return false
	}
	var names []string
	for name := range spec {
		names = append(names, name)
	}
	sort.Strings(names)
	return !slices.Equal(names, c.covered)
}

func (o *oracle) ask(hashes []string) map[string]truth {
	links, paths := o.folders()
	found := make(map[string]contents)
	for id, path := range paths {
		if c, ok := look(path); ok {
			found[id] = c
			if c.hash != "" && o.specs[c.hash] == nil {
				o.specs[c.hash] = make(map[string]string)
				for _, name := range c.covered {
					o.specs[c.hash][name] = c.headers[name]
				}
			}
		}
	}
	answers := make(map[string]truth)
	for _, hash := range hashes {
		t := truth{links: make(map[string]int)}
		for id, c := range found {
			switch {
			case c.hash == hash:
				t.sure = append(t.sure, id)
			case c.hash == "" && !c.differs(o.specs[hash]):
				t.unsure = append(t.unsure, id)
			default:
				continue
			}
			t.links[id] = links[id]
		}
		sort.Strings(t.sure)
		sort.Strings(t.unsure)
		for _, id := range t.sure {
			t.stamps += id + "\n" + found[id].stamps
		}
		answers[hash] = t
	}
	return answers
}

// linksOn counts the links on a path below a root; the root's own links count as one.
func (o *oracle) linksOn(path string) int {
	best := -1
	for i, root := range slices.Concat(o.roots, o.added) {
		rest, ok := strings.CutPrefix(path, root)
		if !ok || rest != "" && (rest[0] != '/' || i >= len(o.roots)) { // folders below an added directory don't count
			continue
		}
		n, at := 0, root
		if real, err := filepath.EvalSymlinks(root); err == nil && real != root {
			n = 1
		}
		for _, part := range strings.Split(rest, "/")[1:] {
			at = filepath.Join(at, part)
			if info, err := os.Lstat(at); err == nil && info.Mode()&os.ModeSymlink != 0 {
				n++
			}
		}
		if best < 0 || n < best {
			best = n
		}
	}
	return best
}

// compare compares an answer with the truth, and describes the first difference.
func (o *oracle) compare(a Answer, want truth) string {
	var bad, sure, unsure []string
	add := func(list *[]string, path string, device, inode uint64) {
		id := fmt.Sprintf("%x:%d", device, inode)
		*list = append(*list, id)
		if identity(path) != id {
			bad = append(bad, fmt.Sprintf("%s does not lead to %s", path, id))
		} else if n := o.linksOn(path); n != want.links[id] {
			bad = append(bad, fmt.Sprintf("%s has %d links, not %d", path, n, want.links[id]))
		}
	}
	for _, d := range a.Dirs {
		add(&sure, d.Path, d.Device, d.Inode)
	}
	for _, u := range a.Unsure {
		add(&unsure, u.Path, u.Device, u.Inode)
	}
	sort.Strings(sure)
	sort.Strings(unsure)
	if !slices.Equal(sure, want.sure) || !slices.Equal(unsure, want.unsure) {
		bad = append(bad, "other directories")
	}
	if len(a.Roots) > 0 {
		bad = append(bad, "roots are not complete")
	}
	return strings.Join(bad, "; ")
}
