// SPDX-FileCopyrightText: The wcache authors
// SPDX-License-Identifier: MIT

package native

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"slices"
	"sync"

	"github.com/wcache/wcache/device"
	"github.com/wcache/wcache/layout"
	"github.com/wcache/wcache/tensor"
)

// Difference is how memory differs from the result of a plan.
type Difference struct {
	Tensor  string `json:"tensor"`  // the first tensor in memory that differs
	Offset  int64  `json:"offset"`  // the first byte that differs, from the tensor's start
	Memory  byte   `json:"memory"`  // that byte in memory
	File    byte   `json:"file"`    // that byte by the files
	Bytes   int64  `json:"bytes"`   // number of bytes that differ
	Tensors int    `json:"tensors"` // number of tensors that differ; tensors with the same memory count once
}

// Compare carries a plan out as [Fill] does, but instead of writing it compares with the
// view, block by block. The difference is nil if all bytes of the plan's storages are equal.
// Errors are as with Fill; after an error nothing is known about the memory.
func Compare(ctx context.Context, plan *layout.Plan, view device.View, o Options) (*Difference, error) {
	if err := check(plan, view.Bytes()); err != nil {
		return nil, err
	}
	sources, err := o.sources(plan)
	if err != nil {
		return nil, err
	}
	defer closeSources(sources)
	c := newComparison(plan.Table, view)
	if err := fillFrom(ctx, sources, plan, c, o); err != nil {
		return nil, err
	}
	return c.difference(), nil
}

// comparison is a buffer that compares what is written to it with a view.
type comparison struct {
	table  *tensor.Table
	view   device.View
	places []int // storages with bytes, by offset

	mu       sync.Mutex
	found    *Difference  // nil: nothing yet; Tensor and Offset come at the end
	first    int64        // offset in the segment of the first byte that differs
	storages map[int]bool // storages that differ
}

func newComparison(t *tensor.Table, view device.View) *comparison {
	c := &comparison{table: t, view: view, storages: make(map[int]bool)}
	for i, s := range t.Storages {
		if s.Bytes > 0 {
			c.places = append(c.places, i)
		}
	}
	slices.SortFunc(c.places, func(a, b int) int { return cmp.Compare(t.Storages[a].Offset, t.Storages[b].Offset) })
	return c
}

func (c *comparison) Bytes() int64 { return c.view.Bytes() }

func (c *comparison) Writer() (device.Writer, error) {
	r, err := c.view.Reader()
	if err != nil {
		return nil, err
	}
	return &comparer{c: c, reader: r}, nil
}

func (c *comparison) Seal() (device.Segment, error) {
	return device.Segment{}, errors.New("seal segment: it is only compared with")
}

func (c *comparison) Close() error { return nil }

// note records that bytes at off differ. A block lies in one storage.
func (c *comparison) note(off int64, memory, file []byte) {
	var n int64
	first := -1
	for i := range memory {
		if memory[i] != file[i] {
			n++
			if first < 0 {
				first = i
			}
		}
	}
	at := off + int64(first)
	c.mu.Lock()
	defer c.mu.Unlock()
	c.storages[c.storage(at)] = true
	if c.found == nil {
		c.found, c.first = new(Difference), at+1
	}
	c.found.Bytes += n
	if at < c.first {
		c.first, c.found.Memory, c.found.File = at, memory[first], file[first]
	}
}

// storage is the index of the storage that contains a byte.
func (c *comparison) storage(at int64) int {
	i, found := slices.BinarySearchFunc(c.places, at, func(place int, at int64) int {
		return cmp.Compare(c.table.Storages[place].Offset, at)
	})
	if !found {
		i-- // to the one that begins before
	}
	return c.places[i]
}

func (c *comparison) difference() *Difference {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.found == nil {
		return nil
	}
	d, storage := *c.found, c.storage(c.first)
	at := c.first - c.table.Storages[storage].Offset
	d.Offset, d.Tensors = at, len(c.storages)
	for _, t := range c.table.Tensors {
		begin := t.Offset * int64(t.DType.Size())
		if t.Storage == storage && begin <= at { // of tensors that share the byte, the last
			d.Tensor, d.Offset = t.Name, at-begin
		}
	}
	return &d
}

// comparer is a writer that has memory read while the file is read, and then compares.
type comparer struct {
	c      *comparison
	reader device.Reader
	block  []byte // bytes from the files
	off    int64
}

func (w *comparer) MaxBlock() int { return w.reader.MaxBlock() }

func (w *comparer) Block(off int64, n int) ([]byte, error) {
	if err := w.reader.Fetch(off, n); err != nil {
		return nil, err
	}
	if cap(w.block) < n {
		w.block = make([]byte, n)
	}
	w.block, w.off = w.block[:n], off
	return w.block, nil
}

func (w *comparer) Commit() error {
	memory, err := w.reader.Bytes()
	if err != nil {
		return err
	}
	if !bytes.Equal(memory, w.block) {
		w.c.note(w.off, memory, w.block)
	}
	return nil
}

func (w *comparer) Flush() error { return nil }

func (w *comparer) Close() error { return w.reader.Close() }
