// SPDX-FileCopyrightText: The wcache authors
// SPDX-License-Identifier: MIT

package layout

import (
	"cmp"
	"fmt"
	"math"
	"math/bits"
	"slices"

	"github.com/wcache/wcache/tensor"
)

// written is how many bytes the copy fills.
func (c Copy) written() int64 {
	return c.Rows * (c.RowBytes / int64(c.From.Size()) * int64(c.To.Size()))
}

// written is how many bytes the cache fills.
func (r Rope) written() int64 { return r.Rows * 2 * int64(len(r.InvFreq)) * int64(r.To.Size()) }

// Check reports the first rule that a plan breaks: its table must be valid, each byte of
// each storage written exactly once, and no file read past its end. An engine accepts
// wrong tensors without an error, so every plan is checked, also one from another
// process.
// checkCover compares the written ranges with the storages, both by offset. Bytes between
// two storages belong to neither and stay as they are.
func (p *Plan) Check() error {
	if p.Table == nil {
		return fmt.Errorf("check plan: no table")
	}
	if err := p.Table.Validate(); err != nil {
		return fmt.Errorf("check plan: %w", err)
	}
	for i, c := range p.Copies {
		if err := p.checkCopy(c); err != nil {
			return fmt.Errorf("check plan: copy %d: %w", i, err)
		}
	}
	for i, r := range p.Ropes {
		if r.Rows <= 0 || len(r.InvFreq) == 0 || !isFloat(r.To) || r.To == tensor.F64 || r.Rows > math.MaxInt64/16/int64(len(r.InvFreq)) {
			return fmt.Errorf("check plan: rope cache %d: %d rows of %d frequencies of %s", i, r.Rows, len(r.InvFreq), r.To)
		}
	}
	return p.checkCover()
}

func (p *Plan) checkCopy(c Copy) error {
	if !isFloat(c.From) || !isFloat(c.To) || c.To == tensor.F64 {
		return fmt.Errorf("cast of %s to %s", c.From, c.To)
	}
	if c.File < 0 || c.File >= len(p.Files) {
		return fmt.Errorf("no file %d", c.File)
	}
	if c.Src < 0 || c.Rows <= 0 || c.RowBytes <= 0 || c.RowBytes%int64(c.From.Size()) != 0 || c.SrcStride < c.RowBytes {
		return fmt.Errorf("%d rows of %d bytes, %d apart, from %d", c.Rows, c.RowBytes, c.SrcStride, c.Src)
	}
	hi, lo := bits.Mul64(uint64(c.Rows-1), uint64(c.SrcStride))
	room := p.Files[c.File].Stamp.Size - c.Src - c.RowBytes
	if hi != 0 || room < 0 || lo > uint64(room) {
		return fmt.Errorf("reads past the end of %q", p.Files[c.File].Path)
	}
	return nil
}

// checkCover compares what is written with the storages, both by offset. Bytes
// between two storages belong to none and stay as they are.
func (p *Plan) checkCover() error {
	type run struct{ begin, n int64 }
	var runs []run
	for _, c := range p.Copies {
		runs = append(runs, run{c.Dst, c.written()})
	}
	for _, z := range p.Zeros {
		runs = append(runs, run{z.Dst, z.Bytes})
	}
	for _, l := range p.Literals {
		runs = append(runs, run{l.Dst, int64(len(l.Data))})
	}
	for _, r := range p.Ropes {
		runs = append(runs, run{r.Dst, r.written()})
	}
	slices.SortFunc(runs, func(a, b run) int { return cmp.Compare(a.begin, b.begin) })
	storages := slices.Clone(p.Table.Storages)
	slices.SortFunc(storages, func(a, b tensor.Storage) int {
		return cmp.Or(cmp.Compare(a.Offset, b.Offset), cmp.Compare(a.Bytes, b.Bytes))
	})
	last := int64(0)
	for _, s := range storages {
		if s.Offset < last {
			return fmt.Errorf("check plan: storages overlap at byte %d", s.Offset)
		}
		at := s.Offset
		for at < s.Offset+s.Bytes {
			if len(runs) == 0 || runs[0].begin != at || runs[0].n <= 0 || runs[0].n > s.Offset+s.Bytes-at {
				if len(runs) > 0 {
					at = min(at, runs[0].begin)
				}
				return fmt.Errorf("check plan: byte %d of the segment is not written exactly once", at)
			}
			at += runs[0].n
			runs = runs[1:]
		}
		last = at
	}
	if len(runs) > 0 {
		return fmt.Errorf("check plan: byte %d of the segment is written and belongs to no tensor", runs[0].begin)
	}
	return nil
}

func isFloat(d tensor.DType) bool {
	return d == tensor.BF16 || d == tensor.F16 || d == tensor.F32 || d == tensor.F64
}
