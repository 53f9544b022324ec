// SPDX-FileCopyrightText: The wcache authors
// SPDX-License-Identifier: MIT

package tensor

import "fmt"

// DType is an element type. The zero value is invalid.
type DType uint8

// The 22 element types of safetensors 0.8 (enum Dtype of its tensor.rs), in its order: by rising
// alignment.
const (
	_ DType = iota
	Bool
	F4
	F6E2M3
	F6E3M2
	U8
	I8
	F8E5M2
	F8E4M3
	F8E8M0
	F8E4M3FNUZ
	F8E5M2FNUZ
	I16
	U16
	F16
	BF16
	I32
	U32
	F32
	C64
	F64
	I64
	U64
	dtypeEnd
)

// torch is the name of torch's dtype with the same bytes, "" if it has none.
var dtypes = [dtypeEnd]struct {
	name  string
	torch string
	bits  int
}{
	Bool:       {"BOOL", "bool", 8},
	F4:         {"F4", "", 4}, // torch has only float4_e2m1fn_x2, two values per element
	F6E2M3:     {"F6_E2M3", "", 6},
	F6E3M2:     {"F6_E3M2", "", 6},
	U8:         {"U8", "uint8", 8},
	I8:         {"I8", "int8", 8},
	F8E5M2:     {"F8_E5M2", "float8_e5m2", 8},
	F8E4M3:     {"F8_E4M3", "float8_e4m3fn", 8},
	F8E8M0:     {"F8_E8M0", "float8_e8m0fnu", 8},
	F8E4M3FNUZ: {"F8_E4M3FNUZ", "float8_e4m3fnuz", 8},
	F8E5M2FNUZ: {"F8_E5M2FNUZ", "float8_e5m2fnuz", 8},
	I16:        {"I16", "int16", 16},
	U16:        {"U16", "uint16", 16},
	F16:        {"F16", "float16", 16},
	BF16:       {"BF16", "bfloat16", 16},
	I32:        {"I32", "int32", 32},
	U32:        {"U32", "uint32", 32},
	F32:        {"F32", "float32", 32},
	C64:        {"C64", "complex64", 64},
	F64:        {"F64", "float64", 64},
	I64:        {"I64", "int64", 64},
	U64:        {"U64", "uint64", 64},
}

// Valid reports whether d is one of the element types above.
func (d DType) Valid() bool { return d > 0 && d < dtypeEnd }

// String is the name in a safetensors header, such as "BF16".
func (d DType) String() string {
	if !d.Valid() {
		return fmt.Sprintf("DType(%d)", uint8(d))
	}
	return dtypes[d].name
}

// Torch is torch's name without the module, such as "bfloat16"; "" if torch has no such type.
func (d DType) Torch() string {
	if !d.Valid() {
		return ""
	}
	return dtypes[d].torch
}

// Bits is the size of an element in bits.
func (d DType) Bits() int {
	if !d.Valid() {
		return 0
	}
	return dtypes[d].bits
}

// Size is the size of an element in bytes, 0 for types smaller than a byte.
func (d DType) Size() int { return d.Bits() / 8 }

// ParseDType reads a type's name in a safetensors header, such as "BF16".
func ParseDType(name string) (DType, error) {
	for d := DType(1); d < dtypeEnd; d++ {
		if dtypes[d].name == name {
			return d, nil
		}
	}
	return 0, fmt.Errorf("parse element type: unknown %q", name)
}

// ParseTorch reads torch's name of a type, with the module: "torch.bfloat16".
func ParseTorch(name string) (DType, error) {
	for d := DType(1); d < dtypeEnd; d++ {
		if t := dtypes[d].torch; t != "" && "torch."+t == name {
			return d, nil
		}
	}
	return 0, fmt.Errorf("parse torch dtype: unknown %q", name)
}

// MarshalText writes the safetensors name.
func (d DType) MarshalText() ([]byte, error) {
	if !d.Valid() {
		return nil, fmt.Errorf("encode element type: no such type %d", uint8(d))
	}
	return []byte(d.String()), nil
}

// UnmarshalText reads the safetensors name.
func (d *DType) UnmarshalText(b []byte) error {
	v, err := ParseDType(string(b))
	*d = v
	return err
}
