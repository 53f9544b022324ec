// SPDX-FileCopyrightText: The wcache authors
// SPDX-License-Identifier: MIT

package layout

import "math"

// An engine on a GPU computes its rope frequencies there, and CUDA's powf ends on
// another last bit than a CPU's for a few of them. At high positions that moves
// sines by much more than their own last bit, so for a GPU the powers are put
// right from a record of what CUDA gives.

// rotation is what the powers of a rope depend on.
type rotation struct {
	base float32
	dim  int
}

// step is by how many representable values CUDA's power of an index differs.
type step struct {
	index int
	by    int32
}

// onCUDA changes powers to what CUDA gives; false where that isn't recorded, and
// nothing is changed.
func onCUDA(powers []float32, base float64, dim int) bool {
	steps, ok := cudaPowers[rotation{float32(base), dim}]
	if !ok || float64(float32(base)) != base {
		return false
	}
	for _, s := range steps {
		powers[s.index] = math.Float32frombits(uint32(int32(math.Float32bits(powers[s.index])) + s.by))
	}
	return true
}
