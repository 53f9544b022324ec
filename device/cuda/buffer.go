// SPDX-FileCopyrightText: The wcache authors
// SPDX-License-Identifier: MIT

package cuda

import (
	"errors"
	"fmt"
	"runtime"
	"sync"

	"github.com/wcache/wcache/device"
)

var errSpent = errors.New("the buffer is sealed or closed")

type buffer struct {
	region *region

	mu      sync.Mutex
	spent   bool
	writers int   // number of open writers
	failed  error // a writer's error: some bytes may not have arrived
}

func (b *buffer) Bytes() int64 { return b.region.bytes }

func (b *buffer) Writer() (device.Writer, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.spent {
		return nil, fmt.Errorf("open writer: %w", errSpent)
	}
	d := b.region.d
	// The driver keeps data for each thread that calls it. A writer that changed threads
	// would leave such data on all threads of Go.
	runtime.LockOSThread()
	s, err := d.driver.newStream(d.ctx)
	if err != nil {
		runtime.UnlockOSThread()
		return nil, d.wrap("open writer of", err)
	}
	b.writers++
	return &writer{b: b, driver: d.driver, ctx: d.ctx, stream: s, ring: make([]piece, d.options.Ring)}, nil
}

// Seal can't make the memory read-only for engines: the driver has no such access right.
func (b *buffer) Seal() (device.Segment, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	d := b.region.d
	switch {
	case b.spent:
		return device.Segment{}, fmt.Errorf("seal segment: %w", errSpent)
	case b.writers > 0:
		return device.Segment{}, fmt.Errorf("seal segment: %d writers are open", b.writers)
	case b.failed != nil:
		return device.Segment{}, fmt.Errorf("seal segment: %w", b.failed)
	}
	if err := d.driver.synchronize(d.ctx); err != nil {
		return device.Segment{}, d.wrap("seal segment of", err)
	}
	seal := b.region.export
	if b.region.keeper != nil {
		seal = b.region.keep
	}
	s, err := seal()
	if err != nil {
		return device.Segment{}, d.wrap("seal segment of", err)
	}
	b.spent = true
	return s, nil
}

func (b *buffer) Close() error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.spent {
		return nil
	}
	b.spent = true
	if err := b.region.free(); err != nil {
		return b.region.d.wrap("free memory of", err)
	}
	return nil
}

// leave ends a writer.
func (b *buffer) leave(err error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.writers--
	if b.failed == nil {
		b.failed = err
	}
}
