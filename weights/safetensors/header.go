// SPDX-FileCopyrightText: The wcache authors
// SPDX-License-Identifier: MIT

// Package safetensors reads the header of a safetensors file: which tensors it
// holds, and where. It never reads their data.
//
// It follows the safetensors crate, release 0.8: eight bytes of little-endian
// length, that many bytes of JSON, and the data. It also refuses what the crate
// accepts although the format's description forbids it: space before the first
// brace, a duplicate name, a tensor written as an array, and a dimension that only
// an unsigned integer could hold.
package safetensors

import (
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math"
	"math/bits"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/wcache/wcache/tensor"
)

// Limits of a header.
const (
	// MaxHeader limits the JSON, in bytes: MAX_HEADER_SIZE of the crate's tensor.rs.
	// It bounds the number of tensors too, at about two million.
	MaxHeader = 100_000_000
	// MaxDims limits a tensor's dimensions, as torch does.
	MaxDims = 64
	// MaxMetadata limits the names in __metadata__. Files have a few.
	MaxMetadata = 1 << 14
)

// Cost is the most memory that a [Header] takes, in bytes per byte of its JSON, also
// while it is read: one for the text, up to 1.6 for tensors and their names, which need
// 50 bytes of text each, and up to 3 for shapes, whose dimensions need 2 each.
const Cost = 6

// tensorBytes is the size of a Tensor.
const tensorBytes = 64

// minTensor is the shortest JSON of a tensor, in bytes: "":{"dtype":"U8","shape":[],
// "data_offsets":[0,0]} and a comma.
const minTensor = 50

// maxDepth is how deep unknown fields may nest, as in serde_json.
const maxDepth = 127

// Begin is where the JSON begins: after its length, in bytes.
const Begin = 8

// Header is the header of a file. It is safe for concurrent use as long as its fields
// aren't changed.
type Header struct {
	Raw      string            // the JSON as it lies in the file, padding included
	Tensors  []Tensor          // by offset, then by name; their data leaves no holes
	Metadata map[string]string // __metadata__, nil without one
	Data     int64             // bytes from the file's start to the data
}

// Tensor is one tensor of a file.
type Tensor struct {
	Name       string
	DType      tensor.DType
	Shape      []int64 // elements per dimension, empty for a scalar
	Begin, End int64   // bytes from Header.Data
}

// FormatError is the rule that a file breaks. It doesn't name the file; callers do.
type FormatError struct {
	Tensor  string // "" if the whole header is at fault
	Reason  string
	Missing int64 // least number of missing bytes, if nothing else is wrong
}

func (e *FormatError) Error() string {
	if e.Tensor == "" {
		//diag files REASON
		// The header breaks a rule of the format or contradicts the size of the file, so that it is
		// damaged or not complete. Fetch the file again.
		return "read safetensors header: " + e.Reason
	}
	//diag files NAME REASON
	// The header's entry for this tensor breaks a rule of the format, so the file is damaged.
	// Fetch it again, or write it with a safetensors library.
	return fmt.Sprintf("read safetensors header: tensor %q: %s", e.Tensor, e.Reason)
}

// Length reads the length of the JSON of a file of size bytes, and checks that it is
// possible. The JSON begins at byte [Begin]. The error is a [*FormatError] if the file
// is at fault, else it wraps what r returned.
func Length(r io.ReaderAt, size int64) (int64, error) {
	if size < Begin {
		return 0, &FormatError{Reason: fmt.Sprintf("a file of %d bytes has no room for the header's length", size), Missing: Begin - size}
	}
	var length [Begin]byte
	if err := readAt(r, length[:], 0); err != nil {
		return 0, err
	}
	n := binary.LittleEndian.Uint64(length[:])
	switch {
	case n == 0:
		return 0, &FormatError{Reason: "its length is 0"}
	case n > MaxHeader:
		return 0, &FormatError{Reason: fmt.Sprintf("its length of %d bytes is over the format's limit of %d", n, MaxHeader)}
	case int64(n) > size-Begin:
		return 0, &FormatError{
			Reason:  fmt.Sprintf("its length of %d bytes runs past the end of a file of %d", n, size),
			Missing: int64(n) - (size - Begin),
		}
	}
	return int64(n), nil
}

// ReadRaw reads the JSON of a file of size bytes and checks only its length, which is
// all that a checkpoint hash needs. The errors are those of [Length].
func ReadRaw(r io.ReaderAt, size int64) (string, error) {
	n, err := Length(r, size)
	if err != nil {
		return "", err
	}
	var raw strings.Builder // its memory becomes the string's
	raw.Grow(int(n))
	const block = 1 << 20
	got, err := io.CopyBuffer(&raw, io.NewSectionReader(r, Begin, n), make([]byte, min(n, block)))
	if err == nil && got < n {
		err = io.EOF
	}
	if err != nil {
		return "", readError(err)
	}
	return raw.String(), nil
}

func readAt(r io.ReaderAt, b []byte, off int64) error {
	n, err := r.ReadAt(b, off)
	if n == len(b) {
		return nil
	}
	return readError(err)
}

func readError(err error) error {
	if errors.Is(err, io.EOF) {
		err = io.ErrUnexpectedEOF
	}
	return fmt.Errorf("read safetensors header: %w", err)
}

// ReadHeader reads and checks the header of a file of size bytes. The error is a
// [*FormatError] if the file is at fault, else it wraps what r returned.
func ReadHeader(r io.ReaderAt, size int64) (*Header, error) {
	raw, err := ReadRaw(r, size)
	if err != nil {
		return nil, err
	}
	h, err := parse(raw)
	if err != nil {
		return nil, err
	}
	if err := h.check(size - h.Data); err != nil {
		return nil, err
	}
	return h, nil
}

// parse reads the JSON: a map of names to tensors, with one name reserved for the
// file's metadata. Its result refers to the text, so names take no extra memory.
func parse(raw string) (*Header, error) {
	if raw[0] != '{' {
		return nil, &FormatError{Reason: fmt.Sprintf("it starts with %q, not with '{'", raw[0])}
	}
	if !utf8.ValidString(raw) {
		return nil, &FormatError{Reason: "it is not UTF-8"}
	}
	most := min(strings.Count(raw, "{")-1, len(raw)/minTensor)
	p := parser{
		scanner: scanner{text: raw},
		header:  &Header{Raw: raw, Tensors: make([]Tensor, 0, most), Data: Begin + int64(len(raw))},
		names:   newNames(most),
	}
	p.object(p.entry)
	p.end()
	if p.err != nil {
		return nil, &FormatError{Tensor: p.tensor, Reason: p.err.Error()}
	}
	return p.header, nil
}

// Bytes is the approximate memory that the header takes.
func (h *Header) Bytes() int64 {
	n := int64(len(h.Raw)) + tensorBytes*int64(cap(h.Tensors))
	for i := range h.Tensors {
		n += 8 * int64(len(h.Tensors[i].Shape))
	}
	return n
}

type parser struct {
	scanner
	header *Header
	names  names
	tensor string // the one that is being read
	dims   []int64
}

func (p *parser) entry(name string) {
	if name == "__metadata__" {
		p.metadata()
		return
	}
	p.tensor = name
	if !p.names.add(p.header.Tensors, name) {
		p.fail("named twice")
		return
	}
	p.header.Tensors = append(p.header.Tensors, p.info(name))
	if p.err == nil {
		p.tensor = ""
	}
}

func (p *parser) metadata() {
	if p.header.Metadata != nil {
		p.fail("__metadata__ comes twice")
		return
	}
	p.header.Metadata = make(map[string]string)
	if p.word("null") {
		return
	}
	p.object(func(name string) {
		switch _, ok := p.header.Metadata[name]; {
		case ok:
			p.fail("__metadata__ has %q twice", name)
			return
		case len(p.header.Metadata) == MaxMetadata:
			p.fail("__metadata__ has more than %d names", MaxMetadata)
			return
		}
		p.header.Metadata[name] = p.str()
	})
}

// info reads the entry of one tensor. Like the crate, it skips unknown fields.
func (p *parser) info(name string) Tensor {
	t := Tensor{Name: name}
	var dtype, shape, offsets bool
	once := func(seen *bool, key string) {
		if *seen {
			p.fail("%s comes twice", key)
		}
		*seen = true
	}
	p.object(func(key string) {
		switch key {
		case "dtype":
			once(&dtype, key)
			name := p.str()
			d, err := tensor.ParseDType(name)
			if err != nil {
				p.fail("unknown dtype %q", name)
			}
			t.DType = d
		case "shape":
			once(&shape, key)
			t.Shape = p.shape()
		case "data_offsets":
			once(&offsets, key)
			p.expect('[')
			t.Begin = p.integer()
			p.expect(',')
			t.End = p.integer()
			p.expect(']')
		default:
			p.skip(maxDepth - 2)
		}
	})
	switch {
	case !dtype:
		p.fail("no dtype")
	case !shape:
		p.fail("no shape")
	case !offsets:
		p.fail("no data_offsets")
	}
	return t
}

// shape takes its memory from a slab: a header has as many shapes as tensors.
func (p *parser) shape() []int64 {
	const slab = 1024
	if cap(p.dims)-len(p.dims) < MaxDims {
		p.dims = make([]int64, 0, slab)
	}
	from := len(p.dims)
	p.array(func() {
		if len(p.dims)-from == MaxDims {
			p.fail("shape has more than %d dimensions", MaxDims)
			return
		}
		p.dims = append(p.dims, p.integer())
	})
	return p.dims[from:len(p.dims):len(p.dims)]
}

// check checks the tensors against each other and against a file with size bytes
// of data, and sorts them.
func (h *Header) check(size int64) error {
	slices.SortFunc(h.Tensors, func(a, b Tensor) int {
		return cmp.Or(cmp.Compare(a.Begin, b.Begin), cmp.Compare(a.End, b.End), strings.Compare(a.Name, b.Name))
	})
	var end int64
	for i := range h.Tensors {
		t := &h.Tensors[i]
		if reason := t.check(end); reason != "" {
			return &FormatError{Tensor: t.Name, Reason: reason}
		}
		end = t.End
	}
	if end > size {
		return &FormatError{
			Reason:  fmt.Sprintf("%d bytes are missing at the end of the file: its tensors take %d, and %d are there", end-size, end, size),
			Missing: end - size,
		}
	}
	if end < size {
		return &FormatError{Reason: fmt.Sprintf("the tensors cover %d bytes of data, the file has %d", end, size)}
	}
	return nil
}

// check gives the rule that a tensor breaks if it should start at byte start of the
// data, or "".
func (t *Tensor) check(start int64) string {
	at := func(format string) string { return fmt.Sprintf("data_offsets [%d,%d] "+format, t.Begin, t.End) }
	switch {
	case t.End < t.Begin:
		return at("end before they begin")
	case t.Begin > start:
		return at("leave a hole") + fmt.Sprintf(": the data before ends at %d", start)
	case t.Begin < start:
		return at("overlap") + fmt.Sprintf(" the data before, which ends at %d", start)
	}
	elements := tensor.Elements(t.Shape)
	hi, n := bits.Mul64(uint64(elements), uint64(t.DType.Bits()))
	switch {
	case elements < 0 || hi != 0 || n > math.MaxInt64:
		return fmt.Sprintf("shape %v of %s is too large", t.Shape, t.DType)
	case n%8 != 0:
		return fmt.Sprintf("shape %v of %s is %d bits, which ends inside a byte", t.Shape, t.DType, n)
	case int64(n/8) != t.End-t.Begin:
		return fmt.Sprintf("shape %v of %s needs %d bytes, data_offsets [%d,%d] give %d", t.Shape, t.DType, n/8, t.Begin, t.End, t.End-t.Begin)
	}
	return ""
}
