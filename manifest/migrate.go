// SPDX-FileCopyrightText: The wcache authors
// SPDX-License-Identifier: MIT

package manifest

import (
	"time"

	"github.com/wcache/wcache/stamp"
)

// first is the manifest of schema 1, from before wcache 0.1.0: an entry had the id of its key,
// and a file was identified by size, modification time and inode.
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

// migrate reads schema 1. Fields of a file's stamp that schema 1 lacks become 0, which counts
// as a change: before the daemon serves such an entry it compares the memory with the files.
func migrate(b []byte) (*Manifest, error) {
	var old first
	if err := strictly(b, &old); err != nil {
		return nil, err
	}
	m := &Manifest{Uncorrected: old.Uncorrected}
	for _, e := range old.Entries {
		k, err := key(e.Fields)
		if err == nil && e.ID == k.ID() { // otherwise check reports the error
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
