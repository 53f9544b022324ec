// SPDX-FileCopyrightText: The wcache authors
// SPDX-License-Identifier: MIT

package native

import (
	"cmp"
	"fmt"
	"math"
	"math/bits"
	"slices"

	"github.com/wcache/wcache/layout"
	"github.com/wcache/wcache/tensor"
)

// span is a range of bytes of the segment.
type span struct{ from, to int64 }

// Check reports the first rule of package layout that a plan breaks: an engine must never run
// on a byte that the plan doesn't write. Segment is the size in bytes of the memory that the
// plan fills. Fill calls Check itself.
func Check(plan *layout.Plan, segment int64) error {
	if plan == nil || plan.Table == nil {
		return fmt.Errorf("check plan: it has no table")
	}
	t := plan.Table
	if err := t.Validate(); err != nil {
		return fmt.Errorf("check plan: %w", err)
	}
	if t.Segment > segment {
		return fmt.Errorf("check plan: a segment of %d bytes for memory of %d", t.Segment, segment)
	}
	var writes []span
	add := func(kind string, i int, dst, n int64) error {
		if dst < 0 || n <= 0 || n > t.Segment || dst > t.Segment-n {
			return fmt.Errorf("check plan: %s %d: bytes %d+%d are not in a segment of %d", kind, i, dst, n, t.Segment)
		}
		writes = append(writes, span{dst, dst + n})
		return nil
	}
	for i := range plan.Copies {
		c := &plan.Copies[i]
		n, err := copyBytes(plan, c)
		if err != nil {
			return fmt.Errorf("check plan: copy %d: %w", i, err)
		}
		if err := add("copy", i, c.Dst, n); err != nil {
			return err
		}
	}
	for i, z := range plan.Zeros {
		if err := add("zero", i, z.Dst, z.Bytes); err != nil {
			return err
		}
	}
	for i, l := range plan.Literals {
		if err := add("literal", i, l.Dst, int64(len(l.Data))); err != nil {
			return err
		}
	}
	for i := range plan.Ropes {
		r := &plan.Ropes[i]
		if r.To != tensor.F16 && r.To != tensor.BF16 && r.To != tensor.F32 {
			return fmt.Errorf("check plan: rope %d: element type %v", i, r.To)
		}
		n, ok := mul(r.Rows, ropeRowBytes(r))
		if !ok || ropeRowBytes(r) > scratchBytes {
			return fmt.Errorf("check plan: rope %d: %d rows of %d bytes", i, r.Rows, ropeRowBytes(r))
		}
		if err := add("rope", i, r.Dst, n); err != nil {
			return err
		}
	}
	return checkCover(t, writes)
}

// copyBytes is how many bytes a copy writes.
func copyBytes(plan *layout.Plan, c *layout.Copy) (int64, error) {
	if c.File < 0 || c.File >= len(plan.Files) {
		return 0, fmt.Errorf("no file %d", c.File)
	}
	file := &plan.Files[c.File]
	if c.Rows <= 0 || c.RowBytes <= 0 || c.Src < 0 || c.Rows > 1 && c.SrcStride < c.RowBytes {
		return 0, fmt.Errorf("%d rows of %d bytes, %d apart, from %d of %q", c.Rows, c.RowBytes, c.SrcStride, c.Src, file.Path)
	}
	last := int64(0)
	if c.Rows > 1 {
		n, ok := mul(c.Rows-1, c.SrcStride)
		if !ok {
			return 0, fmt.Errorf("%d rows, %d apart, are not in %q", c.Rows, c.SrcStride, file.Path)
		}
		last = n
	}
	if c.RowBytes > file.Stamp.Size || last > file.Stamp.Size-c.RowBytes || c.Src > file.Stamp.Size-c.RowBytes-last {
		return 0, fmt.Errorf("%d rows of %d bytes, %d apart, from %d are not in %q of %d bytes",
			c.Rows, c.RowBytes, c.SrcStride, c.Src, file.Path, file.Stamp.Size)
	}
	row := c.RowBytes
	if c.From != c.To {
		if !castable(c.From, c.To) {
			return 0, fmt.Errorf("no cast from %v to %v", c.From, c.To)
		}
		if c.RowBytes%int64(c.From.Size()) != 0 {
			return 0, fmt.Errorf("rows of %d bytes of %v", c.RowBytes, c.From)
		}
		row = row / int64(c.From.Size()) * int64(c.To.Size())
	}
	n, ok := mul(c.Rows, row)
	if !ok {
		return 0, fmt.Errorf("%d rows of %d bytes", c.Rows, row)
	}
	return n, nil
}

// checkCover is an error if a byte of a storage isn't written exactly once, or if a write is
// outside of all storages.
func checkCover(t *tensor.Table, writes []span) error {
	storages := make([]span, 0, len(t.Storages))
	for _, s := range t.Storages {
		if s.Bytes > 0 {
			storages = append(storages, span{s.Offset, s.Offset + s.Bytes})
		}
	}
	order := func(a, b span) int { return cmp.Compare(a.from, b.from) }
	slices.SortFunc(storages, order)
	slices.SortFunc(writes, order)
	end := int64(0)
	for _, s := range storages {
		if s.from < end {
			return fmt.Errorf("check plan: two storages hold byte %d", s.from)
		}
		end = s.to
		for at := s.from; at < s.to; {
			switch {
			case len(writes) == 0 || writes[0].from >= s.to || writes[0].from > at:
				return fmt.Errorf("check plan: nothing writes byte %d", at)
			case writes[0].from < at:
				return fmt.Errorf("check plan: byte %d is written twice or is in no storage", writes[0].from)
			case writes[0].to > s.to:
				return fmt.Errorf("check plan: a write of bytes %d to %d overruns its storage", writes[0].from, writes[0].to)
			}
			at, writes = writes[0].to, writes[1:]
		}
	}
	if len(writes) > 0 {
		return fmt.Errorf("check plan: byte %d is written twice or is in no storage", writes[0].from)
	}
	return nil
}

// mul multiplies two numbers; false if one is negative or the product overflows.
func mul(a, b int64) (int64, bool) {
	if a < 0 || b < 0 {
		return 0, false
	}
	hi, lo := bits.Mul64(uint64(a), uint64(b))
	return int64(lo), hi == 0 && lo <= math.MaxInt64
}
