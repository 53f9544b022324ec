// SPDX-FileCopyrightText: The wcache authors
// SPDX-License-Identifier: MIT

package index

import (
	"maps"
	"slices"
	"time"
)

// GoneFor is how long it is remembered that a directory had a hash. vLLM's engines read
// headers right before they ask, and ask again with the same key for 5 minutes.
const GoneFor = 10 * time.Minute

// maxGone is how many directories of a hash are remembered, the latest.
const maxGone = 64

// part notes that a directory doesn't hold what it held. It may have the hash again,
// or still: then [Index.goneOf] leaves it out for as long as it does. Precondition:
// x.mu is held.
func (x *Index) part(f *folder, old, now *model) {
	had := old.hashes()
	if had == nil {
		had = f.had // for all that is known it had them again meanwhile
	}
	f.had = nil
	if now != nil && now.md5 == "" {
		f.had = had
	}
	x.leave(f.path, had)
}

// leave notes that a path led to a directory with these hashes. One that is at another
// place now counts: the number of its inode can be that of a new one, and what it holds
// may be changed there. Precondition: x.mu is held.
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

// goneOf gives the paths that led to a directory with a hash and don't now. Precondition: x.mu is held.
func (x *Index) goneOf(hash string, now []Dir) []Gone {
	var list []Gone
	for _, g := range x.gone[hash] {
		if !slices.ContainsFunc(now, func(d Dir) bool { return d.Path == g.Path }) {
			list = append(list, g)
		}
	}
	return list
}
