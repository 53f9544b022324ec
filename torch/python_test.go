// SPDX-FileCopyrightText: The wcache authors
// SPDX-License-Identifier: MIT

package torch

import (
	"bytes"
	"encoding/hex"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/wcache/wcache/protocol"
	"github.com/wcache/wcache/tensor"
)

// TestReadByTorch has the real torch read replies of both forms, and compares
// every byte of every tensor.
func TestReadByTorch(t *testing.T) {
	python := os.Getenv("WCACHE_TEST_PYTHON")
	if python == "" {
		t.Skip("WCACHE_TEST_PYTHON names no interpreter with torch; TestGoldenReplies holds the bytes that torch has read, and the engine test reads replies with vLLM")
	}
	table, segment := sample()
	path := filepath.Join(t.TempDir(), "segment")
	if err := os.WriteFile(path, segment, 0o400); err != nil {
		t.Fatal(err)
	}
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = f.Close() }()
	if err := os.Remove(path); err != nil { // what is left is a descriptor, as of a memory file
		t.Fatal(err)
	}
	for _, tt := range []struct {
		name string
		form protocol.Form
	}{
		{"mapped", Mapped{PID: os.Getpid(), FD: int(f.Fd())}},
		{"by value", ByValue{bytes.NewReader(segment)}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			m, err := protocol.EncodeState(protocol.State{Module: "reply", Table: table, Attrs: true}, tt.form)
			if err != nil {
				t.Fatal(err)
			}
			got := readByTorch(t, python, written(t, m))
			_, byValue := tt.form.(ByValue)
			want := reading{Entries: wanted(table, segment, byValue)}
			want.Rest.Status = "ok"
			want.Rest.Aliases = map[string]string{"tied": "all.bfloat16", "tied.again": "all.bfloat16"}
			want.Rest.Attrs = map[string]bool{"has_own_lm_head": false, "has_own_embed_tokens": true}
			if diff := cmp.Diff(want, got); diff != "" {
				t.Error(diff)
			}
		})
	}
}

// reading is what testdata/read.py prints.
type reading struct {
	Entries []readEntry
	Rest    struct {
		Status  string
		Aliases map[string]string
		Attrs   map[string]bool
	}
}

type readEntry struct {
	Name, Kind    string
	IPC           bool
	DType         string
	Shape, Stride []int64
	Data          string // hexadecimal, in the order of a contiguous tensor
	Shares        int    // number of the storage, counted as they come
	Grad          bool
}

func readByTorch(t *testing.T, python string, frame []byte) (r reading) {
	t.Helper()
	var stdout, stderr bytes.Buffer
	cmd := exec.Command(python, "testdata/read.py")
	cmd.Stdin, cmd.Stdout, cmd.Stderr = bytes.NewReader(frame), &stdout, &stderr
	if err := cmd.Run(); err != nil {
		t.Fatalf("%v\n%s", err, stderr.Bytes())
	}
	if err := json.Unmarshal(stdout.Bytes(), &r); err != nil {
		t.Fatal(err)
	}
	return r
}

// wanted is what torch has to make of a table. Mapped, one storage is the whole
// segment; in either form tensors without bytes share one.
func wanted(t *tensor.Table, segment []byte, byValue bool) []readEntry {
	shares := make(map[int]int)
	var list []readEntry
	for _, x := range t.Tensors {
		s := t.Storages[x.Storage]
		id := wholeID
		if byValue {
			id = x.Storage
		}
		if s.Bytes == 0 {
			id = -1
		}
		if _, ok := shares[id]; !ok {
			shares[id] = len(shares)
		}
		list = append(list, readEntry{
			Name: x.Name, Kind: string(x.Kind), DType: "torch." + x.DType.Torch(), Shape: x.Shape, Stride: x.Stride,
			Data:   hex.EncodeToString(gather(x, segment[s.Offset:])),
			Shares: shares[id],
		})
	}
	return list
}

// gather is a strided tensor's bytes in the order of a contiguous one.
func gather(x tensor.Tensor, storage []byte) []byte {
	size := int64(x.DType.Size())
	var out []byte
	var walk func(dim int, at int64)
	walk = func(dim int, at int64) {
		if dim == len(x.Shape) {
			out = append(out, storage[at*size:(at+1)*size]...)
			return
		}
		for i := range x.Shape[dim] {
			walk(dim+1, at+i*x.Stride[dim])
		}
	}
	walk(0, x.Offset)
	return out
}
