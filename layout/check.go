// SPDX-FileCopyrightText: The wcache authors
// SPDX-License-Identifier: MIT

package layout

import (
	"cmp"
	"errors"
	"fmt"
	"math"
	"math/bits"
	"slices"

	"github.com/wcache/wcache/tensor"
	"github.com/wcache/wcache/tensor/cast"
)

// Written is how many bytes n source bytes of a copy become.
func (c *Copy) Written(n int64) int64 {
	if c.From == c.To {
		return n
	}
	return n / int64(c.From.Size()) * int64(c.To.Size())
}

// RowBytes is the size of one row of the cache in bytes.
func (r *Rope) RowBytes() int64 { return int64(2*len(r.InvFreq)) * int64(r.To.Size()) }

// extent is a range of bytes of the segment.
type extent struct{ from, to int64 }

// Check reports the first rule that a plan breaks: its table must be valid, each byte of
// each storage written exactly once, and no file read past its end. An engine accepts
// wrong tensors without an error, so every plan is checked, also one from another
// process.
// checkCover compares the written ranges with the storages, both by offset. Bytes between
// two storages belong to neither and stay as they are.
func (p *Plan) Check() error {
	if p == nil || p.Table == nil {
		return errors.New("check plan: no table")
	}
	if err := p.Table.Validate(); err != nil {
		return fmt.Errorf("check plan: %w", err)
	}
	writes, err := p.writes()
	if err != nil {
		return fmt.Errorf("check plan: %w", err)
	}
	if err := checkCover(p.Table.Storages, writes); err != nil {
		return fmt.Errorf("check plan: %w", err)
	}
	return nil
}

// writes are the ranges of the segment that are written, each a valid one by itself.
func (p *Plan) writes() ([]extent, error) {
	var list []extent
	size := p.Table.Segment
	add := func(kind string, i int, dst, n int64, err error) error {
		if err == nil && (dst < 0 || n <= 0 || n > size || dst > size-n) {
			err = fmt.Errorf("bytes %d+%d are not in a segment of %d", dst, n, size)
		}
		if err != nil {
			return fmt.Errorf("%s %d: %w", kind, i, err)
		}
		list = append(list, extent{dst, dst + n})
		return nil
	}
	for i := range p.Copies {
		c := &p.Copies[i]
		n, err := p.copied(c)
		if err := add("copy", i, c.Dst, n, err); err != nil {
			return nil, err
		}
	}
	for i, z := range p.Zeros {
		if err := add("zero", i, z.Dst, z.Bytes, nil); err != nil {
			return nil, err
		}
	}
	for i, l := range p.Literals {
		if err := add("literal", i, l.Dst, int64(len(l.Data)), nil); err != nil {
			return nil, err
		}
	}
	for i := range p.Ropes {
		r := &p.Ropes[i]
		n, err := computed(r)
		if err := add("rope", i, r.Dst, n, err); err != nil {
			return nil, err
		}
	}
	return list, nil
}

// copied is how many bytes a copy writes.
func (p *Plan) copied(c *Copy) (int64, error) {
	if c.File < 0 || c.File >= len(p.Files) {
		return 0, fmt.Errorf("no file %d", c.File)
	}
	file := &p.Files[c.File]
	if c.Rows <= 0 || c.RowBytes <= 0 || c.Src < 0 || c.Rows > 1 && c.SrcStride < c.RowBytes {
		return 0, fmt.Errorf("%d rows of %d bytes, %d apart, from %d of %q", c.Rows, c.RowBytes, c.SrcStride, c.Src, file.Path)
	}
	last, ok := int64(0), true // from the first row's start to the last one's
	if c.Rows > 1 {
		last, ok = product(c.Rows-1, c.SrcStride)
	}
	if size := file.Stamp.Size; !ok || c.RowBytes > size || last > size-c.RowBytes || c.Src > size-c.RowBytes-last {
		return 0, fmt.Errorf("%d rows of %d bytes, %d apart, from %d are not in %q of %d bytes",
			c.Rows, c.RowBytes, c.SrcStride, c.Src, file.Path, size)
	}
	switch {
	case c.From != c.To && !cast.Possible(c.From, c.To):
		return 0, fmt.Errorf("no cast from %v to %v", c.From, c.To)
	case c.From.Size() == 0 || c.RowBytes%int64(c.From.Size()) != 0:
		return 0, fmt.Errorf("rows of %d bytes of %v", c.RowBytes, c.From)
	}
	n, ok := product(c.Rows, c.Written(c.RowBytes))
	if !ok {
		return 0, fmt.Errorf("%d rows of %d bytes", c.Rows, c.Written(c.RowBytes))
	}
	return n, nil
}

// computed is how many bytes a cache takes.
func computed(r *Rope) (int64, error) {
	if r.To != tensor.F16 && r.To != tensor.BF16 && r.To != tensor.F32 {
		return 0, fmt.Errorf("element type %v", r.To)
	}
	n, ok := product(r.Rows, r.RowBytes())
	if !ok {
		return 0, fmt.Errorf("%d rows of %d bytes", r.Rows, r.RowBytes())
	}
	return n, nil
}

// checkCover reports bytes of storages that are not written exactly once, and writes
// that are in no storage. Bytes between two storages belong to none and stay as they
// are.
func checkCover(list []tensor.Storage, writes []extent) error {
	var storages []extent
	for _, s := range list {
		if s.Bytes > 0 {
			storages = append(storages, extent{s.Offset, s.Offset + s.Bytes})
		}
	}
	order := func(a, b extent) int { return cmp.Compare(a.from, b.from) }
	slices.SortFunc(storages, order)
	slices.SortFunc(writes, order)
	end := int64(0)
	for _, s := range storages {
		if s.from < end {
			return fmt.Errorf("two storages hold byte %d", s.from)
		}
		end = s.to
		for at := s.from; at < s.to; {
			switch {
			case len(writes) == 0 || writes[0].from > at:
				return fmt.Errorf("nothing writes byte %d", at)
			case writes[0].from < at:
				return fmt.Errorf("byte %d is written twice or is in no storage", writes[0].from)
			case writes[0].to > s.to:
				return fmt.Errorf("a write of bytes %d to %d overruns its storage", writes[0].from, writes[0].to)
			}
			at, writes = writes[0].to, writes[1:]
		}
	}
	if len(writes) > 0 {
		return fmt.Errorf("byte %d is written twice or is in no storage", writes[0].from)
	}
	return nil
}

// product multiplies numbers of which neither is negative.
func product(a, b int64) (int64, bool) {
	if a < 0 || b < 0 {
		return 0, false
	}
	hi, lo := bits.Mul64(uint64(a), uint64(b))
	return int64(lo), hi == 0 && lo <= math.MaxInt64
}
