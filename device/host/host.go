// SPDX-FileCopyrightText: The wcache authors
// SPDX-License-Identifier: MIT

// Package host is the device for machines without a GPU: segments are sealed memory files
// (memfd_create(2)), which torch maps by /proc/PID/fd/N.
package host

import (
	"errors"
	"fmt"
	"os"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/wcache/wcache/device"
	"github.com/wcache/wcache/internal/fd"
)

// maxBlock is an arbitrary limit: the interface needs one, but the mapping has none.
const maxBlock = 1 << 30

// Check reports why a segment isn't finished host memory; nil if it is.
func Check(s device.Segment) error {
	f, err := s.One()
	if err != nil {
		return err
	}
	seals, err := unix.FcntlInt(uintptr(f.Int()), unix.F_GET_SEALS, 0)
	if err != nil {
		return fmt.Errorf("check segment: not a memory file: %w", err)
	}
	var st unix.Stat_t
	if err := unix.Fstat(f.Int(), &st); err != nil {
		return fmt.Errorf("check segment: %w", err)
	}
	if seals&fd.Seals != fd.Seals || st.Size != s.Bytes {
		return fmt.Errorf("check segment: %d bytes with seals %#x, want %d with %#x", st.Size, seals&fd.Seals, s.Bytes, fd.Seals)
	}
	return nil
}

// Device is the memory of the host.
type Device struct{}

// Open returns the host's memory. There is nothing to open, so it can't fail.
func Open() *Device { return &Device{} }

// Granularity is the size of a page.
func (*Device) Granularity() int64 { return int64(os.Getpagesize()) }

// Free is how many bytes the kernel could allocate without swapping, within the memory limits
// of this process's control groups.
func (*Device) Free() (int64, error) { return available(os.DirFS("/")) }

// Close does nothing.
func (*Device) Close() error { return nil }

// Alloc allocates all pages at once: a page that could not be allocated when it is written
// would cause a SIGBUS.
func (d *Device) Alloc(bytes int64) (device.Buffer, error) {
	free, err := d.Free()
	if err != nil {
		return nil, err
	}
	page := d.Granularity()
	switch {
	case bytes <= 0:
		return nil, fmt.Errorf("allocate host memory: %d bytes", bytes)
	case bytes > free:
		return nil, &device.NoMemory{Want: bytes, Free: free}
	}
	bytes = (bytes + page - 1) / page * page

	f, err := fd.Memory("wcache-segment")
	if err != nil {
		return nil, err
	}
	mem, err := reserve(f, bytes)
	if err != nil {
		_ = f.Close()
		if errors.Is(err, unix.ENOMEM) || errors.Is(err, unix.ENOSPC) {
			return nil, &device.NoMemory{Want: bytes, Free: free}
		}
		return nil, fmt.Errorf("allocate %d bytes of host memory: %w", bytes, err)
	}
	return &buffer{f: f, mem: mem}, nil
}

var errSpent = errors.New("the buffer is sealed or closed")

type buffer struct {
	mu      sync.Mutex
	f       *fd.FD
	mem     []byte // nil once sealed or closed
	writers int    // number of open writers
}

func (b *buffer) Bytes() int64 { return int64(len(b.mapping())) }

func (b *buffer) mapping() []byte {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.mem
}

func (b *buffer) Writer() (device.Writer, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.mem == nil {
		return nil, fmt.Errorf("open writer: %w", errSpent)
	}
	b.writers++
	return &writer{b: b, mem: b.mem}, nil
}

func (b *buffer) Seal() (device.Segment, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	switch {
	case b.mem == nil:
		return device.Segment{}, fmt.Errorf("seal segment: %w", errSpent)
	case b.writers > 0:
		return device.Segment{}, fmt.Errorf("seal segment: %d writers are open", b.writers)
	}
	bytes := int64(len(b.mem))
	if err := b.unmap(); err != nil { // the kernel seals no file that is mapped writable
		return device.Segment{}, err
	}
	if err := b.f.Seal(); err != nil {
		_ = b.f.Close()
		return device.Segment{}, err
	}
	return device.Whole(b.f, bytes), nil
}

func (b *buffer) Close() error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.mem == nil {
		return nil
	}
	return errors.Join(b.unmap(), b.f.Close())
}

// Preconditions: mu is held and the buffer is mapped.
func (b *buffer) unmap() error {
	mem := b.mem
	b.mem = nil
	if err := unix.Munmap(mem); err != nil {
		return fmt.Errorf("unmap segment: %w", err)
	}
	return nil
}

// writer gives out the mapping itself, so it never waits.
type writer struct {
	b   *buffer
	mem []byte // nil once closed
}

func (w *writer) MaxBlock() int { return maxBlock }

func (w *writer) Block(off int64, n int) ([]byte, error) {
	if n <= 0 || n > maxBlock || off < 0 || off > int64(len(w.mem)-n) {
		return nil, fmt.Errorf("write block: bytes %d+%d are not in a buffer of %d", off, n, len(w.mem))
	}
	return w.mem[off : off+int64(n) : off+int64(n)], nil
}

func (w *writer) Commit() error { return nil }

func (w *writer) Flush() error { return nil }

func (w *writer) Close() error {
	if w.mem == nil {
		return nil
	}
	w.mem = nil
	w.b.mu.Lock()
	defer w.b.mu.Unlock()
	w.b.writers--
	return nil
}
