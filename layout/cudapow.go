// SPDX-FileCopyrightText: The wcache authors
// SPDX-License-Identifier: MIT

package layout

import "math"

// An engine on a GPU computes its rope frequencies there, and CUDA's powf differs from a
// CPU's in the last bit for a few of them. At high positions that changes sines by much
// more than their own last bit, so for a GPU the powers are corrected from a record of
// CUDA's results.

// rotation is what the powers of a rope depend on.
type rotation struct {
	base float32
	dim  int
}

// step says by how many representable values CUDA's power at an index differs.
type step struct {
	index int
	by    int32
}

// onCUDA changes powers to CUDA's results; if those aren't recorded, it returns false and
// changes nothing.
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
