// SPDX-FileCopyrightText: The wcache authors
// SPDX-License-Identifier: MIT

package cuda

import (
	"errors"
	"fmt"
	"sync"

	"github.com/wcache/wcache/device"
)

// region is GPU memory that is mapped at an address. Only its makers and free write its
// fields.
type region struct {
	d      *Device
	keeper *Keeper // keeps the memory of the segment; nil: its descriptors do
	bytes  int64
	pieces []cuHandle // handles of the pieces, of equal size and in order, which free has to release
	ptr    cuPointer

	used, reserved, owned, opened bool // what free has to undo
	mapped                        int  // pieces
}

// place gets n handles from make and maps their memory as one range.
func (d *Device) place(bytes int64, n int, make func(piece int) (cuHandle, error)) (_ *region, err error) {
	r := &region{d: d, bytes: bytes}
	if err := d.use(); err != nil {
		return nil, err
	}
	r.used = true
	defer func() {
		if err != nil {
			_ = r.free() // err is why
		}
	}()
	for i := range n {
		h, err := make(i)
		if err != nil {
			return nil, err
		}
		r.pieces = append(r.pieces, h)
	}
	if r.ptr, err = d.driver.reserve(d.ctx, bytes); err != nil {
		return nil, err
	}
	r.reserved = true
	for i, h := range r.pieces {
		if err = d.driver.mapMemory(d.ctx, r.piece(i), r.pieceBytes(), h); err != nil {
			return nil, err
		}
		r.mapped++
	}
	if err = d.driver.allow(d.ctx, r.ptr, bytes, d.gpu.device); err != nil {
		return nil, err
	}
	return r, nil
}

func (r *region) pieceBytes() int64 { return r.bytes / int64(len(r.pieces)) }

func (r *region) piece(i int) cuPointer { return r.ptr + cuPointer(int64(i)*r.pieceBytes()) }

// export makes a segment from a region and frees the region: the descriptors keep the memory.
func (r *region) export() (device.Segment, error) {
	s := device.Segment{Bytes: r.bytes}
	for _, h := range r.pieces {
		f, err := r.d.driver.export(h)
		if err != nil {
			_ = s.Close() // err is why
			return device.Segment{}, err
		}
		s.Pieces = append(s.Pieces, f)
	}
	if err := r.free(); err != nil {
		_ = s.Close()
		return device.Segment{}, err
	}
	return s, nil
}

// free undoes everything that made the region, as far as it can. A second call does nothing.
func (r *region) free() error {
	var errs []error
	undo := func(done *bool, how func() error) {
		if *done {
			errs = append(errs, how())
		}
		*done = false
	}
	for i := range r.mapped {
		errs = append(errs, r.d.driver.unmap(r.d.ctx, r.piece(i), r.pieceBytes()))
	}
	r.mapped = 0
	undo(&r.reserved, func() error { return r.d.driver.unreserve(r.d.ctx, r.ptr, r.bytes) })
	for _, h := range r.pieces {
		errs = append(errs, r.d.driver.memRelease(h))
	}
	r.pieces = nil
	undo(&r.owned, func() error { return r.d.driver.memFree(r.d.ctx, r.ptr) })
	undo(&r.opened, func() error { return r.d.driver.ipcClose(r.d.ctx, r.ptr) })
	undo(&r.used, func() error { return r.d.driver.release(r.d.gpu.device) })
	return errors.Join(errs...)
}

var _ device.View = (*Mapping)(nil)

// Mapping maps a segment as a consumer does, to read its contents back. It is safe for
// concurrent use.
type Mapping struct {
	mu     sync.RWMutex
	region *region // nil once closed
}

// Map maps a segment of this GPU, from this process or another. The segment's descriptors
// stay the caller's.
func (d *Device) Map(s device.Segment) (*Mapping, error) {
	var r *region
	_, err := s.PieceBytes()
	if err == nil {
		r, err = d.place(s.Bytes, len(s.Pieces), func(i int) (cuHandle, error) { return d.driver.importMemory(d.ctx, s.Pieces[i]) })
	}
	if err != nil {
		return nil, d.wrap(fmt.Sprintf("map %d bytes of", s.Bytes), err)
	}
	return &Mapping{region: r}, nil
}

// View is Map, as part of [device.Device].
func (d *Device) View(s device.Segment) (device.View, error) {
	m, err := d.Map(s)
	if err != nil {
		return nil, err
	}
	return m, nil
}

// Bytes is the segment's size, 0 after Close.
func (m *Mapping) Bytes() int64 {
	m.mu.RLock()
	defer m.mu.RUnlock()
	if m.region == nil {
		return 0
	}
	return m.region.bytes
}

// ReadAt is io.ReaderAt, except that all of p must lie within the segment.
func (m *Mapping) ReadAt(p []byte, off int64) (int, error) {
	m.mu.RLock()
	defer m.mu.RUnlock()
	if len(p) == 0 {
		return 0, nil
	}
	r := m.region
	if r == nil || off < 0 || int64(len(p)) > r.bytes-off {
		return 0, fmt.Errorf("read segment: bytes %d+%d are not in it, or it is closed", off, len(p))
	}
	if err := r.d.driver.copyOut(r.d.ctx, p, r.ptr+cuPointer(off)); err != nil {
		return 0, r.d.wrap(fmt.Sprintf("read %d bytes at %d of", len(p), off), err)
	}
	return len(p), nil
}

// Close unmaps the segment. A second Close does nothing.
func (m *Mapping) Close() error {
	m.mu.Lock()
	defer m.mu.Unlock()
	r := m.region
	m.region = nil
	if r == nil {
		return nil
	}
	if err := r.free(); err != nil {
		return r.d.wrap("unmap segment of", err)
	}
	return nil
}
