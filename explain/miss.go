// SPDX-FileCopyrightText: The wcache authors
// SPDX-License-Identifier: MIT

package explain

import (
	"slices"

	"github.com/wcache/wcache/control"
	"github.com/wcache/wcache/fingerprint"
	"github.com/wcache/wcache/weights"
)

// Miss is a request that was not answered from memory, with what explains it.
type Miss struct {
	control.Miss
	Differences []Difference `json:"differences"`
}

// Difference is a field in which a request differs from the memory held for it.
type Difference struct {
	Field     string `json:"field"`
	Engine    any    `json:"engine"`
	Held      any    `json:"held"`      // null if nothing similar was held, or it has no such field
	Directory any    `json:"directory"` // null if a directory's files don't decide it
	Option    string `json:"option"`    // what changes it
	Decided   bool   `json:"-"`         // the directory's files decide it
}

// Misses explains requests, the latest first in the list. Only the latest is compared
// with its directory as it is now: the directories of the others may have changed since.
func Misses(list []control.Miss) []Miss {
	out := make([]Miss, 0, len(list))
	for i, m := range list {
		var files []fingerprint.Difference
		if i == 0 {
			files = fromDirectory(m)
		}
		out = append(out, Miss{m, differences(m, files)})
	}
	return out
}

// differences are the fields that explain a miss, in the key's order: fields in which the
// held weights differ, and fields in which the files of the directory differ.
func differences(m control.Miss, files []fingerprint.Difference) []Difference {
	list := []Difference{}
	at := func(field string) *Difference {
		for i := range list {
			if list[i].Field == field {
				return &list[i]
			}
		}
		engine, _ := m.Fingerprint.Get(field)
		d := Difference{Field: field, Engine: engine, Option: fingerprint.OptionOf(field)}
		if m.Held != nil {
			d.Held, _ = m.Held.Fingerprint.Get(field)
		}
		list = append(list, d)
		return &list[len(list)-1]
	}
	if m.Held != nil {
		for _, field := range fingerprint.Compare(m.Fingerprint, m.Held.Fingerprint) {
			at(field)
		}
	}
	for _, f := range files {
		if f.Blame == fingerprint.Unknown {
			continue
		}
		d := at(f.Field)
		d.Directory, d.Decided = f.Computed, true
	}
	if m.Field != "" {
		at(m.Field)
	}
	order := func(field string) int {
		return slices.IndexFunc(m.Fingerprint.Fields(), func(f fingerprint.Field) bool { return f.Name == field })
	}
	slices.SortStableFunc(list, func(x, y Difference) int { return order(x.Field) - order(y.Field) })
	return list
}

// fromDirectory compares a request with its directory: the one that has its headers, else
// the one of the most similar held weights.
func fromDirectory(m control.Miss) []fingerprint.Difference {
	paths := m.Directories
	if len(paths) == 0 && m.Held != nil {
		paths = []string{m.Held.Model}
	}
	if len(paths) == 0 {
		return nil
	}
	dir, err := weights.Open(paths[0])
	if err != nil { // gone since; the message of the miss may say so
		return nil
	}
	return fingerprint.Explain(m.Fingerprint, dir)
}
