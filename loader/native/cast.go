// SPDX-FileCopyrightText: The wcache authors
// SPDX-License-Identifier: MIT

package native

import (
	"encoding/binary"
	"math"

	"github.com/wcache/wcache/layout"
	"github.com/wcache/wcache/tensor"
)

// castFunc converts the elements of src to as many in dst, both little endian.
// It is safe for concurrent use.
type castFunc func(dst, src []byte)

// caster returns the conversion that torch's copy_ does on a CPU, bit for bit: it rounds to
// nearest even, and converts float64 by way of float32. Torch has several rules for NaNs;
// caster follows its vector code for x86-64 (AVX2 and AVX-512), which torch uses for all but
// the last few elements of a tensor. Nil: it has no such conversion.
func caster(from, to tensor.DType) castFunc {
	switch [2]tensor.DType{from, to} {
	case [2]tensor.DType{tensor.F16, tensor.BF16}:
		return lookup(func(v uint16) uint16 {
			if v&0x7fff > 0x7c00 {
				return 0x7fc0 // torch has no vector code for this pair
			}
			return bf16(f16to32(v))
		})
	case [2]tensor.DType{tensor.BF16, tensor.F16}:
		return lookup(func(v uint16) uint16 { return f16(uint32(v) << 16) })
	case [2]tensor.DType{tensor.F16, tensor.F32}:
		return widenF16
	case [2]tensor.DType{tensor.BF16, tensor.F32}:
		return widenBF16
	case [2]tensor.DType{tensor.F32, tensor.F16}:
		return narrowF16
	case [2]tensor.DType{tensor.F32, tensor.BF16}:
		return narrowBF16
	case [2]tensor.DType{tensor.F64, tensor.F16}:
		return func(dst, src []byte) { narrow64(dst, src, f16) }
	case [2]tensor.DType{tensor.F64, tensor.BF16}:
		return func(dst, src []byte) { narrow64(dst, src, bf16) }
	case [2]tensor.DType{tensor.F64, tensor.F32}:
		return narrowF32
	}
	return nil
}

// castable reports whether caster has the conversion.
func castable(from, to tensor.DType) bool {
	switch from {
	case tensor.F16, tensor.BF16, tensor.F32, tensor.F64:
		return from != to && (to == tensor.F16 || to == tensor.BF16 || to == tensor.F32)
	}
	return false
}

// casts holds the conversions that a plan's copies need, each made once.
type casts map[[2]tensor.DType]castFunc

func castsOf(copies []layout.Copy) casts {
	m := make(casts)
	for i := range copies {
		pair := [2]tensor.DType{copies[i].From, copies[i].To}
		if _, ok := m[pair]; !ok && pair[0] != pair[1] {
			m[pair] = caster(pair[0], pair[1])
		}
	}
	return m
}

// of is nil for a copy that casts nothing.
func (m casts) of(c *layout.Copy) castFunc { return m[[2]tensor.DType{c.From, c.To}] }

// lookup makes a conversion from a type of 16 bits by a table of all its values.
func lookup(f func(uint16) uint16) castFunc {
	table := new([1 << 16]uint16)
	for i := range table {
		table[i] = f(uint16(i))
	}
	return func(dst, src []byte) {
		for len(src) >= 8 && len(dst) >= 8 {
			v := binary.LittleEndian.Uint64(src)
			binary.LittleEndian.PutUint64(dst, uint64(table[uint16(v)])|uint64(table[uint16(v>>16)])<<16|
				uint64(table[uint16(v>>32)])<<32|uint64(table[uint16(v>>48)])<<48)
			src, dst = src[8:], dst[8:]
		}
		for i := 0; i+2 <= len(src); i += 2 {
			binary.LittleEndian.PutUint16(dst[i:], table[binary.LittleEndian.Uint16(src[i:])])
		}
	}
}

func widenF16(dst, src []byte) {
	for len(src) >= 2 && len(dst) >= 4 {
		binary.LittleEndian.PutUint32(dst, f16to32(binary.LittleEndian.Uint16(src)))
		src, dst = src[2:], dst[4:]
	}
}

func widenBF16(dst, src []byte) {
	for len(src) >= 2 && len(dst) >= 4 {
		binary.LittleEndian.PutUint32(dst, uint32(binary.LittleEndian.Uint16(src))<<16)
		src, dst = src[2:], dst[4:]
	}
}

func narrow64(dst, src []byte, f func(uint32) uint16) {
	for i := 0; i+8 <= len(src); i += 8 {
		binary.LittleEndian.PutUint16(dst[i/4:], f(f64to32(binary.LittleEndian.Uint64(src[i:]))))
	}
}

func narrowF32(dst, src []byte) {
	for i := 0; i+8 <= len(src); i += 8 {
		binary.LittleEndian.PutUint32(dst[i/2:], f64to32(binary.LittleEndian.Uint64(src[i:])))
	}
}

// narrowF16 converts four elements at a time, with fewer steps if all become normal numbers.
func narrowF16(dst, src []byte) {
	for len(src) >= 16 && len(dst) >= 8 {
		v, w := binary.LittleEndian.Uint64(src), binary.LittleEndian.Uint64(src[8:])
		a, b, c, d := uint32(v), uint32(v>>32), uint32(w), uint32(w>>32)
		var out uint64
		if f16isNormal(a) && f16isNormal(b) && f16isNormal(c) && f16isNormal(d) {
			out = f16normal(a) | f16normal(b)<<16 | f16normal(c)<<32 | f16normal(d)<<48
		} else {
			out = uint64(f16(a)) | uint64(f16(b))<<16 | uint64(f16(c))<<32 | uint64(f16(d))<<48
		}
		binary.LittleEndian.PutUint64(dst, out)
		src, dst = src[16:], dst[8:]
	}
	for i := 0; i+4 <= len(src); i += 4 {
		binary.LittleEndian.PutUint16(dst[i/2:], f16(binary.LittleEndian.Uint32(src[i:])))
	}
}

// narrowBF16 converts two elements at a time, in the halves of a word. Unless one is a NaN,
// the sum that rounds the lower half never carries into the upper.
func narrowBF16(dst, src []byte) {
	for len(src) >= 16 && len(dst) >= 8 {
		v, w := binary.LittleEndian.Uint64(src), binary.LittleEndian.Uint64(src[8:])
		out := bf16pair(v) | bf16pair(w)<<32
		if hasNaN(v) || hasNaN(w) {
			out = uint64(bf16(uint32(v))) | uint64(bf16(uint32(v>>32)))<<16 |
				uint64(bf16(uint32(w)))<<32 | uint64(bf16(uint32(w>>32)))<<48
		}
		binary.LittleEndian.PutUint64(dst, out)
		src, dst = src[16:], dst[8:]
	}
	for i := 0; i+4 <= len(src); i += 4 {
		binary.LittleEndian.PutUint16(dst[i/2:], bf16(binary.LittleEndian.Uint32(src[i:])))
	}
}

// hasNaN reports whether one of two float32 is a NaN: added to its absolute value
// is what carries a NaN, and nothing less, into the sign.
func hasNaN(v uint64) bool {
	return (v&0x7fff_ffff_7fff_ffff+0x007f_ffff_007f_ffff)&0x8000_0000_8000_0000 != 0
}

func bf16pair(v uint64) uint64 {
	v += 0x7fff_0000_7fff + v>>16&0x1_0000_0001
	return v>>16&0xffff | v>>32&0xffff_0000
}

// bf16 rounds the bits of a float32 to those of a bfloat16. Every NaN becomes
// 0xffff.
func bf16(v uint32) uint16 {
	if v&0x7fff_ffff > 0x7f80_0000 {
		return 0xffff
	}
	return uint16((v + 0x7fff + v>>16&1) >> 16)
}

// f16 rounds the bits of a float32 to those of a float16. A NaN keeps its sign
// and upper bits and becomes quiet, as by the instruction VCVTPS2PH.
func f16(v uint32) uint16 {
	sign := uint16(v >> 16 & 0x8000)
	abs := v & 0x7fff_ffff
	switch {
	case f16isNormal(v):
		return uint16(f16normal(v))
	case abs > 0x7f80_0000:
		return sign | 0x7e00 | uint16(abs>>13&0x3ff)
	case abs >= f16Inf:
		return sign | 0x7c00
	}
	// A subnormal counts units of 2^-24. Added to 0.5, whose own last bit is that
	// unit, the number is rounded to it by the addition.
	sum := math.Float32bits(math.Float32frombits(abs) + 0.5)
	return sign | uint16(sum-0x3f00_0000)
}

const (
	f16Min = 0x3880_0000 // float32 bits of 2^-14, the smallest normal float16
	f16Inf = 0x477f_f000 // float32 bits of 65520, the smallest number that rounds to infinity
)

// f16isNormal reports whether a float32 becomes a normal float16.
func f16isNormal(v uint32) bool { return v&0x7fff_ffff-f16Min < f16Inf-f16Min }

// f16normal moves the exponent's bias from 127 to 15 and rounds 13 bits away.
func f16normal(v uint32) uint64 {
	abs := v&0x7fff_ffff - (127-15)<<23
	return uint64(v>>16&0x8000 | (abs+0xfff+abs>>13&1)>>13)
}

// f16to32 is exact; a signalling NaN becomes quiet, as by VCVTPH2PS.
func f16to32(v uint16) uint32 {
	sign := uint32(v&0x8000) << 16
	exp, frac := uint32(v>>10&0x1f), uint32(v&0x3ff)
	switch {
	case exp == 0x1f && frac != 0:
		return sign | 0x7fc0_0000 | frac<<13
	case exp == 0x1f:
		return sign | 0x7f80_0000
	case exp == 0:
		return sign | math.Float32bits(float32(frac)*0x1p-24)
	}
	return sign | (exp+112)<<23 | frac<<13
}

func f64to32(v uint64) uint32 {
	return math.Float32bits(float32(math.Float64frombits(v)))
}
