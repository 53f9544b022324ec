// SPDX-FileCopyrightText: The wcache authors
// SPDX-License-Identifier: MIT

package host

import (
	"errors"
	"fmt"
	"runtime"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/wcache/wcache/device"
)

var errClosed = errors.New("it is closed")

// View maps the segment. It refuses a memory file that isn't sealed: another process could
// shorten it, and a read would then cause a SIGBUS.
func (*Device) View(s device.Segment) (device.View, error) {
	if err := Check(s); err != nil {
		return nil, err
	}
	f := s.Pieces[0] // Check has found one piece
	mem, err := unix.Mmap(f.Int(), 0, int(s.Bytes), unix.PROT_READ, unix.MAP_SHARED)
	runtime.KeepAlive(f)
	if err != nil {
		return nil, fmt.Errorf("map segment of %d bytes: %w", s.Bytes, err)
	}
	return &view{bytes: s.Bytes, mem: mem}, nil
}

type view struct {
	bytes int64

	mu  sync.Mutex
	mem []byte // nil once closed
}

func (v *view) Bytes() int64 { return v.bytes }

func (v *view) Reader() (device.Reader, error) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.mem == nil {
		return nil, fmt.Errorf("read segment: %w", errClosed)
	}
	return &reader{mem: v.mem}, nil
}

func (v *view) Close() error {
	v.mu.Lock()
	defer v.mu.Unlock()
	mem := v.mem
	v.mem = nil
	if mem == nil {
		return nil
	}
	if err := unix.Munmap(mem); err != nil {
		return fmt.Errorf("unmap segment: %w", err)
	}
	return nil
}

// reader gives out the mapping itself, so it never waits.
type reader struct{ mem, block []byte }

func (r *reader) MaxBlock() int { return maxBlock }

func (r *reader) Fetch(off int64, n int) error {
	r.block = nil
	if n <= 0 || n > maxBlock || off < 0 || off > int64(len(r.mem)-n) {
		return fmt.Errorf("read segment: bytes %d+%d are not in one of %d", off, n, len(r.mem))
	}
	r.block = r.mem[off : off+int64(n) : off+int64(n)]
	return nil
}

func (r *reader) Bytes() ([]byte, error) {
	if r.block == nil {
		return nil, errors.New("read segment: nothing was asked for")
	}
	return r.block, nil
}

func (r *reader) Close() error {
	r.mem, r.block = nil, nil
	return nil
}
