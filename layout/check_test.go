// SPDX-FileCopyrightText: The wcache authors
// SPDX-License-Identifier: MIT

package layout

import (
	"encoding/json"
	"fmt"
	"math"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/wcache/wcache/stamp"
	"github.com/wcache/wcache/tensor"
	"github.com/wcache/wcache/weights"
)

// smallPlan has a copy, padding, a literal, a cache, and a tensor that views part
// of another one's storage.
func smallPlan() *Plan {
	view := func(name string, storage int, offset int64, shape, stride []int64) tensor.Tensor {
		return tensor.Tensor{Name: name, Kind: tensor.Param, DType: tensor.BF16, Shape: shape, Stride: stride, Offset: offset, Storage: storage}
	}
	return &Plan{
		Table: &tensor.Table{
			Segment:  1024,
			Storages: []tensor.Storage{{Offset: 0, Bytes: 96}, {Offset: 256, Bytes: 4}, {Offset: 512, Bytes: 16}, {Offset: 768, Bytes: 0}},
			Tensors: []tensor.Tensor{
				view("weight", 0, 0, []int64{6, 8}, []int64{8, 1}),
				view("weight.W_UV", 0, 8, []int64{8, 3}, []int64{1, 16}),
				{Name: "scale", Kind: tensor.Buffer, DType: tensor.F32, Storage: 1},
				view("cache", 2, 0, []int64{2, 4}, []int64{4, 1}),
				view("nothing", 3, 0, []int64{0, 4}, []int64{4, 1}),
			},
		},
		Files:    []File{{Path: "/f", Stamp: stamp.Stamp{Size: 1000}}},
		Copies:   []Copy{{Dst: 0, File: 0, Src: 872, Rows: 4, RowBytes: 32, SrcStride: 32, From: tensor.F32, To: tensor.BF16}},
		Zeros:    []Zero{{Dst: 64, Bytes: 32}},
		Literals: []Literal{{Dst: 256, Data: []byte{0, 0, 128, 63}}},
		Ropes:    []Rope{{Dst: 512, Rows: 2, InvFreq: []float32{1, 0.5}, PositionScale: 1, Magnitude: 1, To: tensor.BF16}},
	}
}

// TestCheck: an engine must never run on empty memory, on bytes that were not written, or
// on a view of another tensor's storage.
func TestCheck(t *testing.T) {
	copied := func(edit func(*Copy)) func(*Plan) { return func(p *Plan) { edit(&p.Copies[0]) } }
	rope := func(edit func(*Rope)) func(*Plan) { return func(p *Plan) { edit(&p.Ropes[0]) } }
	more := func(dst, n int64) func(*Plan) {
		return func(p *Plan) { p.Zeros = append(p.Zeros, Zero{Dst: dst, Bytes: n}) }
	}
	tests := []struct {
		name   string
		change func(*Plan)
		want   string // after "check plan: "
	}{
		{"right, with shared and empty storages", func(*Plan) {}, ""},
		{"no table", func(p *Plan) { p.Table = nil }, "no table"},
		{"no tensors", func(p *Plan) { p.Table.Tensors = nil }, "check table: no tensors"},
		{"zero bytes", func(p *Plan) {
			x := p.Table.Tensors[4]
			x.Storage = 0
			*p = Plan{Table: &tensor.Table{Segment: 0, Storages: []tensor.Storage{{}}, Tensors: []tensor.Tensor{x}}}
		}, "check table: no bytes"},
		{"view past its storage", func(p *Plan) { p.Table.Tensors[1].Offset = 9 },
			`check table: tensor "weight.W_UV": shape [8 3], stride [1 16], offset 9 overrun a storage of 96 bytes`},
		{"no such file", copied(func(c *Copy) { c.File = 1 }), "copy 0: no file 1"},
		{"file -1", copied(func(c *Copy) { c.File = -1 }), "copy 0: no file -1"},
		{"past the file", copied(func(c *Copy) { c.Src++ }), `copy 0: 4 rows of 32 bytes, 32 apart, from 873 are not in "/f" of 1000 bytes`},
		{"rows past the file", copied(func(c *Copy) { c.SrcStride = 33 }), `copy 0: 4 rows of 32 bytes, 33 apart, from 872 are not in "/f" of 1000 bytes`},
		{"far past the file", copied(func(c *Copy) { c.SrcStride = 1 << 62 }), `copy 0: 4 rows of 32 bytes, 4611686018427387904 apart, from 872 are not in "/f" of 1000 bytes`},
		{"long rows", copied(func(c *Copy) { c.RowBytes, c.SrcStride = math.MaxInt64, math.MaxInt64 }),
			`copy 0: 4 rows of 9223372036854775807 bytes, 9223372036854775807 apart, from 872 are not in "/f" of 1000 bytes`},
		{"long rows of a long file", func(p *Plan) {
			p.Files[0].Stamp.Size = math.MaxInt64
			p.Copies[0] = Copy{Rows: 1, RowBytes: 1<<62 + 2, From: tensor.F16, To: tensor.F32}
		}, "copy 0: 1 rows of -9223372036854775804 bytes"},
		{"before the file", copied(func(c *Copy) { c.Src = -1 }), `copy 0: 4 rows of 32 bytes, 32 apart, from -1 of "/f"`},
		{"no rows", copied(func(c *Copy) { c.Rows = 0 }), `copy 0: 0 rows of 32 bytes, 32 apart, from 872 of "/f"`},
		{"rows over each other", copied(func(c *Copy) { c.SrcStride = 16 }), `copy 0: 4 rows of 32 bytes, 16 apart, from 872 of "/f"`},
		{"part of an element", copied(func(c *Copy) { c.RowBytes = 30 }), "copy 0: rows of 30 bytes of F32"},
		{"elements of half a byte", copied(func(c *Copy) { c.From, c.To = tensor.F4, tensor.F4 }), "copy 0: rows of 32 bytes of F4"},
		{"integers", copied(func(c *Copy) { c.From = tensor.I32 }), "copy 0: no cast from I32 to BF16"},
		{"to float64", copied(func(c *Copy) { c.To = tensor.F64 }), "copy 0: no cast from F32 to F64"},
		{"no such type", copied(func(c *Copy) { c.To = 99 }), "copy 0: no cast from F32 to DType(99)"},
		{"before the segment", copied(func(c *Copy) { c.Dst = -1 }), "copy 0: bytes -1+64 are not in a segment of 1024"},
		{"past the segment", copied(func(c *Copy) { c.Dst = math.MaxInt64 }), "copy 0: bytes 9223372036854775807+64 are not in a segment of 1024"},
		{"zeros past the segment", more(64, math.MaxInt64), "zero 1: bytes 64+9223372036854775807 are not in a segment of 1024"},
		{"nothing to write", more(64, 0), "zero 1: bytes 64+0 are not in a segment of 1024"},
		{"negative", more(64, -32), "zero 1: bytes 64+-32 are not in a segment of 1024"},
		{"empty literal", func(p *Plan) { p.Literals[0].Data = nil }, "literal 0: bytes 256+0 are not in a segment of 1024"},
		{"cache of integers", rope(func(r *Rope) { r.To = tensor.I16 }), "rope 0: element type I16"},
		{"cache without end", rope(func(r *Rope) { r.Rows = math.MaxInt64 }), "rope 0: 9223372036854775807 rows of 8 bytes"},
		{"cache of negative rows", rope(func(r *Rope) { r.Rows = -2 }), "rope 0: -2 rows of 8 bytes"},
		{"cache of no frequencies", rope(func(r *Rope) { r.InvFreq = nil }), "rope 0: bytes 512+0 are not in a segment of 1024"},
		{"unwritten end", func(p *Plan) { p.Zeros = nil }, "nothing writes byte 64"},
		{"unwritten start", copied(func(c *Copy) { c.Dst, c.Rows = 32, 2 }), "nothing writes byte 0"},
		{"last storage unwritten", func(p *Plan) { p.Ropes = nil }, "nothing writes byte 512"},
		{"written twice", more(80, 16), "byte 80 is written twice or is in no storage"},
		{"overlap", func(p *Plan) { p.Zeros[0] = Zero{Dst: 63, Bytes: 33} }, "byte 63 is written twice or is in no storage"},
		{"written over the end", func(p *Plan) { p.Zeros[0].Bytes = 40 }, "a write of bytes 64 to 104 overruns its storage"},
		{"written between storages", more(300, 1), "byte 300 is written twice or is in no storage"},
		{"written behind storages", more(600, 1), "byte 600 is written twice or is in no storage"},
		{"storages overlap", func(p *Plan) { p.Table.Storages[1] = tensor.Storage{Offset: 0, Bytes: 96} }, "two storages hold byte 0"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			p := smallPlan()
			tt.change(p)
			want := "check plan: " + tt.want
			if tt.want == "" {
				want = "<nil>"
			}
			if got := fmt.Sprint(p.Check()); got != want {
				t.Errorf("got  %s\nwant %s", got, want)
			}
		})
	}
	if (*Plan)(nil).Check() == nil {
		t.Error("no plan is a right one")
	}
}

// TestEmptyTensor: a tensor without elements is in the table, and takes no memory.
func TestEmptyTensor(t *testing.T) {
	b := newBuilder(bf16, 8, nil)
	b.add("nothing", tensor.Param, tensor.BF16, 0, 4)
	b.scalar("one", 1)
	p, err := b.finish()
	if err != nil {
		t.Fatal(err)
	}
	want := &tensor.Table{
		Segment:  tensor.Alignment,
		Storages: []tensor.Storage{{}, {Bytes: 4}},
		Tensors: []tensor.Tensor{
			{Name: "nothing", Kind: tensor.Param, DType: tensor.BF16, Shape: []int64{0, 4}, Stride: []int64{4, 1}},
			{Name: "one", Kind: tensor.Buffer, DType: tensor.F32, Stride: []int64{}, Storage: 1},
		},
	}
	if diff := cmp.Diff(want, p.Table); diff != "" {
		t.Errorf("table (-want +got):\n%s", diff)
	}
}

// TestJSON: a plan is the same after it was sent to the loader.
func TestJSON(t *testing.T) {
	d, err := weights.Open(filepath.Join(testdata, "checkpoints", "llama_f32"))
	if err != nil {
		t.Fatal(err)
	}
	p, err := New(d, ranked(bf16, Rank{TPSize: 2, TPRank: 1}))
	if err != nil {
		t.Fatal(err)
	}
	b, err := json.Marshal(p)
	if err != nil {
		t.Fatal(err)
	}
	got := new(Plan)
	if err := json.Unmarshal(b, got); err != nil {
		t.Fatal(err)
	}
	if err := got.Check(); err != nil {
		t.Error(err)
	}
	again, err := json.Marshal(got)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(b), string(again)); diff != "" {
		t.Errorf("plan (-sent +received):\n%s", diff)
	}
}

// FuzzCheck: a plan from another process is refused or correct; a correct one doesn't
// exceed its segment or its files.
func FuzzCheck(f *testing.F) {
	b, err := json.Marshal(smallPlan())
	if err != nil {
		f.Fatal(err)
	}
	f.Add(b)
	f.Fuzz(func(t *testing.T, b []byte) {
		p := new(Plan)
		if json.Unmarshal(b, p) != nil || p.Check() != nil {
			return
		}
		size := p.Table.Segment
		for _, c := range p.Copies {
			if c.Dst < 0 || c.Written(c.RowBytes) <= 0 || c.Rows*c.Written(c.RowBytes) > size-c.Dst {
				t.Errorf("copy past the segment: %+v", c)
			}
			if end := c.Src + (c.Rows-1)*c.SrcStride + c.RowBytes; end <= 0 || end > p.Files[c.File].Stamp.Size {
				t.Errorf("copy past the file: %+v", c)
			}
		}
		for _, r := range p.Ropes {
			if r.Dst < 0 || r.Rows*r.RowBytes() > size-r.Dst {
				t.Errorf("rope past the segment: %+v", r)
			}
		}
	})
}
