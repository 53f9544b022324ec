// SPDX-FileCopyrightText: The wcache authors
// SPDX-License-Identifier: MIT

package layout

import (
	"cmp"
	"encoding/binary"
	"math"
	"slices"

	"github.com/wcache/wcache/tensor"
	"github.com/wcache/wcache/weights"
)

// builder makes a plan: each tensor gets the next free storage of the one segment, and the
// plan records how it is filled.
type builder struct {
	rank    Rank
	dtype   tensor.DType
	headDim int64
	sources map[string]source
	plan    *Plan
	end     int64 // bytes of the segment that are assigned
	files   map[*weights.File]int
}

func newBuilder(o Options, headDim int64, sources map[string]source) *builder {
	return &builder{
		rank: o.Rank, dtype: o.DType, headDim: headDim, sources: sources,
		plan: &Plan{Table: new(tensor.Table)}, files: make(map[*weights.File]int),
	}
}

// add gives a tensor its own storage and returns where it begins. A tensor without
// elements has an empty storage.
func (b *builder) add(name string, kind tensor.Kind, dtype tensor.DType, shape ...int64) int64 {
	t := b.plan.Table
	begin, size := b.end, tensor.Elements(shape)*int64(dtype.Size())
	t.Tensors = append(t.Tensors, tensor.Tensor{
		Name: name, Kind: kind, DType: dtype, Shape: shape, Stride: tensor.Contiguous(shape), Storage: len(t.Storages),
	})
	t.Storages = append(t.Storages, tensor.Storage{Offset: begin, Bytes: size})
	b.end = (begin + size + tensor.Alignment - 1) / tensor.Alignment * tensor.Alignment
	return begin
}

func (b *builder) alias(name, target string) {
	b.plan.Table.Aliases = append(b.plan.Table.Aliases, tensor.Alias{Name: name, Target: target})
}

// module adds a module's weight and bias. The prefix is the name of its layer with the
// dot, or empty.
func (b *builder) module(prefix string, m module) error {
	if err := b.parameter(prefix, m, ".weight"); err != nil || !m.bias {
		return err
	}
	m.in = 0
	if m.cut == byColumns {
		m.cut = uncut
	}
	return b.parameter(prefix, m, ".bias")
}

// parameter adds one parameter, stacked from this rank's shares of its parts.
func (b *builder) parameter(prefix string, m module, suffix string) error {
	pieces, err := b.pieces(prefix, m, suffix)
	if err != nil {
		return err
	}
	var rows, padding int64
	for _, p := range pieces {
		rows += p.rows.n
	}
	if m.cut == byVocab {
		_, held := b.rank.vocab(m.parts[0].rows)
		rows, padding = held, held-rows
	}
	shape := []int64{rows}
	width := int64(b.dtype.Size())
	if m.in > 0 {
		shape = append(shape, pieces[0].columns.n)
		width *= pieces[0].columns.n
	}
	at := b.add(prefix+m.name+suffix, tensor.Param, b.dtype, shape...)
	for _, p := range pieces {
		b.copy(at, p)
		at += p.rows.n * width
	}
	if padding > 0 {
		b.plan.Zeros = append(b.plan.Zeros, Zero{Dst: at, Bytes: padding * width})
	}
	return nil
}

// piece is a rectangle of a tensor of the checkpoint.
type piece struct {
	from          source
	rows, columns span
	of            int64 // columns of the whole tensor, 1 for a vector
}

// pieces finds the parts of a parameter in the checkpoint, which may contain them already
// stacked, and cuts this rank's share out of each.
func (b *builder) pieces(prefix string, m module, suffix string) ([]piece, error) {
	var total int64
	for _, p := range m.parts {
		total += p.rows
	}
	stackedName := prefix + m.name + suffix
	stacked, isStacked := b.sources[stackedName]
	isStacked = isStacked && len(m.parts) > 1
	var pieces []piece
	var above int64 // rows of the stacked tensor before this part
	for _, part := range m.parts {
		name, rows, from := prefix+m.beside(part)+suffix, part.rows, stacked
		s, ok := b.sources[name]
		switch {
		case ok && isStacked:
			//diag unsupported NAME NAME
			// The checkpoint has one weight both fused and in parts. Remove one of the two, or let
			// the engine load from disk.
			return nil, refuse("checkpoint", "tensors %q and %q are the same to vLLM", s.t.Name, stacked.t.Name)
		case isStacked:
			rows = total
		case !ok:
			//diag unsupported NAME
			// The checkpoint lacks a tensor of the architecture. Fetch the model again; if it is
			// complete, the engine loads it.
			return nil, refuse("checkpoint", "tensor %q is missing", name)
		default:
			from = s
		}
		if err := check(from, rows, m.in); err != nil {
			return nil, err
		}
		p := piece{from: from, rows: whole(part.rows), columns: whole(max(m.in, 1)), of: max(m.in, 1)}
		switch m.cut {
		case byRows:
			p.rows = b.rank.share(part.rows, part.units)
		case byColumns:
			p.columns = b.rank.columns(m.in)
		case byVocab:
			p.rows, _ = b.rank.vocab(part.rows)
		}
		p.rows.start += above
		if isStacked {
			above += part.rows
		}
		pieces = append(pieces, p)
	}
	return pieces, nil
}

// check refuses a tensor whose shape or type isn't the one that its name requires.
func check(s source, rows, columns int64) error {
	want := []int64{rows}
	if columns > 0 {
		want = append(want, columns)
	}
	if !slices.Equal(s.t.Shape, want) {
		//diag unsupported NAME FILE SHAPE SHAPE
		// The shape does not follow from `config.json`, so the two do not belong together. Fetch
		// the model again.
		return refuse("checkpoint", "tensor %q of %s has shape %v, not %v", s.t.Name, s.file.Base, s.t.Shape, want)
	}
	switch s.t.DType {
	case tensor.BF16, tensor.F16, tensor.F32, tensor.F64:
		return nil
	}
	//diag unsupported NAME FILE TYPE
	// The checkpoint has integers or another type that the engine would not simply convert. The
	// engine loads this model.
	return refuse("checkpoint", "tensor %q of %s has type %s, no floating-point type that vLLM would cast as is", s.t.Name, s.file.Base, s.t.DType)
}

// copy writes a piece to dst. The rows of Mistral's own wq and wk alternate
// between the halves of their head, and are put in order.
func (b *builder) copy(dst int64, p piece) {
	size := int64(p.from.t.DType.Size())
	row := p.of * size
	c := Copy{
		Dst: dst, File: b.file(p.from.file),
		Src:  p.from.file.Header.Data + p.from.t.Begin + p.rows.start*row + p.columns.start*size,
		Rows: p.rows.n, RowBytes: p.columns.n * size, SrcStride: row,
		From: p.from.t.DType, To: b.dtype,
	}
	if !p.from.pairs {
		b.append(c)
		return
	}
	half := b.headDim / 2
	step := half * p.columns.n * int64(b.dtype.Size())
	for n := int64(0); n < p.rows.n; n += half {
		h := c
		h.Rows, h.SrcStride = half, 2*row
		h.Src += n / b.headDim * b.headDim * row
		if n%b.headDim != 0 {
			h.Src += row
		}
		h.Dst += n / half * step
		b.append(h)
	}
}

// append adds a copy in its simplest form: rows without gaps become one run, and two copies
// into one tensor become one if the second continues where the first ends.
func (b *builder) append(c Copy) {
	if c.Rows == 0 || c.RowBytes == 0 {
		return
	}
	if c.SrcStride == c.RowBytes || c.Rows == 1 {
		c.RowBytes *= c.Rows
		c.Rows, c.SrcStride = 1, c.RowBytes
	}
	storages := b.plan.Table.Storages
	if n := len(b.plan.Copies); n > 0 && c.Dst != storages[len(storages)-1].Offset {
		l := &b.plan.Copies[n-1]
		if l.Rows == 1 && c.Rows == 1 && l.File == c.File && l.From == c.From && l.Src+l.RowBytes == c.Src && l.Dst+l.Written(l.RowBytes) == c.Dst {
			l.RowBytes += c.RowBytes
			l.SrcStride = l.RowBytes
			return
		}
	}
	b.plan.Copies = append(b.plan.Copies, c)
}

// file is the plan's number of a checkpoint file.
func (b *builder) file(f *weights.File) int {
	n, ok := b.files[f]
	if !ok {
		n = len(b.plan.Files)
		b.files[f] = n
		b.plan.Files = append(b.plan.Files, File{Path: f.Path, Stamp: f.Stamp})
	}
	return n
}

// scalar adds a buffer of one float32.
func (b *builder) scalar(name string, value float32) {
	at := b.add(name, tensor.Buffer, tensor.F32)
	b.plan.Literals = append(b.plan.Literals, Literal{Dst: at, Data: binary.LittleEndian.AppendUint32(nil, math.Float32bits(value))})
}

// finish sorts the copies by where they read, and checks the whole.
func (b *builder) finish() (*Plan, error) {
	p := b.plan
	p.Table.Segment = b.end
	slices.SortFunc(p.Copies, func(x, y Copy) int {
		return cmp.Or(cmp.Compare(x.File, y.File), cmp.Compare(x.Src, y.Src))
	})
	if err := p.Check(); err != nil {
		return nil, err
	}
	return p, nil
}
