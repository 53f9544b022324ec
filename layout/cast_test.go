// SPDX-FileCopyrightText: The wcache authors
// SPDX-License-Identifier: MIT

package layout

import (
	"encoding/binary"
	"math"
	"testing"

	"github.com/wcache/wcache/tensor"
)

// TestHalf decodes and rounds every float16.
func TestHalf(t *testing.T) {
	decode, round := decoder(tensor.F16), rounder(tensor.F16)
	for bits := range 1 << 16 {
		x := decode(binary.LittleEndian.AppendUint16(nil, uint16(bits)))
		if y := round(x); y != x && x == x {
			t.Fatalf("%#04x is %v, and %v once rounded", bits, x, y)
		}
		if back := halfBits(math.Float32bits(x)); back != uint16(bits) && x == x {
			t.Fatalf("%#04x comes back as %#04x", bits, back)
		}
	}
}

func TestRound(t *testing.T) {
	inf := float32(math.Inf(1))
	tests := []struct {
		dtype tensor.DType
		x     float32
		want  float32
	}{
		{tensor.F32, 0x1.000002p0, 0x1.000002p0},
		{tensor.BF16, 0x1.01p0, 0x1p0}, // ties go to even
		{tensor.BF16, 0x1.03p0, 0x1.04p0},
		{tensor.BF16, 0x1.010002p0, 0x1.02p0},
		{tensor.BF16, math.MaxFloat32, inf},
		{tensor.BF16, 0x1p-149, 0},
		{tensor.BF16, -0x1p-133, -0x1p-133},
		{tensor.BF16, -inf, -inf},
		{tensor.F16, 0x1.002p0, 0x1p0},
		{tensor.F16, 0x1.006p0, 0x1.008p0},
		{tensor.F16, 65519.996, 65504},
		{tensor.F16, -65520, -inf},
		{tensor.F16, inf, inf},
		{tensor.F16, 0x1p-25, 0},
		{tensor.F16, 0x1.8p-24, 0x1p-23},
		{tensor.F16, -0x1.000002p-25, -0x1p-24},
		{tensor.F16, 0x1.fffp-15, 0x1p-14},
	}
	for _, tt := range tests {
		if got := rounder(tt.dtype)(tt.x); got != tt.want || math.Signbit(float64(got)) != math.Signbit(float64(tt.x)) {
			t.Errorf("%v as %s is %v, want %v", tt.x, tt.dtype, got, tt.want)
		}
	}
	for _, d := range []tensor.DType{tensor.BF16, tensor.F16} {
		if x := rounder(d)(float32(math.NaN())); x == x {
			t.Errorf("NaN as %s is %v", d, x)
		}
	}
	if x := decoder(tensor.F64)(binary.LittleEndian.AppendUint64(nil, math.Float64bits(1+0x1p-25))); x != 1 {
		t.Errorf("float64 rounds to %v", x)
	}
}
