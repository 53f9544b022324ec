// SPDX-FileCopyrightText: The wcache authors
// SPDX-License-Identifier: MIT

package native

import (
	"bytes"
	"errors"
	"math/rand/v2"
	"os"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/wcache/wcache/device/host"
	"github.com/wcache/wcache/internal/testmain"
	"github.com/wcache/wcache/layout"
	"github.com/wcache/wcache/tensor"
)

// splitSource is a source whose two ways lead to files of different bytes: what was
// read tells by which way it came.
func splitSource(t *testing.T, size int) (s *source, through, past []byte) {
	t.Helper()
	file, other := randomFile(t, "through", size), randomFile(t, "past", size)
	sources, err := openSources([]layout.File{file}, true)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { closeSources(sources) })
	if s = sources[0]; s.direct == nil {
		t.Skip("the file system of TMPDIR has no O_DIRECT; TestFill is about the way that it has")
	}
	n, err := unix.Open(other.Path, unix.O_RDONLY|unix.O_CLOEXEC|unix.O_DIRECT, 0)
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(unix.Dup3(n, s.direct.Int(), unix.O_CLOEXEC), unix.Close(n)); err != nil {
		t.Fatal(err)
	}
	var memory aligned
	defer memory.free()
	if b, err := memory.bytes(alignBytes); err != nil {
		t.Fatal(err)
	} else if _, err := unix.Pread(s.direct.Int(), b, 0); err != nil {
		t.Skipf("the file system of TMPDIR takes O_DIRECT and doesn't read so: %v; TestDirectRefused is about that", err)
	}
	for path, b := range map[string]*[]byte{file.Path: &through, other.Path: &past} {
		if *b, err = os.ReadFile(path); err != nil {
			t.Fatal(err)
		}
	}
	return s, through, past
}

// Blocks of odd offsets and lengths, up to a last byte that ends no sector, come
// past the page cache where they aren't in it, and through it where they are.
func TestDirect(t *testing.T) {
	const (
		head  = 12_345
		size  = 9_900_001
		block = 2 << 20 // and the last one is longer than directBytes, too
	)
	random := rand.New(rand.NewPCG(1, 2))
	for _, tt := range []struct {
		name   string
		cached func() bool
	}{
		{"past the cache", func() bool { return false }},
		{"through the cache", func() bool { return true }},
		{"some of each", func() bool { return random.IntN(2) == 0 }},
	} {
		t.Run(tt.name, func(t *testing.T) {
			s, through, past := splitSource(t, size)
			var mu sync.Mutex
			want := bytes.Clone(through)
			asked := make(map[int64]int)
			s.cached = func(off int64, n int) bool {
				mu.Lock()
				defer mu.Unlock()
				asked[off] = n
				if tt.cached() {
					return true
				}
				copy(want[off:], past[off:off+int64(n)])
				return false
			}
			bytesToFill := int64(size - head)
			plan := &layout.Plan{Files: []layout.File{s.file}, Table: tableOf([]int64{bytesToFill}), Copies: []layout.Copy{{
				Dst: 0, Src: head, Rows: 1, RowBytes: bytesToFill, SrcStride: bytesToFill, From: tensor.U8, To: tensor.U8,
			}}}
			buf, err := host.Open().Alloc(bytesToFill)
			if err != nil {
				t.Fatal(err)
			}
			defer buf.Close()
			if err := fillFrom(t.Context(), []*source{s}, plan, buf, Options{Workers: 2, BlockBytes: block}); err != nil {
				t.Fatal(err)
			}
			if got := contents(t, buf)[:bytesToFill]; !bytes.Equal(got, want[head:]) {
				t.Error("bytes came by the other way than they had to, or are others than the file's")
			}
			every := map[int64]int{}
			for off := head; off < size; off += block {
				every[int64(off)] = min(block, size-off)
			}
			if diff := cmp.Diff(every, asked); diff != "" {
				t.Errorf("blocks that were asked for in the cache (-want +got):\n%s", diff)
			}
		})
	}
}

// What is small, and what is read in pieces, comes through the cache unasked.
func TestDirectSmall(t *testing.T) {
	s, through, _ := splitSource(t, 2*directBytes)
	s.cached = func(int64, int) bool {
		t.Error("asked for the cache")
		return false
	}
	w := &worker{}
	defer w.aligned.free()
	got := make([]byte, directBytes-1)
	if err := w.readBlock(s, got, 77); err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(got, through[77:][:len(got)]) {
		t.Error("other bytes than the file's")
	}
}

// Whatever is in the page cache, the bytes are the file's.
func TestFillDirect(t *testing.T) {
	file := randomFile(t, "any way", 9_900_001)
	want, err := os.ReadFile(file.Path)
	if err != nil {
		t.Fatal(err)
	}
	for range 3 {
		forget(t, file.Path) // if the kernel likes to
		plan := wholePlan(file)
		buf, err := host.Open().Alloc(plan.Table.Segment)
		if err != nil {
			t.Fatal(err)
		}
		defer buf.Close()
		if err := Fill(t.Context(), plan, buf, Options{Workers: 2, BlockBytes: 2 << 20, Direct: true}); err != nil {
			t.Fatal(err)
		}
		if got := contents(t, buf)[:len(want)]; !bytes.Equal(got, want) {
			t.Error("the segment has other bytes than the file")
		}
	}
}

// forget asks the kernel to drop a file from the page cache.
func forget(t *testing.T, path string) {
	t.Helper()
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if err := f.Sync(); err != nil {
		t.Fatal(err)
	}
	if err := unix.Fadvise(int(f.Fd()), 0, 0, unix.FADV_DONTNEED); err != nil {
		t.Fatal(err)
	}
}

// Pages that are locked are found in the page cache, and of a file that the kernel was
// asked to drop it is said some time that it isn't there: the kernel drops what it
// likes, and may read the byte that was asked for before it answers.
func TestInCache(t *testing.T) {
	const size = 4 * alignBytes // which every user may lock
	file := randomFile(t, "cached", size)
	sources, err := openSources([]layout.File{file}, true)
	if err != nil {
		t.Fatal(err)
	}
	defer closeSources(sources)
	s := sources[0]
	if s.direct == nil {
		t.Skip("the file system of TMPDIR has no O_DIRECT, without which this is never asked")
	}
	locked, err := unix.Mmap(s.fd.Int(), 0, size, unix.PROT_READ, unix.MAP_SHARED)
	if err != nil {
		t.Fatal(err)
	}
	if err := unix.Mlock(locked); err != nil {
		t.Fatal(err)
	}
	for range 100 {
		if !s.inCache(0, size) {
			t.Fatal("locked pages are said not to be in the cache")
		}
	}
	if err := unix.Munmap(locked); err != nil {
		t.Fatal(err)
	}
	var fs unix.Statfs_t
	if err := unix.Fstatfs(s.fd.Int(), &fs); err != nil {
		t.Fatal(err)
	}
	if _, err := unix.Preadv2(s.probe.Int(), [][]byte{make([]byte, 1)}, 0, unix.RWF_NOWAIT); fs.Type == unix.TMPFS_MAGIC || errors.Is(err, unix.EOPNOTSUPP) {
		t.Skip("the file system of TMPDIR keeps all files in memory, or can't say what it keeps there")
	}
	testmain.Eventually(t, "a file isn't in the cache", func() bool {
		forget(t, file.Path)
		return !s.inCache(0, size)
	})
}

// A file system may take O_DIRECT when a file is opened and refuse to read so.
func TestDirectRefused(t *testing.T) {
	file := randomFile(t, "refused", 4<<20)
	sources, err := openSources([]layout.File{file}, true)
	if err != nil {
		t.Fatal(err)
	}
	defer closeSources(sources)
	s := sources[0]
	if s.direct == nil {
		t.Skip("the file system of TMPDIR has no O_DIRECT; TestFill is about the way that it has")
	}
	// A descriptor that can't be read stands for one that doesn't want to be.
	n, err := unix.Open(file.Path, unix.O_WRONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	if err := unix.Dup3(n, s.direct.Int(), unix.O_CLOEXEC); err != nil {
		t.Fatal(err)
	}
	if err := unix.Close(n); err != nil {
		t.Fatal(err)
	}
	s.cached = func(int64, int) bool { return false }
	w := &worker{}
	defer w.aligned.free()
	got := make([]byte, 2<<20)
	if err := w.readBlock(s, got, 77); err != nil {
		t.Fatal(err)
	}
	want, err := os.ReadFile(file.Path)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(got, want[77:][:len(got)]) {
		t.Error("other bytes than the file's")
	}
}

// Where few files may be open, the way past the cache leaves enough for the other.
func TestDirectFewFiles(t *testing.T) {
	var before unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &before); err != nil {
		t.Fatal(err)
	}
	var files []layout.File
	for range 100 {
		files = append(files, randomFile(t, "one of many", 1))
	}
	if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: 200, Max: before.Max}); err != nil {
		t.Skip(err)
	}
	sources, err := openSources(files, true)
	_ = unix.Setrlimit(unix.RLIMIT_NOFILE, &before)
	if err != nil {
		t.Fatal(err)
	}
	closeSources(sources)
}
