// SPDX-FileCopyrightText: The wcache authors
// SPDX-License-Identifier: MIT

package layout

import (
	"encoding/binary"
	"math"

	"github.com/wcache/wcache/tensor"
)

// decoder reads one element, little-endian, as float32. A float64 is rounded to float32
// first, whatever the destination type, as torch's copy does.
func decoder(d tensor.DType) func([]byte) float32 {
	switch d {
	case tensor.BF16:
		return func(b []byte) float32 {
			return math.Float32frombits(uint32(binary.LittleEndian.Uint16(b)) << 16)
		}
	case tensor.F16:
		return func(b []byte) float32 { return fromHalf(binary.LittleEndian.Uint16(b)) }
	case tensor.F64:
		return func(b []byte) float32 { return float32(math.Float64frombits(binary.LittleEndian.Uint64(b))) }
	}
	return func(b []byte) float32 { return math.Float32frombits(binary.LittleEndian.Uint32(b)) }
}

// rounder rounds a float32 to the nearest value of a type, ties to even.
func rounder(d tensor.DType) func(float32) float32 {
	switch d {
	case tensor.BF16:
		return func(x float32) float32 {
			b := math.Float32bits(x)
			if x != x {
				return x
			}
			return math.Float32frombits((b + 0x7fff + b>>16&1) &^ 0xffff)
		}
	case tensor.F16:
		return roundHalf
	}
	return func(x float32) float32 { return x }
}

// fromHalf is the value of a float16.
func fromHalf(h uint16) float32 {
	sign := uint32(h>>15) << 31
	exponent, fraction := h>>10&31, uint32(h&0x3ff)
	switch exponent {
	case 0:
		return math.Float32frombits(math.Float32bits(float32(fraction)*0x1p-24) | sign)
	case 31:
		return math.Float32frombits(sign | 0xff<<23 | fraction<<13)
	}
	return math.Float32frombits(sign | uint32(exponent+127-15)<<23 | fraction<<13)
}

// roundHalf rounds to the nearest float16, which may be an infinity.
func roundHalf(x float32) float32 {
	switch a := math.Abs(float64(x)); {
	case !(a < 65520): // infinities and NaN too
		return float32(math.Copysign(float64(x)*math.Inf(1), float64(x)))
	case a < 0x1p-14: // float16 has steps of 2^-24 here
		return float32(math.Copysign(math.RoundToEven(a*0x1p24)*0x1p-24, float64(x)))
	}
	b := math.Float32bits(x)
	return math.Float32frombits((b + 0xfff + b>>13&1) &^ 0x1fff)
}
