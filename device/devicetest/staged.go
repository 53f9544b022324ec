// SPDX-FileCopyrightText: The wcache authors
// SPDX-License-Identifier: MIT

package devicetest

import (
	"fmt"

	"github.com/wcache/wcache/device"
)

// Staged makes any device behave as a GPU does: its writers give out staging and not the
// memory itself, and copy it later. So a wrong use of the interface, such as a write after
// Commit, shows in the contents. Staged passes Run itself.
func Staged(d device.Device) device.Device { return stagedDevice{d} }

const (
	stagingBytes = device.MinBlock
	ringSize     = 2 // blocks of staging per writer
)

type stagedDevice struct{ device.Device }

func (d stagedDevice) Alloc(bytes int64) (device.Buffer, error) {
	b, err := d.Device.Alloc(bytes)
	if err != nil {
		return nil, err
	}
	return stagedBuffer{b}, nil
}

type stagedBuffer struct{ device.Buffer }

func (b stagedBuffer) Writer() (device.Writer, error) {
	under, err := b.Buffer.Writer()
	if err != nil {
		return nil, err
	}
	w := &stagedWriter{under: under, bytes: b.Bytes(), copies: make(chan stagedCopy), free: make(chan []byte, ringSize)}
	for range ringSize {
		w.free <- make([]byte, stagingBytes)
	}
	w.done = make(chan struct{})
	go w.copy()
	return w, nil
}

type stagedCopy struct {
	off     int64
	n       int
	staging []byte
}

type stagedWriter struct {
	under  device.Writer
	bytes  int64
	block  *stagedCopy // that Block gave out
	copies chan stagedCopy
	free   chan []byte
	done   chan struct{} // closed when copy has ended
	err    error         // of copy, to be read by who holds all of free, or after done
	closed bool
}

// copy is the device's copy engine.
func (w *stagedWriter) copy() {
	defer close(w.done)
	for c := range w.copies {
		b, err := w.under.Block(c.off, c.n)
		if err == nil {
			copy(b, c.staging)
			err = w.under.Commit()
		}
		if w.err == nil {
			w.err = err
		}
		w.free <- c.staging
	}
}

// poison overwrites staging, so that a byte that wasn't written isn't zero by chance.
func poison(b []byte) {
	for i := range b {
		b[i] = 0xa5
	}
}

func (w *stagedWriter) MaxBlock() int { return stagingBytes }

func (w *stagedWriter) Block(off int64, n int) ([]byte, error) {
	if w.block != nil {
		return nil, fmt.Errorf("write block: the one at %d is not committed", w.block.off)
	}
	if n <= 0 || n > stagingBytes || off < 0 || off > w.bytes-int64(n) {
		return nil, fmt.Errorf("write block: bytes %d+%d of a buffer of %d", off, n, w.bytes)
	}
	b := <-w.free
	poison(b[:n])
	w.block = &stagedCopy{off, n, b}
	return b[:n:n], nil
}

func (w *stagedWriter) Commit() error {
	if w.block == nil {
		return fmt.Errorf("commit block: there is none")
	}
	c := *w.block
	w.block = nil
	w.copies <- c
	return nil
}

func (w *stagedWriter) Flush() error {
	var all [ringSize][]byte
	for i := range all {
		all[i] = <-w.free
	}
	err := w.err
	for _, b := range all {
		w.free <- b
	}
	return err
}

func (w *stagedWriter) Close() error {
	if w.closed {
		return nil
	}
	w.closed = true
	close(w.copies)
	<-w.done
	if err := w.under.Close(); w.err == nil {
		w.err = err
	}
	return w.err
}

func (d stagedDevice) View(s device.Segment) (device.View, error) {
	v, err := d.Device.View(s)
	if err != nil {
		return nil, err
	}
	return stagedView{v}, nil
}

type stagedView struct{ device.View }

func (v stagedView) Reader() (device.Reader, error) {
	r, err := v.View.Reader()
	if err != nil {
		return nil, err
	}
	return &stagedReader{Reader: r, staging: make([]byte, stagingBytes)}, nil
}

// stagedReader copies as late as the contract allows, so that a user who keeps a block after
// the next Fetch reads other bytes.
type stagedReader struct {
	device.Reader
	staging []byte
}

func (r *stagedReader) MaxBlock() int { return stagingBytes }

func (r *stagedReader) Fetch(off int64, n int) error {
	if n > stagingBytes {
		return fmt.Errorf("read segment: %d bytes are over %d", n, stagingBytes)
	}
	poison(r.staging[:max(n, 0)])
	return r.Reader.Fetch(off, n)
}

func (r *stagedReader) Bytes() ([]byte, error) {
	b, err := r.Reader.Bytes()
	return r.staging[:copy(r.staging, b):len(b)], err
}
