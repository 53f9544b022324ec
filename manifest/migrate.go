// SPDX-FileCopyrightText: The wcache authors
// SPDX-License-Identifier: MIT

package manifest

import (
	"time"

	"github.com/wcache/wcache/stamp"
)

// first is the manifest of schema 1, of from before wcache 0.1.0: an entry's id was that of
// its key, and files were told by size, modification time and inode.
type first struct {
	Schema      int     `toml:"schema"`
	Uncorrected *int64  `toml:"uncorrected_errors"`
	Entries     []entry `toml:"entry"`
}

type entry struct {
	Entry
	Files []file `toml:"file"` // in place of Entry's
}

type file struct {
	Name  string    `toml:"name"`
	Size  int64     `toml:"size"`
	MTime time.Time `toml:"mtime"`
	Inode uint64    `toml:"inode"`
	Used  bool      `toml:"used"`
}

// migrate reads schema 1. What it didn't note of a file is 0, which is a difference:
// before such an entry is served its memory is compared with its files.
func migrate(b []byte) (*Manifest, error) {
	var old first
	if err := strictly(b, &old); err != nil {
		return nil, err
	}
	m := &Manifest{Uncorrected: old.Uncorrected}
	for _, e := range old.Entries {
		k, err := key(e.Fields)
		if err == nil && e.ID == k.ID() { // else check says what is wrong
			e.ID = ID(k, e.Dir)
		}
		e.Entry.Files = nil
		for _, f := range e.Files {
			s := stamp.Stamp{Size: f.Size, MTime: f.MTime.UnixNano(), Inode: f.Inode}
			if f.Inode == 0 { // a link to nothing
				s = stamp.Stamp{}
			}
			e.Entry.Files = append(e.Entry.Files, File{Name: f.Name, Stamp: s, Used: f.Used})
		}
		m.Entries = append(m.Entries, e.Entry)
	}
	return m, nil
}
