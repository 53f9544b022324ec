// SPDX-FileCopyrightText: The wcache authors
// SPDX-License-Identifier: MIT

package native

import (
	"encoding/binary"
	"math"

	"github.com/wcache/wcache/layout"
	"github.com/wcache/wcache/tensor"
)

// ropeRowBytes is the size of one row of a cos_sin_cache.
func ropeRowBytes(r *layout.Rope) int64 {
	return int64(2*len(r.InvFreq)) * int64(r.To.Size())
}

// ropeRows writes rows [first, first+n) of a cos_sin_cache. A conversion rounds each float32
// step, so that the compiler can't fuse two: the angle is exactly torch's, while a cosine may
// differ from torch's by a unit in the last place.
func ropeRows(dst []byte, r *layout.Rope, first, n int64) {
	size, half := r.To.Size(), len(r.InvFreq)
	for i := range n {
		t := float32(first+i) / r.PositionScale
		row := dst[i*ropeRowBytes(r):]
		for j, f := range r.InvFreq {
			sin, cos := math.Sincos(float64(float32(t * f)))
			putFloat(row[j*size:], r.To, float32(float32(cos)*r.Magnitude))
			putFloat(row[(half+j)*size:], r.To, float32(float32(sin)*r.Magnitude))
		}
	}
}

// putFloat writes v as one of the types that check allows for a Rope.
func putFloat(dst []byte, to tensor.DType, v float32) {
	switch bits := math.Float32bits(v); to {
	case tensor.F16:
		binary.LittleEndian.PutUint16(dst, f16(bits))
	case tensor.BF16:
		binary.LittleEndian.PutUint16(dst, bf16(bits))
	case tensor.F32:
		binary.LittleEndian.PutUint32(dst, bits)
	}
}
