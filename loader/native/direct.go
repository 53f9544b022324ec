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
	// directBytes is the least that is read past the page cache: smaller pieces and
	// those with holes are what other ranks read around, and the cache serves them
	// all with one read.
	directBytes = 1 << 20
	// alignBytes is what O_DIRECT wants offsets, lengths and memory to be a multiple
	// of. No disk has larger blocks, and a file system that wants more says EINVAL.
	alignBytes = 4 << 10
)

// openDirect prepares a source for reading past the page cache what isn't in it.
// Where the file system has no such way everything goes through the cache.
func (s *source) openDirect() error {
	open := func(flags int) (*fd.FD, error) {
		n, err := unix.Open(s.file.Path, unix.O_RDONLY|unix.O_CLOEXEC|flags, 0)
		if err != nil {
			return nil, nil //nolint:nilnil // not an error: there is no such way
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
	// Without it a probe would have the kernel read ahead what is about to be read.
	_ = unix.Fadvise(probe.Int(), 0, 0, unix.FADV_RANDOM)
	s.direct, s.probe, s.cached = direct, probe, s.inCache
	return nil
}

// inCache reports whether a block of n bytes at off is in the page cache, by one of
// its bytes. Asking may bring that byte's page in, so each asks for another; where
// that is quicker than the answer, or it can't be told, the block is said to be there.
func (s *source) inCache(off int64, n int) bool {
	var b [1]byte
	_, err := unix.Preadv2(s.probe.Int(), [][]byte{b[:]}, off+rand.Int64N(int64(n)), unix.RWF_NOWAIT)
	return !errors.Is(err, unix.EAGAIN)
}

// aligned is memory for O_DIRECT, made when it is first needed.
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
		_ = unix.Munmap(a.mem) // nobody can do anything about it
	}
	a.mem = nil
}

// readBlock fills b from the given offset, past the page cache if that is the
// shorter way.
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
		// A file's last bytes, and what the file system doesn't like to give in this
		// way, come by the other.
		if err != nil || n <= 0 || n%alignBytes != 0 && got+n < want {
			return s.read(b, off)
		}
		got += n
	}
	copy(b, mem[off-first:])
	return nil
}
