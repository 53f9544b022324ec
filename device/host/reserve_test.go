// SPDX-FileCopyrightText: The wcache authors
// SPDX-License-Identifier: MIT

package host

import (
	"errors"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/wcache/wcache/internal/fd"
)

// Both ways to get pages, more than one step of them.
func TestReserve(t *testing.T) {
	const bytes = reserveStep + 1<<20
	for name, take := range map[string]func(f *fd.FD, mem []byte) error{
		"populate": func(_ *fd.FD, mem []byte) error { return populate(mem) },
		"allocate": func(f *fd.FD, _ []byte) error { return allocate(f, bytes) },
	} {
		t.Run(name, func(t *testing.T) {
			f, err := fd.Memory("segment")
			if err != nil {
				t.Fatal(err)
			}
			defer f.Close()
			if err := unix.Ftruncate(f.Int(), bytes); err != nil {
				t.Fatal(err)
			}
			mem, err := unix.Mmap(f.Int(), 0, bytes, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
			if err != nil {
				t.Fatal(err)
			}
			defer unix.Munmap(mem)
			if err := take(f, mem); errors.Is(err, unix.EINVAL) {
				t.Skip("this kernel has no MADV_POPULATE_WRITE; the other way is tested")
			} else if err != nil {
				t.Fatal(err)
			}
			var st unix.Stat_t
			if err := unix.Fstat(f.Int(), &st); err != nil {
				t.Fatal(err)
			}
			if st.Blocks*512 != bytes {
				t.Errorf("%d bytes are in memory, want %d", st.Blocks*512, bytes)
			}
		})
	}
}
