// SPDX-FileCopyrightText: The wcache authors
// SPDX-License-Identifier: MIT

package index

import (
	"cmp"
	"slices"
	"strings"
	"time"
)

// Answer is what the index knows of one checkpoint hash.
type Answer struct {
	// Dirs are the directories that have the hash, by path. A directory that several
	// paths lead to appears once.
	Dirs []Dir
	// Unsure are the directories of which it isn't known now whether they have the
	// hash, by path. A directory is left out if one readable name or header differs from a
	// known directory of the hash.
	Unsure []Unsure
	// Roots are the roots that are not completely known, with the fields that stay the
	// same from one moment to the next: path, state, reason and since.
	Roots []Root
	// Gone are directories that had the hash a short time ago. A directory that was moved
	// and still has the hash may be among them.
	Gone []Gone
	// Version changes whenever anything above changes. See [Index.Current].
	Version uint64
}

// Dir is a model directory.
type Dir struct {
	// Path leads to it: by the names of folders below a root, or, if only symbolic links
	// lead to it, by as few links as possible.
	Path   string
	Device uint64 // as stat's st_dev
	Inode  uint64
	// Edition is a number that changes when a file that can influence what vLLM loads, or
	// its data, may have changed. It means nothing after a restart.
	Edition uint64
}

// Unsure is a directory of which it isn't known whether it has a hash.
type Unsure struct {
	Path   string
	Device uint64
	Inode  uint64
	Err    error // why; often a [*weights.Unusable]
}

// Gone is a directory that had a hash and was removed, has changed, or is in no root now.
type Gone struct {
	Path string
	At   time.Time // when the index noticed, which is after it happened
}

// State is how much of a root is known.
type State string

// The states of a root.
const (
	Complete  State = "complete"  // every folder has been read
	Searching State = "searching" // it is being walked, for the first time or after a change
	Partial   State = "partial"   // some folders could not be read: see the reason
	Hung      State = "hung"      // its file system does not answer
	Missing   State = "missing"   // the folder certainly doesn't exist
)

// Root is a root, or a directory that was added.
type Root struct {
	Path   string
	Added  bool // by [Index.Add]
	State  State
	Reason string    // why it is partial, hung or missing
	Since  time.Time // when the hanging call began
	// Whole says of a hung root that all of it was known when it stopped answering.
	// Answers still contain that, because nothing there can be loaded meanwhile.
	Whole bool
	// Polled says why the root is walked periodically, "" if the kernel reports every
	// change. What is known of a polled root is as old as its last walk.
	Polled string
	Dirs   int           // known folders
	Models int           // of these, folders with weights
	Walked time.Time     // when the last walk ended
	Took   time.Duration // how long the last walk took
}

// sort sorts an answer's lists.
func (a *Answer) sort() {
	slices.SortFunc(a.Dirs, func(a, b Dir) int { return strings.Compare(a.Path, b.Path) })
	slices.SortFunc(a.Unsure, func(a, b Unsure) int { return strings.Compare(a.Path, b.Path) })
	slices.SortFunc(a.Roots, func(a, b Root) int { return strings.Compare(a.Path, b.Path) })
}

// clone copies an answer, so that the caller may change it.
func (a *Answer) clone() Answer {
	return Answer{Dirs: slices.Clone(a.Dirs), Unsure: slices.Clone(a.Unsure), Roots: slices.Clone(a.Roots), Version: a.Version}
}

// equal reports whether two answers are the same apart from their versions.
func (a *Answer) equal(b *Answer) bool {
	return slices.Equal(a.Dirs, b.Dirs) &&
		slices.EqualFunc(a.Unsure, b.Unsure, func(a, b Unsure) bool {
			return a.Path == b.Path && a.Device == b.Device && a.Inode == b.Inode && a.Err.Error() == b.Err.Error()
		}) &&
		slices.Equal(a.Roots, b.Roots)
}

// claim is one folder's part in an answer. If several claims are for one directory,
// the best one counts.
type claim struct {
	path    string
	links   int // symbolic links on the path
	sure    bool
	edition uint64
	err     error // why it isn't sure
}

// better is the order of claims for one directory: sure before unsure, then fewer
// links, then the shorter path.
func (c *claim) better(d *claim) int {
	if c.sure != d.sure {
		if c.sure {
			return -1
		}
		return 1
	}
	return cmp.Or(cmp.Compare(c.links, d.links), comparePaths(c.path, d.path))
}

// comparePaths puts short paths before long ones.
func comparePaths(a, b string) int {
	return cmp.Or(cmp.Compare(strings.Count(a, "/"), strings.Count(b, "/")), strings.Compare(a, b))
}

// claims collects an answer's directories.
type claims map[[2]uint64]*claim

func (m claims) add(id key, c claim) {
	at := [2]uint64{id.device, id.inode}
	if old := m[at]; old == nil || c.better(old) < 0 {
		m[at] = &c
	}
}

// answer gives the directories in the order of an [Answer].
func (m claims) answer() Answer {
	var a Answer
	for at, c := range m {
		if c.sure {
			a.Dirs = append(a.Dirs, Dir{Path: c.path, Device: at[0], Inode: at[1], Edition: c.edition})
		} else {
			a.Unsure = append(a.Unsure, Unsure{Path: c.path, Device: at[0], Inode: at[1], Err: c.err})
		}
	}
	return a
}
