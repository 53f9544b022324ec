// SPDX-FileCopyrightText: The wcache authors
// SPDX-License-Identifier: MIT

package host

import (
	"errors"
	"runtime"
	"sync"
	"sync/atomic"

	"golang.org/x/sys/unix"

	"github.com/wcache/wcache/internal/fd"
)

// reserveStep is how many bytes one system call reserves. A signal that interrupts
// fallocate(2), such as those of Go's scheduler, undoes the whole call.
const reserveStep = 16 << 20

// reserve gives a memory file its size and its pages, and maps it.
//
// All CPUs at once allocate the pages through the mapping. That is a third of the work of a
// load from the page cache; fallocate(2) would do it with one CPU. It also avoids later page
// faults.
func reserve(f *fd.FD, bytes int64) ([]byte, error) {
	if err := unix.Ftruncate(f.Int(), bytes); err != nil {
		return nil, err
	}
	mem, err := unix.Mmap(f.Int(), 0, int(bytes), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		return nil, err
	}
	err = populate(mem)
	switch {
	case errors.Is(err, unix.EINVAL): // Linux before 5.14
		err = allocate(f, bytes)
	case errors.Is(err, unix.EFAULT): // where a write would get a SIGBUS: the file can't grow
		err = unix.ENOSPC
	}
	if err != nil {
		_ = unix.Munmap(mem)
		return nil, err
	}
	return mem, nil
}

// populate allocates the pages of a mapping, with several threads.
func populate(mem []byte) error {
	steps := (len(mem) + reserveStep - 1) / reserveStep
	var next atomic.Int64
	var wg sync.WaitGroup
	errs := make([]error, min(runtime.GOMAXPROCS(0), steps))
	for i := range errs {
		wg.Go(func() {
			for errs[i] == nil {
				off := int(next.Add(1)-1) * reserveStep
				if off >= len(mem) {
					return
				}
				errs[i] = unix.Madvise(mem[off:min(off+reserveStep, len(mem))], unix.MADV_POPULATE_WRITE)
			}
		})
	}
	wg.Wait()
	for _, err := range errs {
		if err != nil {
			return err
		}
	}
	return nil
}

// allocate allocates the pages of a file.
func allocate(f *fd.FD, bytes int64) error {
	for off := int64(0); off < bytes; {
		err := unix.Fallocate(f.Int(), 0, off, min(reserveStep, bytes-off))
		if err == unix.EINTR {
			continue
		}
		if err != nil {
			return err
		}
		off += reserveStep
	}
	return nil
}
