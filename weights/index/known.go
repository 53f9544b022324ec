// SPDX-FileCopyrightText: The wcache authors
// SPDX-License-Identifier: MIT

package index

// Known gives the directories that were last seen with a checkpoint hash, by path. It
// doesn't wait, so it may know less than [Index.Lookup].
func (x *Index) Known(hash string) []Dir {
	x.mu.Lock()
	defer x.mu.Unlock()
	found := make(claims)
	for f := range x.byHash[hash] {
		if !f.dropped && !f.root.removed && f.model != nil {
			found.add(f.key, claim{path: f.path, links: f.pathLinks, sure: true, edition: f.model.edition})
		}
	}
	a := found.answer()
	a.sort()
	return a.Dirs
}
