// SPDX-FileCopyrightText: The wcache authors
// SPDX-License-Identifier: MIT

package layout

import (
	"encoding/json"
	"path/filepath"
	"strings"
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
	tests := []struct {
		name   string
		change func(*Plan)
		want   string
	}{
		{"right, with shared and empty storages", func(*Plan) {}, ""},
		{"no table", func(p *Plan) { p.Table = nil }, "no table"},
		{"no tensors", func(p *Plan) { *p = Plan{Table: &tensor.Table{Segment: 0}} }, "no tensors"},
		{"zero bytes", func(p *Plan) {
			x := p.Table.Tensors[4]
			x.Storage = 0
			*p = Plan{Table: &tensor.Table{Segment: 0, Storages: []tensor.Storage{{}}, Tensors: []tensor.Tensor{x}}}
		}, "no bytes"},
		{"view past its storage", func(p *Plan) { p.Table.Tensors[1].Offset = 9 }, "overrun a storage"},
		{"unwritten end", func(p *Plan) { p.Zeros = nil }, "byte 64 of the segment is not written"},
		{"unwritten start", func(p *Plan) { p.Copies[0].Dst = 32; p.Copies[0].Rows = 2 }, "byte 0 of the segment is not written"},
		{"written twice", func(p *Plan) { p.Zeros = append(p.Zeros, Zero{Dst: 80, Bytes: 16}) }, "byte 80 of the segment is not written exactly once"},
		{"written over the end", func(p *Plan) { p.Zeros[0].Bytes = 40 }, "byte 64"},
		{"written between storages", func(p *Plan) { p.Zeros = append(p.Zeros, Zero{Dst: 600, Bytes: 1}) }, "byte 600"},
		{"storages overlap", func(p *Plan) { p.Table.Storages[1] = tensor.Storage{Offset: 0, Bytes: 96} }, "storages overlap"},
		{"nothing to write", func(p *Plan) { p.Zeros = append(p.Zeros, Zero{Dst: 64}) }, "byte 64"},
		{"negative", func(p *Plan) { p.Zeros = []Zero{{Dst: 64, Bytes: -32}} }, "byte 64"},
		{"past the file", func(p *Plan) { p.Copies[0].Src = 873 }, `past the end of "/f"`},
		{"far past the file", func(p *Plan) { p.Copies[0].SrcStride = 1 << 62 }, `past the end of "/f"`},
		{"before the file", func(p *Plan) { p.Copies[0].Src = -1 }, "from -1"},
		{"no such file", func(p *Plan) { p.Copies[0].File = 1 }, "no file 1"},
		{"part of an element", func(p *Plan) { p.Copies[0].RowBytes = 30 }, "30 bytes"},
		{"rows over each other", func(p *Plan) { p.Copies[0].SrcStride = 16 }, "16 apart"},
		{"no rows", func(p *Plan) { p.Copies[0].Rows = 0 }, "0 rows"},
		{"integers", func(p *Plan) { p.Copies[0].From = tensor.I32 }, "cast of I32"},
		{"to float64", func(p *Plan) { p.Copies[0].To = tensor.F64 }, "to F64"},
		{"cache of integers", func(p *Plan) { p.Ropes[0].To = tensor.I16 }, "rope cache 0"},
		{"cache without end", func(p *Plan) { p.Ropes[0].Rows = 1 << 62 }, "rope cache 0"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			p := smallPlan()
			tt.change(p)
			err := p.Check()
			if tt.want == "" && err == nil {
				return
			}
			if err == nil || tt.want == "" || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("got %v, want %q", err, tt.want)
			}
		})
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
			if c.Dst < 0 || c.written() <= 0 || c.written() > size-c.Dst {
				t.Errorf("copy past the segment: %+v", c)
			}
			if end := c.Src + (c.Rows-1)*c.SrcStride + c.RowBytes; end <= 0 || end > p.Files[c.File].Stamp.Size {
				t.Errorf("copy past the file: %+v", c)
			}
		}
		for _, r := range p.Ropes {
			if r.Dst < 0 || r.written() > size-r.Dst {
				t.Errorf("rope past the segment: %+v", r)
			}
		}
	})
}
