// SPDX-FileCopyrightText: The wcache authors
// SPDX-License-Identifier: MIT

package cuda

import (
	"errors"
	"fmt"
	"sync"

	"github.com/wcache/wcache/device"
)

// region is memory of the GPU at an address. Its fields are written by what makes it
// and by free alone.
type region struct {
	d      *Device
	keeper *Keeper // who keeps it once it is a segment; nil: its descriptor does
	bytes  int64
	handle cuHandle
	ptr    cuPointer

	used, made, reserved, mapped, owned, opened bool // what free has to undo
}

// place gets a handle from make and maps what it stands for.
func (d *Device) place(bytes int64, make func() (cuHandle, error)) (_ *region, err error) {
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
	if r.handle, err = make(); err != nil {
		return nil, err
	}
	r.made = true
	if r.ptr, err = d.driver.reserve(d.ctx, bytes); err != nil {
		return nil, err
	}
	r.reserved = true
	if err = d.driver.mapMemory(d.ctx, r.ptr, bytes, r.handle); err != nil {
		return nil, err
	}
	r.mapped = true
	if err = d.driver.allow(d.ctx, r.ptr, bytes, d.gpu.device); err != nil {
		return nil, err
	}
	return r, nil
}

// export makes a segment of a region, which ends here: the descriptor is enough.
func (r *region) export() (device.Segment, error) {
	f, err := r.d.driver.export(r.handle)
	if err != nil {
		return device.Segment{}, err
	}
	if err := r.free(); err != nil {
		_ = f.Close()
		return device.Segment{}, err
	}
	return device.Segment{FD: f, Bytes: r.bytes}, nil
}

// free undoes what made the region, all that can be undone, and once.
func (r *region) free() error {
	var errs []error
	undo := func(done *bool, how func() error) {
		if *done {
			errs = append(errs, how())
		}
		*done = false
	}
	undo(&r.mapped, func() error { return r.d.driver.unmap(r.d.ctx, r.ptr, r.bytes) })
	undo(&r.reserved, func() error { return r.d.driver.unreserve(r.d.ctx, r.ptr, r.bytes) })
	undo(&r.made, func() error { return r.d.driver.memRelease(r.handle) })
	undo(&r.owned, func() error { return r.d.driver.memFree(r.d.ctx, r.ptr) })
	undo(&r.opened, func() error { return r.d.driver.ipcClose(r.d.ctx, r.ptr) })
	undo(&r.used, func() error { return r.d.driver.release(r.d.gpu.device) })
	return errors.Join(errs...)
}

var _ device.View = (*Mapping)(nil)

// Mapping is a segment as a consumer sees it, for reading back what it holds. It
// is safe for concurrent use.
type Mapping struct {
	mu     sync.RWMutex
	region *region // nil once closed
}

// Map maps a segment, which has to be of this GPU, and need not be of this
// process. The segment's descriptor stays the caller's.
func (d *Device) Map(s device.Segment) (*Mapping, error) {
	r, err := d.place(s.Bytes, func() (cuHandle, error) { return d.driver.importMemory(d.ctx, s.FD) })
	if err != nil {
		return nil, d.wrap(fmt.Sprintf("map %d bytes of", s.Bytes), err)
	}
	return &Mapping{region: r}, nil
}

// View is Map as a part of [device.Device].
func (d *Device) View(s device.Segment) (device.View, error) {
	m, err := d.Map(s)
	if err != nil {
		return nil, err
	}
	return m, nil
}

// Bytes is the segment's size, 0 of a mapping that is closed.
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
