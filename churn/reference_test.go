// SPDX-FileCopyrightText: The wcache authors
// SPDX-License-Identifier: MIT

package main

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/wcache/wcache/internal/testmain"
	"github.com/wcache/wcache/protocol"
	"github.com/wcache/wcache/tensor"
)

func TestMain(m *testing.M) { testmain.Run(m) }

// golden reads the tensors of a recorded checkpoint.
func golden(t *testing.T, dir string) checkpoint {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(dir, "*.safetensors"))
	if err != nil || len(files) == 0 {
		t.Fatal(files, err)
	}
	c := make(checkpoint)
	for _, path := range files {
		b, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		n := binary.LittleEndian.Uint64(b)
		var header map[string]struct {
			Offsets []int `json:"data_offsets"`
		}
		if err := json.Unmarshal(b[8:8+n], &header); err != nil {
			t.Fatal(err)
		}
		for name, x := range header {
			if len(x.Offsets) == 2 {
				c[name] = b[8+n:][x.Offsets[0]:x.Offsets[1]]
			}
		}
	}
	return c
}

// row is a tensor as testdata/layouts describes it.
type row struct {
	Name   string  `json:"name"`
	Kind   string  `json:"kind"`
	DType  string  `json:"dtype"`
	Shape  []int64 `json:"shape"`
	SHA256 string  `json:"sha256"`
}

// The reference makes the same of the recorded checkpoint as vLLM's own loader.
func TestReference(t *testing.T) {
	c := golden(t, "../testdata/checkpoints/llama")
	for tp := 1; tp <= 2; tp++ {
		for rank := range tp {
			name := fmt.Sprintf("llama-tp%dr%d", tp, rank)
			b, err := os.ReadFile(filepath.Join("../testdata/layouts", name+".json"))
			if err != nil {
				t.Fatal(err)
			}
			var want struct {
				Entries []row             `json:"entries"`
				Aliases map[string]string `json:"aliases"`
				Attrs   map[string]bool   `json:"attrs"`
			}
			if err := json.Unmarshal(b, &want); err != nil {
				t.Fatal(err)
			}
			var got []row
			for _, p := range families()[0].rank(c, tp, rank) {
				sum := sha256.Sum256(p.bytes)
				got = append(got, row{p.name, string(p.kind), "torch." + p.dtype.Torch(), p.shape, hex.EncodeToString(sum[:])})
			}
			if diff := cmp.Diff(want.Entries, got); diff != "" {
				t.Errorf("%s: -want +got:\n%s", name, diff)
			}
			for _, a := range aliases() {
				delete(want.Aliases, a.Name)
			}
			for _, a := range attrs() {
				if want.Attrs[a.Name] == a.Value {
					delete(want.Attrs, a.Name)
				}
			}
			if len(want.Aliases) > 0 || len(want.Attrs) > 0 {
				t.Errorf("%s: not told: %v %v", name, want.Aliases, want.Attrs)
			}
		}
	}
}

// A checkpoint's tensors are the recorded one's, name by name and size by size.
func TestShards(t *testing.T) {
	want := golden(t, "../testdata/checkpoints/llama")
	got := families()[0].version(7)
	if diff := cmp.Diff(sizes(want), sizes(got)); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
}

func sizes(c checkpoint) map[string]int {
	m := make(map[string]int)
	for name, b := range c {
		m[name] = len(b)
	}
	return m
}

// reply is what an engine would get for a checkpoint.
func reply(f family, c checkpoint, tp, rank int) *protocol.Reply {
	r := &protocol.Reply{Aliases: aliases(), Attrs: attrs()}
	for _, p := range f.rank(c, tp, rank) {
		r.Entries = append(r.Entries, protocol.Entry{
			Name: p.name, Kind: p.kind, DType: p.dtype, Shape: p.shape, Stride: tensor.Contiguous(p.shape),
			Storage: protocol.Storage{Data: slices.Clone(p.bytes), Bytes: int64(len(p.bytes))},
		})
	}
	return r
}

func data(e *protocol.Entry) ([]byte, error) { return e.Data, nil }

// The comparison finds each kind of fault, and returns the versions that it found.
func TestCompare(t *testing.T) {
	f := families()[2]
	last := func(r *protocol.Reply, name string) *protocol.Entry {
		return &r.Entries[slices.IndexFunc(r.Entries, func(e protocol.Entry) bool { return e.Name == name })]
	}
	for _, tt := range []struct {
		name     string
		change   func(r *protocol.Reply)
		versions []uint32
		err      string
	}{
		{"equal", func(*protocol.Reply) {}, []uint32{5}, "<nil>"},
		{"a mixture", func(r *protocol.Reply) {
			last(r, "model.norm.weight").Data = f.version(6)["model.norm.weight"]
		}, []uint32{5, 6}, "<nil>"},
		{"another place", func(r *protocol.Reply) {
			b := last(r, "lm_head.weight").Data
			copy(b[16:24], b[24:32])
		}, []uint32{5}, "lm_head.weight, byte 16: the word is 0x4484 of version 5, want 0x4483"},
		{"one bit", func(r *protocol.Reply) { last(r, "model.norm.weight").Data[1] ^= 1 }, []uint32{5}, "model.norm.weight, byte 0: the word is 0x4571 of version 5, want 0x4471"},
		{"padding", func(r *protocol.Reply) {
			b := last(r, "lm_head.weight").Data
			b[len(b)-1] = 1
		}, []uint32{5}, "lm_head.weight, byte 24568: the word is 0x0 of version 16777216, want 0x0"},
		{"a buffer", func(r *protocol.Reply) { last(r, ropeName(0)).Data[7] ^= 1 }, []uint32{5}, ropeName(0) + " differs"},
		{"cut", func(r *protocol.Reply) { e := last(r, "lm_head.weight"); e.Data = e.Data[8:] }, []uint32{5}, "lm_head.weight has 24568 bytes, want 24576"},
		{"one less", func(r *protocol.Reply) { r.Entries = r.Entries[1:] }, nil, "23 tensors, want 24"},
	} {
		r := reply(f, f.version(5), 1, 0)
		tt.change(r)
		versions, err := compare(f.rank(f.version(0), 1, 0), r, data)
		if diff := cmp.Diff(tt.versions, versions); diff != "" || fmt.Sprint(err) != tt.err {
			t.Errorf("%s: got %v, want %s; versions -want +got:\n%s", tt.name, err, tt.err, diff)
		}
	}
}
