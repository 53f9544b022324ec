// SPDX-FileCopyrightText: The wcache authors
// SPDX-License-Identifier: MIT

package tensor_test

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/wcache/wcache/tensor"
)

// FuzzDecode: a table from a descriptor that somebody has kept is refused, or one that
// an engine can be given: each tensor lies inside of its segment.
func FuzzDecode(f *testing.F) {
	b, err := (&tensor.Table{
		Segment:  4096,
		Storages: []tensor.Storage{{Bytes: 96}, {Offset: 256, Bytes: 8}, {Offset: 512}},
		Tensors: []tensor.Tensor{
			{Name: "w", Kind: tensor.Param, DType: tensor.BF16, Shape: []int64{4, 8}, Stride: []int64{1, 4}, Offset: 16},
			{Name: "v", Kind: tensor.Buffer, DType: tensor.F32, Shape: []int64{2}, Stride: []int64{1}, Storage: 1},
			{Name: "e", Kind: tensor.Buffer, DType: tensor.F8E4M3, Shape: []int64{0, 3}, Stride: []int64{3, 1}, Storage: 2},
		},
		Aliases: []tensor.Alias{{Name: "x", Target: "w"}},
		Attrs:   []tensor.Attr{{Name: "a", Value: true}},
	}).Encode()
	if err != nil {
		f.Fatal(err)
	}
	f.Add(b)
	f.Fuzz(func(t *testing.T, b []byte) {
		table, err := tensor.Decode(b)
		if (table == nil) != (err != nil) {
			t.Fatalf("got %v and %v", table, err)
		}
		if err != nil {
			return
		}
		for _, x := range table.Tensors {
			last := x.Offset
			for i, n := range x.Shape {
				last += max(n-1, 0) * x.Stride[i]
			}
			s := table.Storages[x.Storage]
			if end := s.Offset + (last+1)*int64(x.DType.Size()); tensor.Elements(x.Shape) > 0 && (last < 0 || end > s.Offset+s.Bytes || end > table.Segment) {
				t.Fatalf("%q ends at %d of %+v", x.Name, end, s)
			}
		}
		text, err := table.Encode()
		if err != nil {
			t.Fatal(err)
		}
		again, err := tensor.Decode(text)
		if err != nil {
			t.Fatal(err)
		}
		if third, _ := again.Encode(); string(third) != string(text) {
			t.Error(cmp.Diff(table, again))
		}
	})
}
