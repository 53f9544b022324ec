// SPDX-FileCopyrightText: The wcache authors
// SPDX-License-Identifier: MIT

package native

import (
	"bytes"
	"os"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/wcache/wcache/device/host"
	"github.com/wcache/wcache/layout"
	"github.com/wcache/wcache/tensor"
)

// forget drops a file from the page cache.
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

// Blocks of odd offsets and lengths, up to a last byte that ends no sector, come
// past the page cache and leave nothing in it; what is in it is taken from there.
func TestDirect(t *testing.T) {
	const head = 12_345
	file := randomFile(t, "direct", 9_000_001)
	want, err := os.ReadFile(file.Path)
	if err != nil {
		t.Fatal(err)
	}
	want = want[head:]
	n := file.Stamp.Size - head
	plan := &layout.Plan{Files: []layout.File{file}, Table: tableOf([]int64{n}), Copies: []layout.Copy{{
		Dst: 0, Src: head, Rows: 1, RowBytes: n, SrcStride: n, From: tensor.U8, To: tensor.U8,
	}}}
	sources, err := openSources(plan.Files, true)
	if err != nil {
		t.Fatal(err)
	}
	defer closeSources(sources)
	s := sources[0]
	forget(t, file.Path)
	if s.direct == nil || s.cached(head, 2<<20) {
		t.Skip("the file system of TMPDIR has no O_DIRECT or can't say what is cached; TestFill is about the way that it has")
	}
	for _, step := range []struct {
		name   string
		direct bool
		cached bool // afterwards
	}{
		{"past the cache", true, false},
		{"by the cache", false, true},
		{"from the cache", true, true},
	} {
		t.Run(step.name, func(t *testing.T) {
			d := host.Open()
			buf, err := d.Alloc(n)
			if err != nil {
				t.Fatal(err)
			}
			defer buf.Close()
			if err := Fill(t.Context(), plan, buf, Options{Workers: 2, BlockBytes: 2 << 20, Direct: step.direct}); err != nil {
				t.Fatal(err)
			}
			if got := contents(t, buf)[:n]; !bytes.Equal(got, want) {
				t.Error("the segment has other bytes than the file")
			}
			if got := s.cached(head+4<<20, 2<<20); got != step.cached {
				t.Errorf("the file is in the page cache: %v, want %v", got, step.cached)
			}
		})
	}
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
	forget(t, file.Path)
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
