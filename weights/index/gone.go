// SPDX-FileCopyrightText: The wcache authors
// SPDX-License-Identifier: MIT

package index

import (
	"maps"
	"slices"
	"time"
)

// GoneFor is how long the index remembers that a directory had a hash. vLLM's engines
// read headers right before they ask, and ask again with the same key for 5 minutes.
const GoneFor = 10 * time.Minute

// maxGone is how many removed directories of a hash are remembered, the latest ones.
const maxGone = 64

// part records that a directory's contents have changed. If it still has the hash, or has
// it again, [Index.goneOf] leaves it out for that time. Precondition: x.mu is held.
func (x *Index) part(f *folder, old, now *model) {
	if f.root.removed {
		return // see removeRoot
	}
	had := old.hashes()
	if had == nil { // it may have had them again meanwhile, but for those that it certainly hadn't
		had = slices.DeleteFunc(slices.Clone(f.had), func(hash string) bool {
			c := x.memory[hash]
			return c != nil && old.excluded(c.spec)
		})
	}
	f.had = nil
	if now != nil && now.md5 == "" {
		f.had = had
	}
	x.leave(f.path, had)
}

// leave records that a path led to a directory with these hashes. A moved directory
// counts too: a new directory may get its inode number, and its contents may have changed
// after the move. Precondition: x.mu is held.
func (x *Index) leave(path string, hashes []string) {
	at := time.Now()
	for _, hash := range hashes {
		list := slices.DeleteFunc(x.gone[hash], func(g Gone) bool { return at.Sub(g.At) > GoneFor || g.Path == path })
		if len(list) == maxGone {
			list = slices.Delete(list, 0, 1)
		}
		x.gone[hash] = append(list, Gone{Path: path, At: at})
	}
	if len(x.gone) > x.goneLimit {
		maps.DeleteFunc(x.gone, func(_ string, list []Gone) bool { return at.Sub(list[len(list)-1].At) > GoneFor })
		x.goneLimit = max(maxMemory, 2*len(x.gone)) // so that this costs little for each
	}
}

// goneOf gives the paths that led to a directory with a hash, but don't now. Precondition: x.mu is held.
func (x *Index) goneOf(hash string) []Gone {
	if len(x.gone[hash]) == 0 {
		return nil
	}
	there := make(map[string]bool) // by every path, of which an answer has one of a directory
	for f := range x.byHash[hash] {
		there[f.path] = true
	}
	var list []Gone
	for _, g := range x.gone[hash] {
		if !there[g.Path] {
			list = append(list, g)
		}
	}
	return list
}
