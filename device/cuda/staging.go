// SPDX-FileCopyrightText: The wcache authors
// SPDX-License-Identifier: MIT

package cuda

import (
	"fmt"
	"unsafe"

	"golang.org/x/sys/unix"
)

// hugeBytes is the size of a huge page on x86-64 and, with pages of 4 KiB, on arm64.
const hugeBytes = 2 << 20

// staging is pinned host memory, of huge pages where the kernel has them: the time to pin
// memory depends on the number of pages, and is 0.2 ms per MiB on an H200's host, instead of
// 0.5 ms per MiB with cuMemHostAlloc.
type staging struct {
	bytes []byte // pinned, of undefined contents
	whole []byte // the mapping that contains bytes
}

func newStaging(d *driver, ctx cuContext, bytes int) (*staging, error) {
	whole, err := unix.Mmap(-1, 0, bytes+hugeBytes, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
	if err != nil {
		return nil, fmt.Errorf("map %d bytes of staging: %w", bytes, err)
	}
	skip := -uintptr(unsafe.Pointer(unsafe.SliceData(whole))) % hugeBytes
	s := &staging{bytes: whole[skip:][:bytes:bytes], whole: whole}
	// Both calls make the pages before they are pinned, in all writers at once, while the
	// driver pins for one writer at a time. A kernel without them makes the pages when they
	// are pinned.
	_ = unix.Madvise(s.bytes, unix.MADV_HUGEPAGE)
	_ = unix.Madvise(s.bytes, unix.MADV_POPULATE_WRITE)
	if err := d.pin(ctx, s.bytes); err != nil {
		_ = unix.Munmap(whole) // err is why
		return nil, err
	}
	return s, nil
}

// free unpins and unmaps the memory. No copy may run on it.
func (s *staging) free(d *driver, ctx cuContext) error {
	// If the memory can't be unpinned, it must stay mapped.
	if err := d.unpin(ctx, s.bytes); err != nil {
		return err
	}
	if err := unix.Munmap(s.whole); err != nil {
		return fmt.Errorf("unmap staging: %w", err)
	}
	return nil
}
