// SPDX-FileCopyrightText: The wcache authors
// SPDX-License-Identifier: MIT

package main

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"text/tabwriter"

	"golang.org/x/sys/unix"

	"github.com/wcache/wcache/protocol"
	"github.com/wcache/wcache/tensor"
)

// mapping is all memory that a reply names, each file mapped once.
type mapping struct {
	files map[string][]byte
	bytes int64
}

func mapReply(r *protocol.Reply) (*mapping, error) {
	m := &mapping{files: make(map[string][]byte)}
	for _, e := range r.Entries {
		if e.Path == "" || m.files[e.Path] != nil {
			continue
		}
		if err := m.add(e.Path, e.Bytes); err != nil {
			m.close()
			return nil, err
		}
	}
	return m, nil
}

// add maps a file as torch.UntypedStorage.from_file does: privately, so that a
// write would be this process's own.
func (m *mapping) add(path string, bytes int64) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	mem, err := unix.Mmap(int(f.Fd()), 0, int(bytes), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE)
	if err != nil {
		return fmt.Errorf("map %q: %w", path, err)
	}
	m.files[path] = mem
	m.bytes += bytes
	return nil
}

func (m *mapping) close() {
	for _, mem := range m.files {
		_ = unix.Munmap(mem) // the process ends soon
	}
}

// tensor is the bytes of a tensor without gaps.
func (m *mapping) tensor(e *protocol.Entry) ([]byte, error) {
	if !slices.Equal(e.Stride, tensor.Contiguous(e.Shape)) {
		return nil, fmt.Errorf("read tensor %q: stride %v of shape %v has gaps", e.Name, e.Stride, e.Shape)
	}
	mem, size := m.files[e.Path], int64(e.DType.Size())
	n, from := tensor.Elements(e.Shape)*size, e.Offset*size
	if n < 0 || from < 0 || from > int64(len(mem))-n {
		return nil, fmt.Errorf("read tensor %q: bytes %d+%d are not in %d that are mapped", e.Name, from, n, len(mem))
	}
	return mem[from : from+n], nil
}

// layout is a file of testdata/layouts: what vLLM's own loader made.
type layout struct {
	Entries []struct {
		Name   string  `json:"name"`
		DType  string  `json:"dtype"`
		Shape  []int64 `json:"shape"`
		SHA256 string  `json:"sha256"`
	} `json:"entries"`
}

func readLayout(path string) (*layout, error) {
	b, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	l := new(layout)
	if err := json.Unmarshal(b, l); err != nil {
		return nil, fmt.Errorf("read %q: %w", path, err)
	}
	return l, nil
}

// compare looks at every tensor and shows the first of them, and any that differs.
// Names, order, types, shapes and bytes have to be vLLM's.
func (l *layout) compare(out io.Writer, r *protocol.Reply, m *mapping, rows int) error {
	if len(r.Entries) != len(l.Entries) {
		return fmt.Errorf("compare tensors: %d came, vLLM's own loader makes %d", len(r.Entries), len(l.Entries))
	}
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	if rows > 0 {
		fmt.Fprintln(w, "TENSOR\tTYPE\tSHAPE\tSHA256\tVLLM'S OWN")
	}
	different := 0
	for i := range r.Entries {
		e, want := &r.Entries[i], l.Entries[i]
		b, err := m.tensor(e)
		if err != nil {
			return err
		}
		sum := sha256.Sum256(b)
		is, verdict := hex.EncodeToString(sum[:]), "equal"
		if is != want.SHA256 || e.Name != want.Name || "torch."+e.DType.Torch() != want.DType || !slices.Equal(e.Shape, want.Shape) {
			verdict = "DIFFERENT: " + want.Name + " " + want.SHA256[:12]
			different++
		}
		if i < rows || verdict != "equal" {
			fmt.Fprintf(w, "%s\t%s\t%s\t%.12s…\t%s\n", e.Name, e.DType.Torch(), shape(e.Shape), is, verdict)
		}
	}
	if err := w.Flush(); err != nil {
		return err
	}
	fmt.Fprintf(out, "%d of %d are equal to what vLLM's own loader made, bit for bit\n", len(r.Entries)-different, len(r.Entries))
	if different > 0 {
		return fmt.Errorf("compare tensors: %d of %d differ", different, len(r.Entries))
	}
	return nil
}

// shape words a shape, such as "128 × 64".
func shape(dims []int64) string {
	text := make([]string, len(dims))
	for i, d := range dims {
		text[i] = fmt.Sprint(d)
	}
	return strings.Join(text, " × ")
}
