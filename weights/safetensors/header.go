// SPDX-FileCopyrightText: The wcache authors
// SPDX-License-Identifier: MIT

// Package safetensors reads the header of a safetensors file: which tensors it
// holds, and where. It never reads their data.
//
// The format is that of the safetensors crate, release 0.8: eight bytes of
// little-endian length, that many bytes of JSON, and the data.
package safetensors

import (
	"fmt"
	"io"

	"github.com/wcache/wcache/tensor"
)

// MaxHeader is the limit of a header's JSON in bytes, from MAX_HEADER_SIZE in the
// crate's tensor.rs.
const MaxHeader = 100_000_000

// Header is what a file says of itself. It is safe for concurrent use as long as
// nobody writes to it.
type Header struct {
	Raw      []byte            // the JSON as it lies in the file, padding included
	Tensors  []Tensor          // by offset, then by name; their data is without holes
	Metadata map[string]string // __metadata__, nil without one
	Data     int64             // bytes from the file's start to the data
}

// Tensor is one tensor of a file.
type Tensor struct {
	Name       string
	DType      tensor.DType
	Shape      []int64 // elements a dimension, empty for a scalar
	Begin, End int64   // bytes from Header.Data
}

// FormatError is the rule that a file breaks. It names no file: callers do.
type FormatError struct {
	Tensor string // "" where it is the header as a whole
	Reason string
}

func (e *FormatError) Error() string {
	if e.Tensor == "" {
		return "read safetensors header: " + e.Reason
	}
	return fmt.Sprintf("read safetensors header: tensor %q: %s", e.Tensor, e.Reason)
}

// ReadHeader reads and checks the header of a file of size bytes. The error is a
// [*FormatError] where the file is at fault, else what r returned.
func ReadHeader(r io.ReaderAt, size int64) (*Header, error) {
	panic("not yet")
}

// ReadRaw reads a header's JSON and checks its length alone.
func ReadRaw(r io.ReaderAt, size int64) ([]byte, error) {
	panic("not yet")
}
