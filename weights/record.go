// SPDX-FileCopyrightText: The wcache authors
// SPDX-License-Identifier: MIT

package weights

import (
	"maps"
	"slices"

	"github.com/wcache/wcache/stamp"
)

// Record is what has to be kept of a Dir, across restarts too, to tell later
// whether it is still the same.
type Record struct {
	Path    string // of the directory, absolute
	Indexed bool   // model.safetensors.index.json says which files count
	Files   []Stamp
}

// Stamp is a file of a model directory as it was.
type Stamp struct {
	Name  string      // base name
	Stamp stamp.Stamp // zero: a symlink to nothing
	Used  bool        // whether a change of it matters
}

// Record gives the record of a directory, its files by name.
func (d *Dir) Record() Record {
	r := Record{Path: d.Path, Indexed: d.indexed}
	for _, name := range slices.Sorted(maps.Keys(d.have)) {
		r.Files = append(r.Files, Stamp{Name: name, Stamp: d.have[name], Used: slices.Contains(d.used, name)})
	}
	return r
}

// Stale is what [Dir.Stale] of the recorded directory would say.
func (r Record) Stale() error {
	d := Dir{Path: r.Path, indexed: r.Indexed, have: make(map[string]stamp.Stamp)}
	for _, f := range r.Files {
		d.have[f.Name] = f.Stamp
		if f.Used {
			d.used = append(d.used, f.Name)
		}
	}
	return d.Stale()
}
