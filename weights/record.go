// SPDX-FileCopyrightText: The wcache authors
// SPDX-License-Identifier: MIT

package weights

import (
	"maps"
	"slices"

	"github.com/wcache/wcache/stamp"
)

// Record is what has to be kept of a Dir, across restarts too, to tell later
// whether the directory is unchanged.
type Record struct {
	Path    string // of the directory, absolute
	Indexed bool   // model.safetensors.index.json says which files count
	Files   []Stamp
}

// Stamp is the state of one file of a model directory.
type Stamp struct {
	Name  string      // base name
	Stamp stamp.Stamp // zero: a symlink to nothing
	Used  bool        // whether a change of it matters
}

// Record gives the record of a directory, with its files sorted by name.
func (d *Dir) Record() Record {
	r := Record{Path: d.Path, Indexed: d.indexed}
	for _, name := range slices.Sorted(maps.Keys(d.have)) {
		r.Files = append(r.Files, Stamp{Name: name, Stamp: d.have[name], Used: slices.Contains(d.used, name)})
	}
	return r
}

// Stale reports what [Dir.Stale] of the recorded directory would report.
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
