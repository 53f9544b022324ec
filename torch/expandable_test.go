// SPDX-FileCopyrightText: The wcache authors
// SPDX-License-Identifier: MIT

package torch

import (
	"bytes"
	"encoding/hex"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/wcache/wcache/protocol"
	"github.com/wcache/wcache/protocol/pickle"
	"github.com/wcache/wcache/tensor"
)

// TestHandle spells out what torch parses, field by field.
func TestHandle(t *testing.T) {
	const bytes = 40<<30 | 2<<20
	for _, tt := range []struct {
		header Header
		fds    []int
		want   []string
	}{
		{Header24, []int{300}, []string{"02", "65", "4e61bc00", "00000000", "000020000a000000", "0100000000000000", "2c010000"}},
		{Header32, []int{300}, []string{"03", "65", "4e61bc00", "00000000", "000020000a000000", "0100000000000000", "01000000", "00000000", "2c010000"}},
		{Header32, []int{300, 7}, []string{"03", "65", "4e61bc00", "00000000", "0000100005000000", "0200000000000000", "01000000", "00000000", "2c010000", "07000000"}},
	} {
		e := Expandable{PID: 12345678, FDs: tt.fds, Header: tt.header}
		if got, want := hex.EncodeToString(e.handle(bytes)), strings.Join(tt.want, ""); got != want {
			t.Errorf("version %d:\n got %s\nwant %s", tt.header, got, want)
		}
	}
}

// TestLegacyHandle spells out what torch parses: nothing but the kind is before a
// handle of CUDA's.
func TestLegacyHandle(t *testing.T) {
	l := legacy(0)
	bare := hex.EncodeToString(l.Handle[:])
	for header, want := range map[Header]string{0: bare, Header24: "0263" + bare, Header32: "0363" + bare} {
		l.Header = header
		if got := hex.EncodeToString(l.handle()); got != want {
			t.Errorf("version %d:\n got %s\nwant %s", header, got, want)
		}
	}
}

// TestArguments compares all that is said about one tensor with what
// rebuild_cuda_tensor takes, in its order.
func TestArguments(t *testing.T) {
	table := &tensor.Table{
		Segment:  2 << 20,
		Storages: []tensor.Storage{{Offset: 512, Bytes: 96}},
		Tensors: []tensor.Tensor{
			{Name: "w", Kind: tensor.Param, DType: tensor.BF16, Shape: []int64{4, 8}, Stride: []int64{1, 4}, Offset: 16},
			{Name: "again", Kind: tensor.Buffer, DType: tensor.F32, Shape: []int64{}, Stride: []int64{}},
		},
	}
	expandable := Expandable{PID: 1, FDs: []int{3}, Header: Header24}
	legacy := Legacy{Handle: [64]byte{1, 2, 3}, Header: Header32}
	for _, tt := range []struct {
		form   protocol.Form
		handle []byte
	}{{expandable, expandable.handle(2 << 20)}, {legacy, legacy.handle()}} {
		testArguments(t, table, tt.form, tt.handle)
	}
}

func testArguments(t *testing.T, table *tensor.Table, form protocol.Form, handle []byte) {
	t.Helper()
	m, err := protocol.EncodeState(protocol.State{Module: "m", Table: table}, form)
	if err != nil {
		t.Fatal(err)
	}
	b := written(t, m)[8:]
	v, err := pickle.Decode(b, pickle.Options{Allow: func(string, string) bool { return true }})
	if err != nil {
		t.Fatal(err)
	}
	entries, _ := v.(*pickle.Dict).Get("entries")
	var got []any
	for _, item := range entries.(*pickle.Dict).Items {
		args, _ := item.Value.(*pickle.Object).State.(*pickle.Dict).Get("ipc_args")
		got = append(got, args)
	}
	arguments := func(shape, stride pickle.Tuple, offset int64, dtype string) pickle.Tuple {
		return pickle.Tuple{
			pickle.Global{Module: "torch", Name: "Tensor"},
			&pickle.Call{Func: pickle.Global{Module: "torch", Name: "Size"}, Args: pickle.Tuple{shape}},
			stride,
			offset,
			pickle.Global{Module: "torch.storage", Name: "TypedStorage"},
			pickle.Global{Module: "torch", Name: dtype},
			int64(0),
			handle,
			int64(96),
			int64(512),
			false,
			[]byte("/wcache/none"),
			int64(0),
			make([]byte, 64),
			false,
		}
	}
	want := []any{
		arguments(pickle.Tuple{int64(4), int64(8)}, pickle.Tuple{int64(1), int64(4)}, 16, "bfloat16"),
		arguments(pickle.Tuple{}, pickle.Tuple{}, 0, "float32"),
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
	if n := bytes.Count(b, handle); n != 1 {
		t.Errorf("%T: the segment's handle is written %d times", form, n)
	}
}

func TestHeaderFor(t *testing.T) {
	for version, want := range map[string]Header{
		"0.30.0": Header32, "0.31.0": Header32, "0.32.0": Header32, "0.33.0": Header32, "0.33.1": Header32,
		"0.33.0rc2": Header32, "0.33.1.dev12+g0123456.cu130": Header32, "0.34.0": 0, "1.0.0": 0,
		"0.29.3": 0, "0.9.2": 0, "": 0, "dev": 0, "0": 0, "0.33": 0, "0.x.1": 0, "-1.30.0": 0, "0.-30.0": 0, "0.99999999.0": 0,
	} {
		if got, ok := HeaderFor(version); got != want || ok != (want != 0) {
			t.Errorf("HeaderFor(%q) = %d, %v; want %d", version, got, ok, want)
		}
	}
}

func TestHeaderForTorch(t *testing.T) {
	for version, want := range map[string]Header{"2.11.0": Header24, "2.12.1+cu130": Header24, "2.13.0": Header32, "2.14.0+cu130": Header32, "3.0.0": Header32, "1.13.1": 0, "": 0, "git": 0} {
		got, ok := HeaderForTorch(version)
		if got != want || ok != (want != 0) {
			t.Errorf("%q: got %d, %v, want %d", version, got, ok, want)
		}
	}
}
