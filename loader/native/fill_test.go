// SPDX-FileCopyrightText: The wcache authors
// SPDX-License-Identifier: MIT

package native

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/wcache/wcache/device"
	"github.com/wcache/wcache/device/devicetest"
	"github.com/wcache/wcache/device/host"
	"github.com/wcache/wcache/internal/fd"
	"github.com/wcache/wcache/layout"
	"github.com/wcache/wcache/stamp"
	"github.com/wcache/wcache/tensor"
)

// randomFile writes a file of random bytes and describes it.
func randomFile(t *testing.T, name string, size int) layout.File {
	t.Helper()
	b := make([]byte, size)
	_, _ = rand.NewChaCha8([32]byte{byte(len(name))}).Read(b)
	path := filepath.Join(t.TempDir(), name)
	if err := os.WriteFile(path, b, 0o600); err != nil {
		t.Fatal(err)
	}
	return fileOf(t, path)
}

// contents seals a buffer and reads it.
func contents(t *testing.T, b device.Buffer) []byte {
	t.Helper()
	s, err := b.Seal()
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	out := make([]byte, s.Bytes)
	if n, err := unix.Pread(s.Pieces[0].Int(), out, 0); n != len(out) || err != nil {
		t.Fatalf("read segment: %d of %d bytes, %v", n, len(out), err)
	}
	return out
}

func TestFill(t *testing.T) {
	files := []layout.File{randomFile(t, "a", 4_000_001), randomFile(t, "bb", 70_000), randomFile(t, "ccc", 2_000_000)}
	for _, test := range []struct{ seed, workers, block int }{
		{1, 0, 0}, {2, 1, 100_000}, {3, 4, 1}, {4, 16, 1 << 20},
	} {
		for _, staged := range []bool{false, true} {
			t.Run(fmt.Sprintf("%+v staged=%v", test, staged), func(t *testing.T) {
				plan := randomPlan(rand.New(rand.NewPCG(uint64(test.seed), 0)), files)
				d := device.Device(host.Open())
				if staged {
					d = devicetest.Staged(d)
				}
				buf, err := d.Alloc(plan.Table.Segment)
				if err != nil {
					t.Fatal(err)
				}
				defer buf.Close()
				var done atomic.Int64
				err = Fill(t.Context(), plan, buf, Options{Workers: test.workers, BlockBytes: test.block, Progress: func(n int64) { done.Add(n) }})
				if err != nil {
					t.Fatal(err)
				}
				if done.Load() != plan.Table.Bytes() {
					t.Errorf("progress says %d bytes of %d", done.Load(), plan.Table.Bytes())
				}
				got := contents(t, buf)
				want := make([]byte, len(got))
				carryOut(t, plan, want)
				for i, s := range plan.Table.Storages {
					if !bytes.Equal(got[s.Offset:s.Offset+s.Bytes], want[s.Offset:s.Offset+s.Bytes]) {
						t.Errorf("storage %d of %d bytes differs", i, s.Bytes)
					}
				}
			})
		}
	}
}

// wholePlan copies each file into a storage of its own.
func wholePlan(files ...layout.File) *layout.Plan {
	p := &layout.Plan{Files: files}
	var sizes []int64
	for _, f := range files {
		sizes = append(sizes, f.Stamp.Size)
	}
	p.Table = tableOf(sizes)
	for i, f := range files {
		p.Copies = append(p.Copies, layout.Copy{
			Dst: p.Table.Storages[i].Offset, File: i, Rows: 1, RowBytes: f.Stamp.Size, SrcStride: f.Stamp.Size,
			From: tensor.U8, To: tensor.U8,
		})
	}
	return p
}

// hooked calls block with the running number of each block of a buffer.
type hooked struct {
	device.Buffer
	n     atomic.Int64
	block func(n int64) error
}

func (h *hooked) Writer() (device.Writer, error) {
	w, err := h.Buffer.Writer()
	return &hookedWriter{w, h}, err
}

type hookedWriter struct {
	device.Writer
	h *hooked
}

func (w *hookedWriter) Block(off int64, n int) ([]byte, error) {
	if err := w.h.block(w.h.n.Add(1)); err != nil {
		return nil, err
	}
	return w.Writer.Block(off, n)
}

// fill runs a plan on the host with a hook; it must fail.
func fill(t *testing.T, ctx context.Context, plan *layout.Plan, hook func(n int64) error) error {
	t.Helper()
	buf, err := host.Open().Alloc(plan.Table.Segment)
	if err != nil {
		t.Fatal(err)
	}
	defer buf.Close()
	err = Fill(ctx, plan, &hooked{Buffer: buf, block: hook}, Options{Workers: 2, BlockBytes: minBlock})
	if err == nil {
		t.Fatal("Fill did not notice")
	}
	return err
}

func none(int64) error { return nil }

// Cases W2 and W10: a file that is missing, is another one, or changes in mid-load.
func TestFillBadFiles(t *testing.T) {
	t.Run("missing", func(t *testing.T) {
		f := randomFile(t, "a", 100_000)
		if err := os.Remove(f.Path); err != nil {
			t.Fatal(err)
		}
		err := fill(t, t.Context(), wholePlan(f), none)
		var bad *Unreadable
		if !errors.As(err, &bad) || bad.Path != f.Path || !errors.Is(err, unix.ENOENT) {
			t.Errorf("error %v, want Unreadable with ENOENT", err)
		}
	})
	t.Run("unreadable in mid-load", func(t *testing.T) {
		// A directory opens and has a size, but can't be read.
		dir := fileOf(t, t.TempDir())
		if dir.Stamp.Size == 0 {
			t.Skip("directories are empty here; TestReadError covers it")
		}
		err := fill(t, t.Context(), wholePlan(randomFile(t, "a", 100_000), dir), none)
		var bad *Unreadable
		if !errors.As(err, &bad) || bad.Path != dir.Path || bad.Offset < 0 {
			t.Errorf("error %v, want Unreadable of the directory", err)
		}
	})

	changes := []struct {
		name   string
		change func(*testing.T, layout.File) error
	}{
		{"truncated", func(_ *testing.T, f layout.File) error { return os.Truncate(f.Path, 1000) }},
		{"longer", func(_ *testing.T, f layout.File) error { return os.Truncate(f.Path, f.Stamp.Size+1) }},
		{"rewritten", func(_ *testing.T, f layout.File) error {
			return os.WriteFile(f.Path, make([]byte, f.Stamp.Size), 0o600)
		}},
		{"touched", func(_ *testing.T, f layout.File) error {
			return os.Chtimes(f.Path, time.Time{}, time.Unix(0, f.Stamp.MTime+1000))
		}},
	}
	for _, c := range changes {
		t.Run(c.name+" in mid-load", func(t *testing.T) {
			f := randomFile(t, "a", 1_000_000)
			err := fill(t, t.Context(), wholePlan(f), func(n int64) error {
				if n == 3 {
					return c.change(t, f)
				}
				return nil
			})
			var bad *stamp.Changed
			if !errors.As(err, &bad) || bad.Path != f.Path {
				t.Errorf("error %v, want Changed", err)
			}
		})
	}
	changes = append(changes, struct {
		name   string
		change func(*testing.T, layout.File) error
	}{"replaced", func(t *testing.T, f layout.File) error {
		other := randomFile(t, "bb", int(f.Stamp.Size))
		if err := os.Chtimes(other.Path, time.Time{}, time.Unix(0, f.Stamp.MTime)); err != nil {
			return err
		}
		return os.Rename(other.Path, f.Path)
	}})
	for _, c := range changes {
		t.Run(c.name+" before", func(t *testing.T) {
			f := randomFile(t, "a", 1_000_000)
			if err := c.change(t, f); err != nil {
				t.Fatal(err)
			}
			err := fill(t, t.Context(), wholePlan(f), func(int64) error {
				t.Error("it was read all the same")
				return nil
			})
			var bad *stamp.Changed
			if !errors.As(err, &bad) || bad.Path != f.Path {
				t.Errorf("error %v, want Changed", err)
			}
		})
	}
}

// A disk error, for which /proc/self/mem stands: its first page can't be read.
func TestReadError(t *testing.T) {
	open := func(path string) *source {
		n, err := unix.Open(path, unix.O_RDONLY|unix.O_CLOEXEC, 0)
		if err != nil {
			t.Fatal(err)
		}
		f, err := fd.New(n)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = f.Close() })
		return &source{fd: f, file: fileOf(t, path)}
	}
	tests := []struct {
		path string
		off  int64
		want error
	}{
		{"/proc/self/mem", 4096, unix.EIO},
		{randomFile(t, "a", 1000).Path, 999, io.ErrUnexpectedEOF},
	}
	for _, test := range tests {
		err := open(test.path).read(make([]byte, 2), test.off)
		var bad *Unreadable
		if !errors.As(err, &bad) || !errors.Is(err, test.want) {
			t.Errorf("read %q: %v, want Unreadable with %v", test.path, err, test.want)
			continue
		}
		if bad.Path != test.path || bad.Offset < test.off {
			t.Errorf("read %q at %d: error names %q at %d", test.path, test.off, bad.Path, bad.Offset)
		}
	}
}

func TestFillStops(t *testing.T) {
	f := randomFile(t, "a", 4_000_000)
	t.Run("canceled", func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		var blocks atomic.Int64
		canceled := make(chan struct{})
		err := fill(t, ctx, wholePlan(f), func(n int64) error {
			blocks.Add(1)
			switch {
			case n == 5:
				cancel()
				close(canceled)
			case n > 5: // which the other worker may have begun before
				<-canceled
			}
			return nil
		})
		if !errors.Is(err, context.Canceled) || blocks.Load() > 6 {
			t.Errorf("error %v after %d blocks, want Canceled after 5, or 6 if one was in flight", err, blocks.Load())
		}
	})
	t.Run("device fails", func(t *testing.T) {
		broken := errors.New("fell off the bus")
		err := fill(t, t.Context(), wholePlan(f), func(n int64) error {
			if n == 5 {
				return broken
			}
			return nil
		})
		if !errors.Is(err, broken) {
			t.Errorf("error %v, want the device's", err)
		}
	})
}
