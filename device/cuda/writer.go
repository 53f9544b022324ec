// SPDX-FileCopyrightText: The wcache authors
// SPDX-License-Identifier: MIT

package cuda

import (
	"errors"
	"fmt"
	"runtime"
)

// pageBytes divides the offsets of blocks in staging: reads of a file are fastest into whole
// pages.
const pageBytes = 4 << 10

// writer fills pinned staging, a ring of pieces, and has the GPU copy it. A block of a piece's
// size gets a whole piece; smaller blocks share one, so that many can be in flight at once.
type writer struct {
	b      *buffer
	driver *driver
	ctx    cuContext
	stream cuStream
	ring   []piece
	at     int   // the piece that is being filled
	block  block // that Block gave out
	err    error // the first error, which all later calls return
	closed bool
}

// piece is a part of the staging, allocated when it is first needed.
type piece struct {
	mem  *staging
	used int     // bytes that are given out
	done cuEvent // after the last copy from it, once the writer has moved on
}

type block struct {
	mem []byte // nil if there is none
	off int64
}

func (w *writer) MaxBlock() int { return w.b.region.d.options.BlockBytes }

func (w *writer) Block(off int64, n int) ([]byte, error) {
	bytes := w.b.region.bytes
	switch {
	case w.err != nil:
		return nil, w.err
	case w.closed:
		return nil, errors.New("write block: the writer is closed")
	case w.block.mem != nil:
		return nil, fmt.Errorf("write block: the one at %d is not committed", w.block.off)
	case n <= 0 || n > w.MaxBlock() || off < 0 || off > bytes-int64(n):
		return nil, fmt.Errorf("write block: bytes %d+%d are not in a buffer of %d, or over %d", off, n, bytes, w.MaxBlock())
	}
	mem, err := w.stage(n)
	if err != nil {
		return nil, w.fail("write block to", err)
	}
	w.block = block{mem, off}
	return mem, nil
}

// stage finds n bytes of staging, and waits until no copy uses them.
func (w *writer) stage(n int) ([]byte, error) {
	p := &w.ring[w.at]
	if p.used+n > w.MaxBlock() { // on to the oldest piece
		if err := w.driver.record(w.ctx, p.done, w.stream); err != nil {
			return nil, err
		}
		w.at = (w.at + 1) % len(w.ring)
		p = &w.ring[w.at]
		if p.used > 0 {
			if err := w.driver.waitEvent(w.ctx, p.done); err != nil {
				return nil, err
			}
			p.used = 0
		}
	}
	if p.mem == nil {
		var err error
		if p.done, err = w.driver.newEvent(w.ctx); err != nil {
			return nil, err
		}
		if p.mem, err = newStaging(w.driver, w.ctx, w.MaxBlock()); err != nil {
			return nil, err
		}
	}
	mem := p.mem.bytes[p.used : p.used+n : p.used+n]
	p.used += (n + pageBytes - 1) / pageBytes * pageBytes
	return mem, nil
}

func (w *writer) Commit() error {
	switch {
	case w.err != nil:
		return w.err
	case w.block.mem == nil:
		return errors.New("commit block: there is none")
	}
	c := w.block
	w.block = block{}
	if err := w.driver.copyIn(w.ctx, w.b.region.ptr+cuPointer(c.off), c.mem, w.stream); err != nil {
		return w.fail(fmt.Sprintf("copy %d bytes to", len(c.mem)), err)
	}
	return nil
}

func (w *writer) Flush() error {
	if w.err != nil || w.closed {
		return w.err
	}
	if err := w.driver.waitStream(w.ctx, w.stream); err != nil {
		return w.fail("copy to", err)
	}
	return nil
}

// fail remembers the first error.
func (w *writer) fail(verb string, err error) error {
	w.err = w.b.region.d.wrap(verb, err)
	return w.err
}

func (w *writer) Close() error {
	if w.closed {
		return nil
	}
	// No copy may be in flight when staging is freed, even after an error of the stream.
	errs := []error{w.driver.waitStream(w.ctx, w.stream)}
	w.closed = true
	for _, p := range w.ring {
		if p.done != nil {
			errs = append(errs, w.driver.endEvent(w.ctx, p.done))
		}
		if p.mem != nil {
			errs = append(errs, p.mem.free(w.driver, w.ctx))
		}
	}
	errs = append(errs, w.driver.endStream(w.ctx, w.stream))
	if err := errors.Join(errs...); err != nil && w.err == nil {
		_ = w.fail("copy to", err)
	}
	w.b.leave(w.err)
	runtime.UnlockOSThread()
	return w.err
}
