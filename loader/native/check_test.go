// SPDX-FileCopyrightText: The wcache authors
// SPDX-License-Identifier: MIT

package native

import (
	"math"
	"strings"
	"testing"

	"github.com/wcache/wcache/layout"
	"github.com/wcache/wcache/stamp"
	"github.com/wcache/wcache/tensor"
)

// TestCheck breaks a good plan in one place each.
func TestCheck(t *testing.T) {
	good := func() *layout.Plan {
		return &layout.Plan{
			Table: tableOf([]int64{1000, 64, 4, 48}),
			Files: []layout.File{{Path: "/a", Stamp: stamp.Stamp{Size: 5000}}},
			Copies: []layout.Copy{
				{Dst: 0, Src: 100, Rows: 10, RowBytes: 96, SrcStride: 200, From: tensor.BF16, To: tensor.BF16},
				{Dst: 1024, Src: 4872, Rows: 1, RowBytes: 128, From: tensor.F32, To: tensor.F16},
			},
			Zeros:    []layout.Zero{{Dst: 960, Bytes: 40}},
			Literals: []layout.Literal{{Dst: 1280, Data: []byte{1, 2, 3, 4}}},
			Ropes: []layout.Rope{{Dst: 1536, Rows: 6, InvFreq: []float32{1, 2}, PositionScale: 1,
				Magnitude: 1, To: tensor.BF16}},
		}
	}
	tests := []struct {
		name string
		edit func(*layout.Plan)
		want string // part of the error
	}{
		{"good", func(*layout.Plan) {}, ""},
		{"no table", func(p *layout.Plan) { p.Table = nil }, "no table"},
		{"bad table", func(p *layout.Plan) { p.Table.Tensors = nil }, "no tensors"},
		{"segment over the memory", func(p *layout.Plan) { p.Table.Segment = 1 << 20 }, "for memory of 4096"},
		{"no such file", func(p *layout.Plan) { p.Copies[1].File = 1 }, "copy 1: no file 1"},
		{"file -1", func(p *layout.Plan) { p.Copies[1].File = -1 }, "copy 1: no file -1"},
		{"past the file", func(p *layout.Plan) { p.Copies[1].Src++ }, `not in "/a" of 5000 bytes`},
		{"rows past the file", func(p *layout.Plan) { p.Copies[0].Src = 3105 }, `not in "/a" of 5000 bytes`},
		{"negative source", func(p *layout.Plan) { p.Copies[0].Src = -1 }, "copy 0: 10 rows"},
		{"no rows", func(p *layout.Plan) { p.Copies[0].Rows = 0 }, "copy 0: 0 rows"},
		{"rows overlap", func(p *layout.Plan) { p.Copies[0].SrcStride = 95 }, "95 apart"},
		{"many rows", func(p *layout.Plan) { p.Copies[0].Rows, p.Copies[0].SrcStride = math.MaxInt64, 1<<40 }, "apart, are not in"},
		{"long rows", func(p *layout.Plan) { p.Copies[0].RowBytes, p.Copies[0].SrcStride = math.MaxInt64, math.MaxInt64 }, "are not in"},
		{"no such cast", func(p *layout.Plan) { p.Copies[1].From = tensor.I32 }, "no cast from I32 to F16"},
		{"no such type", func(p *layout.Plan) { p.Copies[1].To = 99 }, "no cast from F32 to DType(99)"},
		{"half an element", func(p *layout.Plan) { p.Copies[1].RowBytes = 126 }, "rows of 126 bytes of F32"},
		{"negative destination", func(p *layout.Plan) { p.Copies[0].Dst = -1 }, "bytes -1+960 are not in"},
		{"destination past the end", func(p *layout.Plan) { p.Copies[0].Dst = math.MaxInt64 }, "are not in a segment"},
		{"zero past the end", func(p *layout.Plan) { p.Zeros[0].Bytes = math.MaxInt64 }, "zero 0"},
		{"negative zero", func(p *layout.Plan) { p.Zeros[0].Bytes = -1 }, "zero 0"},
		{"empty literal", func(p *layout.Plan) { p.Literals[0].Data = nil }, "literal 0"},
		{"rope of integers", func(p *layout.Plan) { p.Ropes[0].To = tensor.I16 }, "rope 0: element type I16"},
		{"rope of no frequencies", func(p *layout.Plan) { p.Ropes[0].InvFreq = nil }, "rope 0"},
		{"rope of many rows", func(p *layout.Plan) { p.Ropes[0].Rows = math.MaxInt64 }, "rope 0"},
		{"rope of negative rows", func(p *layout.Plan) { p.Ropes[0].Rows = -6 }, "rope 0"},
		{"rope of long rows", func(p *layout.Plan) { p.Ropes[0].InvFreq = make([]float32, scratchBytes) }, "rope 0"},
		{"gap at the end", func(p *layout.Plan) { p.Zeros = nil }, "nothing writes byte 960"},
		{"gap at the start", func(p *layout.Plan) { p.Zeros[0] = layout.Zero{Dst: 961, Bytes: 39} }, "nothing writes byte 960"},
		{"last storage unwritten", func(p *layout.Plan) { p.Ropes = nil }, "nothing writes byte 1536"},
		{"written twice", func(p *layout.Plan) { p.Zeros = append(p.Zeros, layout.Zero{Dst: 990, Bytes: 10}) }, "byte 990 is written twice"},
		{"overlap", func(p *layout.Plan) { p.Zeros[0] = layout.Zero{Dst: 959, Bytes: 41} }, "byte 959 is written twice"},
		{"overrun", func(p *layout.Plan) { p.Zeros[0].Bytes = 41 }, "overruns its storage"},
		{"in no storage", func(p *layout.Plan) { p.Zeros = append(p.Zeros, layout.Zero{Dst: 1010, Bytes: 1}) }, "byte 1010 is written twice or is in no storage"},
		{"in no storage at the end", func(p *layout.Plan) {
			p.Table.Segment += 100
			p.Zeros = append(p.Zeros, layout.Zero{Dst: 1600, Bytes: 1})
		}, "byte 1600 is written twice or is in no storage"},
		{"storages overlap", func(p *layout.Plan) { p.Table.Storages[1].Offset = 768 }, "two storages hold byte 768"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			p := good()
			test.edit(p)
			err := Check(p, 4096)
			switch {
			case test.want == "" && err != nil:
				t.Errorf("Check: %v", err)
			case test.want != "" && (err == nil || !strings.Contains(err.Error(), test.want)):
				t.Errorf("Check: %v, want %q", err, test.want)
			}
		})
	}
	if err := Check(nil, 4096); err == nil {
		t.Error("Check took no plan")
	}
}
