// SPDX-FileCopyrightText: The wcache authors
// SPDX-License-Identifier: MIT

package safetensors

import "hash/maphash"

// names is the set of names of a list of tensors, stored as places in the list: a map of
// the names themselves would take as much memory as the list.
type names struct {
	seed  maphash.Seed
	slots []int32 // place+1 in the list, 0 for none; at the hash or after it
}

// newNames makes the set for a list of at most most tensors, which is below 2^31.
func newNames(most int) names {
	n := 8
	for n < most+most/2 {
		n *= 2
	}
	return names{maphash.MakeSeed(), make([]int32, n)}
}

// add adds the name of the next tensor of the list; it returns false if the name is taken.
func (n *names) add(list []Tensor, name string) bool {
	at := int(maphash.String(n.seed, name)) & (len(n.slots) - 1)
	for n.slots[at] != 0 {
		if list[n.slots[at]-1].Name == name {
			return false
		}
		at = (at + 1) & (len(n.slots) - 1)
	}
	n.slots[at] = int32(len(list) + 1)
	return true
}
