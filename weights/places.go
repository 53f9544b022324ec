// SPDX-FileCopyrightText: The wcache authors
// SPDX-License-Identifier: MIT

package weights

import (
	"cmp"
	"slices"
	"strings"
)

// place says where a tensor is: indexes into a list of files and its Header.Tensors.
type place struct{ file, tensor int32 }

// placeBytes is the size of a place.
const placeBytes = 8

// places lists all tensors of a list of files, by name; of a name that is in several
// files it has the last. A map would take ten times the memory.
type places []place

func sortNames(files []*File) places {
	n := 0
	for _, f := range files {
		n += len(f.Header.Tensors)
	}
	list := make(places, 0, n)
	for i, f := range files {
		for j := range f.Header.Tensors {
			list = append(list, place{int32(i), int32(j)})
		}
	}
	name := func(p place) string { return files[p.file].Header.Tensors[p.tensor].Name }
	slices.SortFunc(list, func(a, b place) int {
		return cmp.Or(strings.Compare(name(a), name(b)), cmp.Compare(b.file, a.file)) // a name occurs once per file
	})
	return slices.CompactFunc(list, func(a, b place) bool { return name(a) == name(b) })
}

func (l places) find(files []*File, name string) (place, bool) {
	i, ok := slices.BinarySearchFunc(l, name, func(p place, name string) int {
		return strings.Compare(files[p.file].Header.Tensors[p.tensor].Name, name)
	})
	if !ok {
		return place{}, false
	}
	return l[i], true
}
