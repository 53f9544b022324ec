// SPDX-FileCopyrightText: The wcache authors
// SPDX-License-Identifier: MIT

// Package tensor describes tensors in memory: element types, shapes, and the [Table] with the
// place of each tensor of a model. It has no data and opens no files.
//
// The terms are torch's: a tensor is a strided view of a storage, and a storage
// is a range of bytes of the segment, which is the memory of the whole model.
package tensor

import (
	"encoding/json"
	"fmt"
	"math"
	"math/bits"
	"slices"
)

// Limits of a table. The largest published models have some 100,000 tensors.
const (
	MaxTensors = 1 << 20
	MaxDims    = 16
	MaxName    = 1 << 12
	MaxEncoded = 256 << 20 // bytes of an encoded table
)

// Alignment of a storage in its segment, in bytes. It is enough for every element type, and is
// the alignment of torch's own allocators.
const Alignment = 256

// Kind distinguishes parameters and buffers, with the names of vLLM's TensorEntry.
type Kind string

// The two kinds that an engine knows.
const (
	Param  Kind = "param"
	Buffer Kind = "buffer"
)

// Tensor is one named tensor: a strided view of a storage.
type Tensor struct {
	Name    string  `json:"name"`
	Kind    Kind    `json:"kind"`
	DType   DType   `json:"dtype"`
	Shape   []int64 `json:"shape"`   // elements per dimension, empty for a scalar
	Stride  []int64 `json:"stride"`  // elements, one per dimension
	Offset  int64   `json:"offset"`  // elements from the storage's start
	Storage int     `json:"storage"` // index into Table.Storages
}

// Storage is a range of bytes of the segment. Tensors are views of it.
type Storage struct {
	Offset int64 `json:"offset"` // bytes from the segment's start, a multiple of Alignment
	Bytes  int64 `json:"bytes"`
}

// Alias is a second name of a tensor of the table.
type Alias struct {
	Name   string `json:"name"`
	Target string `json:"target"`
}

// Attr is a boolean attribute of the model class that the engine sets.
type Attr struct {
	Name  string `json:"name"`
	Value bool   `json:"value"`
}

// Table is everything that an engine needs to know about one rank of a model in memory. Tensors,
// Aliases and Attrs are in the engine's order.
type Table struct {
	Segment  int64     `json:"-"` // size in bytes of the whole memory, as rounded up by the device
	Storages []Storage `json:"storages"`
	Tensors  []Tensor  `json:"tensors"`
	Aliases  []Alias   `json:"aliases"`
	Attrs    []Attr    `json:"attrs"`
}

// Elements is the number of elements of a shape; it is -1 for a negative
// dimension or when the product exceeds an int64.
func Elements(shape []int64) int64 {
	n := uint64(1)
	for _, d := range shape {
		if d < 0 {
			return -1
		}
		hi, lo := bits.Mul64(n, uint64(d))
		if hi != 0 || lo > math.MaxInt64 {
			return -1
		}
		n = lo
	}
	return int64(n)
}

// Contiguous is the row-major stride of a shape, as torch computes it: a
// dimension of zero elements counts as one.
func Contiguous(shape []int64) []int64 {
	stride := make([]int64, len(shape))
	n := int64(1)
	for i, d := range slices.Backward(shape) {
		stride[i] = n
		n *= max(d, 1)
	}
	return stride
}

// Bytes is the sum of the distinct storages: the memory that counts for an engine that maps the
// table.
func (t *Table) Bytes() int64 {
	var n int64
	for _, s := range t.Storages {
		n += s.Bytes
	}
	return n
}

// Validate reports the first rule that the table breaks. Engines don't check tables, so wcache
// validates each table before it sends it.
func (t *Table) Validate() error {
	if len(t.Tensors) == 0 {
		return fmt.Errorf("check table: no tensors")
	}
	if len(t.Tensors) > MaxTensors || len(t.Storages) > MaxTensors || len(t.Aliases) > MaxTensors {
		return fmt.Errorf("check table: more than %d tensors", MaxTensors)
	}
	for i, s := range t.Storages {
		if s.Offset < 0 || s.Bytes < 0 || s.Offset%Alignment != 0 || s.Bytes > t.Segment-s.Offset {
			return fmt.Errorf("check table: storage %d: bytes %d+%d are not an aligned part of a segment of %d", i, s.Offset, s.Bytes, t.Segment)
		}
	}
	if t.Bytes() == 0 {
		return fmt.Errorf("check table: no bytes")
	}
	names := make(map[string]bool, len(t.Tensors)+len(t.Aliases))
	for i := range t.Tensors {
		if err := t.checkTensor(&t.Tensors[i]); err != nil {
			return fmt.Errorf("check table: tensor %q: %w", t.Tensors[i].Name, err)
		}
		if names[t.Tensors[i].Name] {
			return fmt.Errorf("check table: tensor %q: named twice", t.Tensors[i].Name)
		}
		names[t.Tensors[i].Name] = true
	}
	targets := len(names)
	for _, a := range t.Aliases {
		if names[a.Name] || a.Name == "" || len(a.Name) > MaxName {
			return fmt.Errorf("check table: alias %q: empty, too long, or named twice", a.Name)
		}
		names[a.Name] = true
	}
	first := make(map[string]bool, targets)
	for i := range t.Tensors {
		first[t.Tensors[i].Name] = true
	}
	for _, a := range t.Aliases {
		if !first[a.Target] {
			return fmt.Errorf("check table: alias %q: no tensor %q", a.Name, a.Target)
		}
	}
	return nil
}

func (t *Table) checkTensor(x *Tensor) error {
	switch {
	case x.Name == "" || len(x.Name) > MaxName:
		return fmt.Errorf("name is empty or over %d bytes", MaxName)
	case x.Kind != Param && x.Kind != Buffer:
		return fmt.Errorf("kind %q", x.Kind)
	case !x.DType.Valid():
		return fmt.Errorf("element type %d", x.DType)
	case len(x.Shape) > MaxDims || len(x.Shape) != len(x.Stride):
		return fmt.Errorf("%d dimensions and %d strides", len(x.Shape), len(x.Stride))
	case x.Storage < 0 || x.Storage >= len(t.Storages):
		return fmt.Errorf("no storage %d", x.Storage)
	case x.Offset < 0:
		return fmt.Errorf("offset %d", x.Offset)
	}
	n := Elements(x.Shape)
	if n < 0 {
		return fmt.Errorf("shape %v", x.Shape)
	}
	if n == 0 {
		return nil
	}
	last := uint64(x.Offset)
	for i, d := range x.Shape {
		if x.Stride[i] < 0 {
			return fmt.Errorf("stride %v", x.Stride)
		}
		hi, lo := bits.Mul64(uint64(d-1), uint64(x.Stride[i]))
		if last += lo; hi != 0 || lo > math.MaxInt64 || last > math.MaxInt64 {
			return fmt.Errorf("shape %v with stride %v is too large", x.Shape, x.Stride)
		}
	}
	hi, end := bits.Mul64(last+1, uint64(x.DType.Bits()))
	if hi != 0 || (end+7)/8 > uint64(t.Storages[x.Storage].Bytes) {
		return fmt.Errorf("shape %v, stride %v, offset %d overrun a storage of %d bytes", x.Shape, x.Stride, x.Offset, t.Storages[x.Storage].Bytes)
	}
	return nil
}

// encoded is a table as JSON. Its list of segments has one element in all versions.
type encoded struct {
	Segments []int64 `json:"segments"`
	*plain
}

// plain is a table without methods, so that encoding/json doesn't call them.
type plain Table

// MarshalJSON is for [encoding/json].
func (t *Table) MarshalJSON() ([]byte, error) {
	return json.Marshal(encoded{Segments: []int64{t.Segment}, plain: (*plain)(t)})
}

// UnmarshalJSON is for [encoding/json].
func (t *Table) UnmarshalJSON(b []byte) error {
	e := encoded{plain: (*plain)(t)}
	if err := json.Unmarshal(b, &e); err != nil {
		return err
	}
	if len(e.Segments) != 1 {
		return fmt.Errorf("%d segments, not one", len(e.Segments))
	}
	t.Segment = e.Segments[0]
	return nil
}

// Encode writes a table as JSON, its form in the fd store.
func (t *Table) Encode() ([]byte, error) {
	b, err := json.Marshal(t)
	if err != nil {
		return nil, fmt.Errorf("encode table: %w", err)
	}
	if len(b) > MaxEncoded {
		return nil, fmt.Errorf("encode table: %d bytes are over the limit of %d", len(b), MaxEncoded)
	}
	return b, nil
}

// Decode reads the result of Encode and validates it.
func Decode(b []byte) (*Table, error) {
	if len(b) > MaxEncoded {
		return nil, fmt.Errorf("decode table: %d bytes are over the limit of %d", len(b), MaxEncoded)
	}
	t := new(Table)
	if err := json.Unmarshal(b, t); err != nil {
		return nil, fmt.Errorf("decode table: %w", err)
	}
	if err := t.Validate(); err != nil {
		return nil, err
	}
	return t, nil
}
