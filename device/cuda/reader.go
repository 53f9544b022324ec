// SPDX-FileCopyrightText: The wcache authors
// SPDX-License-Identifier: MIT

package cuda

import (
	"errors"
	"fmt"
	"runtime"

	"github.com/wcache/wcache/device"
)

// reader has the GPU write the bytes of a Fetch into one piece of pinned staging.
type reader struct {
	r      *region
	stream cuStream
	done   cuEvent // after the last copy
	mem    *staging
	n      int // bytes of the last Fetch, 0: it failed or there was none
	closed bool
}

// Reader makes one more reader. Its goroutine stays on one thread until Close.
func (m *Mapping) Reader() (device.Reader, error) {
	m.mu.RLock()
	defer m.mu.RUnlock()
	if m.region == nil {
		return nil, errors.New("read segment: it is closed")
	}
	runtime.LockOSThread() // as for a writer
	r := &reader{r: m.region}
	if err := r.prepare(); err != nil {
		err = r.r.d.wrap("open reader of", err)
		return nil, errors.Join(err, r.Close())
	}
	return r, nil
}

func (r *reader) prepare() (err error) {
	d := r.r.d
	if r.stream, err = d.driver.newStream(d.ctx); err != nil {
		return err
	}
	if r.done, err = d.driver.newEvent(d.ctx); err != nil {
		return err
	}
	r.mem, err = newStaging(d.driver, d.ctx, d.options.BlockBytes)
	return err
}

func (r *reader) MaxBlock() int { return r.r.d.options.BlockBytes }

func (r *reader) Fetch(off int64, n int) error {
	d, wait := r.r.d, r.n > 0
	r.n = 0
	switch {
	case r.closed:
		return errors.New("read segment: the reader is closed")
	case n <= 0 || n > r.MaxBlock() || off < 0 || off > r.r.bytes-int64(n):
		return fmt.Errorf("read segment: bytes %d+%d are not in one of %d, or over %d", off, n, r.r.bytes, r.MaxBlock())
	}
	if wait { // no Bytes followed the last Fetch, whose copy may still run
		if err := d.driver.waitEvent(d.ctx, r.done); err != nil {
			return d.wrap("read segment of", err)
		}
	}
	if err := d.driver.fetch(d.ctx, r.mem.bytes[:n], r.r.ptr+cuPointer(off), r.stream); err != nil {
		return d.wrap(fmt.Sprintf("read %d bytes at %d of", n, off), err)
	}
	if err := d.driver.record(d.ctx, r.done, r.stream); err != nil {
		return d.wrap("read segment of", err)
	}
	r.n = n
	return nil
}

func (r *reader) Bytes() ([]byte, error) {
	if r.n == 0 || r.closed {
		return nil, errors.New("read segment: nothing was asked for")
	}
	d := r.r.d
	if err := d.driver.waitEvent(d.ctx, r.done); err != nil {
		return nil, d.wrap("read segment of", err)
	}
	return r.mem.bytes[:r.n:r.n], nil
}

func (r *reader) Close() error {
	if r.closed {
		return nil
	}
	r.closed = true
	d := r.r.d
	var errs []error
	if r.stream != nil { // no copy may run into staging that is freed
		errs = append(errs, d.driver.waitStream(d.ctx, r.stream))
	}
	if r.mem != nil {
		errs = append(errs, r.mem.free(d.driver, d.ctx))
	}
	if r.done != nil {
		errs = append(errs, d.driver.endEvent(d.ctx, r.done))
	}
	if r.stream != nil {
		errs = append(errs, d.driver.endStream(d.ctx, r.stream))
	}
	runtime.UnlockOSThread()
	if err := errors.Join(errs...); err != nil {
		return d.wrap("read segment of", err)
	}
	return nil
}
