// SPDX-FileCopyrightText: The wcache authors
// SPDX-License-Identifier: MIT

package native

import (
	"errors"
	"fmt"
	"math/rand/v2"

	"golang.org/x/sys/unix"

	"github.com/wcache/wcache/internal/fd"
)

const (
	// directBytes is the smallest read past the page cache. Smaller pieces, and pieces with
	// holes, lie between those of other ranks, and the cache serves all ranks with one read.
	directBytes = 1 << 20
	// alignBytes divides the offsets, lengths and addresses of all reads with O_DIRECT. Disks
	// have no larger blocks; a file system that needs more gives EINVAL.
	alignBytes = 4 << 10
)

// openDirect prepares a source for reading blocks that aren't in the page cache past it. If
// the file system can't do that, everything goes through the cache.
func (s *source) openDirect() error {
	open := func(flags int) (*fd.FD, error) {
		n, err := unix.Open(s.file.Path, unix.O_RDONLY|unix.O_CLOEXEC|flags, 0)
		if err != nil {
			return nil, nil //nolint:nilnil // not an error: the file system has no O_DIRECT
		}
		return fd.New(n)
	}
	direct, err := open(unix.O_DIRECT)
	if direct == nil {
		return err
	}
	probe, err := open(0)
	if probe == nil {
		_ = direct.Close()
		return err
	}
	var a, b, c unix.Stat_t
	if unix.Fstat(s.fd.Int(), &a) != nil || unix.Fstat(direct.Int(), &b) != nil || unix.Fstat(probe.Int(), &c) != nil ||
		a.Ino != b.Ino || a.Dev != b.Dev || a.Ino != c.Ino || a.Dev != c.Dev {
		_, _ = direct.Close(), probe.Close()
		return nil // check says that the file changed
	}
	// Otherwise a probe would make the kernel read ahead the blocks that come next.
	_ = unix.Fadvise(probe.Int(), 0, 0, unix.FADV_RANDOM)
	s.direct, s.probe, s.cached = direct, probe, s.inCache
	return nil
}

// inCache reports whether a block of n bytes at off is in the page cache. It tests one byte.
// The test may load that byte's page into the cache, so each test takes a random byte. If the
// page arrives during the test, or the kernel can't tell, inCache reports true.
func (s *source) inCache(off int64, n int) bool {
	var b [1]byte
	_, err := unix.Preadv2(s.probe.Int(), [][]byte{b[:]}, off+rand.Int64N(int64(n)), unix.RWF_NOWAIT)
	return !errors.Is(err, unix.EAGAIN)
}

// aligned is memory for O_DIRECT, mapped at the first use.
type aligned struct{ mem []byte }

func (a *aligned) bytes(n int) ([]byte, error) {
	if len(a.mem) < n {
		a.free()
		mem, err := unix.Mmap(-1, 0, n, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
		if err != nil {
			return nil, fmt.Errorf("map %d bytes to read files into: %w", n, err)
		}
		a.mem = mem
	}
	return a.mem[:n], nil
}

func (a *aligned) free() {
	if a.mem != nil {
		_ = unix.Munmap(a.mem) // fails only for wrong arguments
	}
	a.mem = nil
}

// readBlock fills b from the given offset, past the page cache if b is large and not in it.
func (w *worker) readBlock(s *source, b []byte, off int64) error {
	if s.direct == nil || len(b) < directBytes || s.cached(off, len(b)) {
		return s.read(b, off)
	}
	first := off / alignBytes * alignBytes
	end := (off + int64(len(b)) + alignBytes - 1) / alignBytes * alignBytes
	mem, err := w.aligned.bytes(int(end - first))
	if err != nil {
		return err
	}
	got, want := 0, int(off-first)+len(b)
	for got < want {
		n, err := unix.Pread(s.direct.Int(), mem[got:], first+int64(got))
		if err == unix.EINTR {
			continue
		}
		// A file's last bytes, and blocks that the file system refuses with O_DIRECT, are
		// read through the page cache.
		if err != nil || n <= 0 || n%alignBytes != 0 && got+n < want {
			return s.read(b, off)
		}
		got += n
	}
	copy(b, mem[off-first:])
	return nil
}
