// SPDX-FileCopyrightText: The wcache authors
// SPDX-License-Identifier: MIT

package cuda

import (
	"fmt"
	"unsafe"

	"golang.org/x/sys/unix"
)

// hugeBytes is a page that the kernel can give in one piece on x86-64 and, with
// pages of 4 KiB, on arm64.
const hugeBytes = 2 << 20

// staging is pinned memory of the host. It is made of huge pages where the kernel
// has them: pinning is done by the page, and takes 0.2 ms a MiB on an H200's host
// instead of 0.5 for what cuMemHostAlloc makes.
type staging struct {
	bytes []byte // pinned, of undefined contents
	whole []byte // that bytes are cut from
}

func newStaging(d *driver, ctx cuContext, bytes int) (*staging, error) {
	whole, err := unix.Mmap(-1, 0, bytes+hugeBytes, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
	if err != nil {
		return nil, fmt.Errorf("map %d bytes of staging: %w", bytes, err)
	}
	skip := -uintptr(unsafe.Pointer(unsafe.SliceData(whole))) % hugeBytes
	s := &staging{bytes: whole[skip:][:bytes:bytes], whole: whole}
	// Both make it quicker, and writers do it side by side; the driver lets only one
	// pin at a time. A kernel that knows neither makes the pages when they are pinned.
	_ = unix.Madvise(s.bytes, unix.MADV_HUGEPAGE)
	_ = unix.Madvise(s.bytes, unix.MADV_POPULATE_WRITE)
	if err := d.pin(ctx, s.bytes); err != nil {
		_ = unix.Munmap(whole) // err is why
		return nil, err
	}
	return s, nil
}

// free lets the memory go, which no copy may be reading any more.
func (s *staging) free(d *driver, ctx cuContext) error {
	// What stays pinned must stay mapped.
	if err := d.unpin(ctx, s.bytes); err != nil {
		return err
	}
	if err := unix.Munmap(s.whole); err != nil {
		return fmt.Errorf("unmap staging: %w", err)
	}
	return nil
}
