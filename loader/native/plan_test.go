// SPDX-FileCopyrightText: The wcache authors
// SPDX-License-Identifier: MIT

package native

import (
	"fmt"
	"math/rand/v2"
	"os"
	"testing"
	"time"

	"github.com/wcache/wcache/internal/testmain"
	"github.com/wcache/wcache/layout"
	"github.com/wcache/wcache/stamp"
	"github.com/wcache/wcache/tensor"
	"github.com/wcache/wcache/tensor/cast"
)

func TestMain(m *testing.M) { testmain.Run(m) }

// fileOf describes a file as package weights does.
func fileOf(t testing.TB, path string) layout.File {
	t.Helper()
	info, err := stamp.Of(path)
	if err != nil {
		t.Fatal(err)
	}
	time.Sleep(info.Unsettled(time.Now())) // from then on a change shows
	return layout.File{Path: path, Stamp: info.Stamp}
}

// tableOf makes a table of one tensor of bytes for each storage of the given size.
func tableOf(sizes []int64) *tensor.Table {
	t := &tensor.Table{Segment: 0}
	for i, n := range sizes {
		off := (t.Segment + tensor.Alignment - 1) / tensor.Alignment * tensor.Alignment
		t.Storages = append(t.Storages, tensor.Storage{Offset: off, Bytes: n})
		t.Tensors = append(t.Tensors, tensor.Tensor{
			Name: fmt.Sprint(i), Kind: tensor.Param, DType: tensor.U8,
			Shape: []int64{n}, Stride: []int64{1}, Storage: i,
		})
		t.Segment = off + n
	}
	return t
}

// randomPlan is a plan of every kind of step over the given files: a storage each,
// in random order, with rows and casts of all sizes on both sides of the limits
// that steps are cut by.
func randomPlan(r *rand.Rand, files []layout.File) *layout.Plan {
	p := &layout.Plan{Files: files}
	var sizes []int64
	var place []func(dst int64)
	step := func(bytes int64, f func(dst int64)) {
		sizes, place = append(sizes, bytes), append(place, f)
	}
	types := []tensor.DType{tensor.F16, tensor.BF16, tensor.F32, tensor.F64}
	row := func() int64 {
		return []int64{8, 64, 1000, 4096, 8 << 10, 40 << 10, scratchBytes, scratchBytes + 8, 600_000}[r.IntN(9)]
	}
	copyOf := func(file int, c layout.Copy) {
		c.File, c.From = file, types[r.IntN(len(types))]
		if c.To = types[r.IntN(len(types))]; !cast.Possible(c.From, c.To) {
			c.To = c.From
		}
		step(c.Written(c.Rows*c.RowBytes), func(dst int64) {
			c.Dst = dst
			p.Copies = append(p.Copies, c)
		})
	}
	for file := range files {
		size := files[file].Stamp.Size
		for at := int64(0); ; {
			c := layout.Copy{Rows: 1, RowBytes: row()}
			c.SrcStride = c.RowBytes
			if r.IntN(3) == 0 {
				c.Rows = 1 + r.Int64N(20)
				c.SrcStride += []int64{0, 8, gapBytes, gapBytes + 8, 3 * c.RowBytes}[r.IntN(5)]
			}
			c.Src = at + []int64{0, 0, 1, 100, gapBytes + 1}[r.IntN(5)]
			if at = c.Src + c.Rows*c.SrcStride; at > size {
				break
			}
			copyOf(file, c)
		}
	}
	for range 20 { // runs of small neighbours, as norms are
		c := layout.Copy{Src: r.Int64N(1000), Rows: 1, RowBytes: 64, SrcStride: 64}
		copyOf(0, c)
	}
	step(5_000_000, func(dst int64) { p.Zeros = append(p.Zeros, layout.Zero{Dst: dst, Bytes: 5_000_000}) })
	for _, n := range []int{1, 4, 5000} {
		data := make([]byte, n)
		for i := range data {
			data[i] = byte(r.Uint32())
		}
		step(int64(n), func(dst int64) { p.Literals = append(p.Literals, layout.Literal{Dst: dst, Data: data}) })
	}
	for _, to := range []tensor.DType{tensor.F16, tensor.BF16, tensor.F32} {
		rope := layout.Rope{Rows: 1 + r.Int64N(3000), InvFreq: []float32{1, 0.5, 0.01}, PositionScale: 1, Magnitude: 1, To: to}
		step(rope.Rows*rope.RowBytes(), func(dst int64) {
			rope.Dst = dst
			p.Ropes = append(p.Ropes, rope)
		})
	}
	p.Table = tableOf(sizes)
	for i, f := range place {
		f(p.Table.Storages[i].Offset)
	}
	return p
}

// carryOut does a plan in the plainest way.
func carryOut(t *testing.T, p *layout.Plan, segment []byte) {
	t.Helper()
	var files [][]byte
	for _, f := range p.Files {
		b, err := os.ReadFile(f.Path)
		if err != nil {
			t.Fatal(err)
		}
		files = append(files, b)
	}
	casts := castsOf(p.Copies)
	for i := range p.Copies {
		c := &p.Copies[i]
		dst := segment[c.Dst:]
		for row := range c.Rows {
			src := files[c.File][c.Src+row*c.SrcStride:][:c.RowBytes]
			put(dst, src, casts.of(c))
			dst = dst[c.Written(c.RowBytes):]
		}
	}
	for _, z := range p.Zeros {
		clear(segment[z.Dst:][:z.Bytes])
	}
	for _, l := range p.Literals {
		copy(segment[l.Dst:], l.Data)
	}
	for i := range p.Ropes {
		r := &p.Ropes[i]
		ropeRows(segment[r.Dst:], r, 0, r.Rows)
	}
}
