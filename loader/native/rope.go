// SPDX-FileCopyrightText: The wcache authors
// SPDX-License-Identifier: MIT

package native

import (
	"encoding/binary"
	"math"

	"github.com/wcache/wcache/layout"
	"github.com/wcache/wcache/tensor"
	"github.com/wcache/wcache/tensor/cast"
)

// ropeRows writes rows [first, first+n) of a cos_sin_cache. Each float32 step is
// rounded by a conversion, lest a compiler fuses two: the angle is what torch
// computes, while a cosine may differ from torch's by a unit in the last place.
func ropeRows(dst []byte, r *layout.Rope, first, n int64) {
	size, half := r.To.Size(), len(r.InvFreq)
	for i := range n {
		t := float32(first+i) / r.PositionScale
		row := dst[i*r.RowBytes():]
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
		binary.LittleEndian.PutUint16(dst, cast.F16(bits))
	case tensor.BF16:
		binary.LittleEndian.PutUint16(dst, cast.BF16(bits))
	case tensor.F32:
		binary.LittleEndian.PutUint32(dst, bits)
	}
}
