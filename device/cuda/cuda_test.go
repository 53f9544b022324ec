// SPDX-FileCopyrightText: The wcache authors
// SPDX-License-Identifier: MIT

package cuda_test

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/wcache/wcache/device"
	"github.com/wcache/wcache/device/cuda"
	"github.com/wcache/wcache/device/devicetest"
	"github.com/wcache/wcache/internal/fd"
)

func TestDevice(t *testing.T) {
	library, uuid := build(t), newGPU(t, 0)
	for _, o := range []cuda.Options{
		{Library: library},
		{Library: library, BlockBytes: device.MinBlock, Ring: 3},
	} {
		t.Run(fmt.Sprintf("ring %d", o.Ring), func(t *testing.T) {
			open1 := func() (device.Device, error) { return cuda.Open(uuid, o) }
			devicetest.RunViews(t, open1)
			devicetest.Run(t, open1,
				func(t *testing.T, s device.Segment) []byte { return read(t, open(t, library, uuid), s) })
		})
	}
}

// A segment is there, in another process, when its maker's device is closed, and
// its memory is free when the last descriptor is.
func TestOtherProcess(t *testing.T) {
	library, uuid := build(t), newGPU(t, 0)
	d := open(t, library, uuid)
	all, err := d.Free()
	if err != nil {
		t.Fatal(err)
	}
	b, err := d.Alloc(3 << 20)
	if err != nil {
		t.Fatal(err)
	}
	want := make([]byte, b.Bytes())
	w, err := b.Writer()
	if err != nil {
		t.Fatal(err)
	}
	for off := int64(0); off < b.Bytes(); off += 1 << 20 {
		mem, err := w.Block(off, 1<<20)
		if err != nil {
			t.Fatal(err)
		}
		for i := range mem {
			mem[i] = byte(i*7) ^ byte(off>>18)
		}
		copy(want[off:], mem)
		if err := w.Commit(); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	s, err := b.Seal()
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	if flags, err := unix.FcntlInt(uintptr(s.Pieces[0].Int()), unix.F_GETFD, 0); err != nil || flags&unix.FD_CLOEXEC == 0 {
		t.Errorf("flags of the descriptor %#x, %v; want close-on-exec", flags, err)
	}
	if free, err := d.Free(); err != nil || free != all-s.Bytes {
		t.Errorf("with the segment %d bytes are free, %v; want %d", free, err, all-s.Bytes)
	}

	second, err := s.Pieces[0].Dup()
	if err != nil {
		t.Fatal(err)
	}
	file := os.NewFile(uintptr(second.Disown()), "segment")
	cmd := child(t, "consumer", library, uuid, fmt.Sprintf("CUDA_TEST_BYTES=%d", s.Bytes))
	cmd.ExtraFiles = []*os.File{file}
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	got, err := cmd.Output()
	_ = file.Close()
	if err != nil || !bytes.Equal(got, want) {
		t.Errorf("consumer read %d bytes, equal %v, %v\n%s", len(got), bytes.Equal(got, want), err, stderr.Bytes())
	}
	_ = s.Close()
	if free, err := d.Free(); err != nil || free != all {
		t.Errorf("without the segment %d bytes are free, %v; want %d", free, err, all)
	}
}

// Pieces of one size are mapped as one range, in their order; others are refused, and
// nothing of them stays mapped.
func TestPieces(t *testing.T) {
	library, uuid := build(t), newGPU(t, 0)
	d := open(t, library, uuid)
	filled := func(bytes int64, with byte) device.Segment {
		b, err := d.Alloc(bytes)
		if err != nil {
			t.Fatal(err)
		}
		w, err := b.Writer()
		if err != nil {
			t.Fatal(err)
		}
		for off := int64(0); off < b.Bytes(); off += 1 << 20 {
			mem, err := w.Block(off, 1<<20)
			if err != nil {
				t.Fatal(err)
			}
			copy(mem, repeated(with, len(mem)))
			if err := w.Commit(); err != nil {
				t.Fatal(err)
			}
		}
		if err := w.Close(); err != nil {
			t.Fatal(err)
		}
		s, err := b.Seal()
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = s.Close() })
		return s
	}
	first, second, larger := filled(2<<20, 1), filled(2<<20, 2), filled(4<<20, 3)
	s := device.Segment{Pieces: []*fd.FD{second.Pieces[0], first.Pieces[0]}, Bytes: first.Bytes + second.Bytes}
	want := append(repeated(2, int(second.Bytes)), repeated(1, int(first.Bytes))...)
	if got := read(t, d, s); !bytes.Equal(got, want) {
		t.Errorf("the range begins with %x and ends with %x", got[:4], got[len(got)-4:])
	}
	before, err := d.Free()
	if err != nil {
		t.Fatal(err)
	}
	s = device.Segment{Pieces: []*fd.FD{larger.Pieces[0], first.Pieces[0]}, Bytes: larger.Bytes + first.Bytes}
	if m, err := d.Map(s); err == nil {
		t.Error("pieces of two sizes are mapped", m.Close())
	}
	if m, err := d.Map(device.Segment{Bytes: 4 << 20}); err == nil {
		t.Error("no piece is mapped", m.Close())
	}
	if after, err := d.Free(); err != nil || after != before {
		t.Errorf("%d bytes are free, %v; before %d", after, err, before)
	}
}

// repeated are n bytes of one value.
func repeated(value byte, n int) []byte { return bytes.Repeat([]byte{value}, n) }

func TestMapping(t *testing.T) {
	library, uuid := build(t), newGPU(t, 0)
	d := open(t, library, uuid)
	b, err := d.Alloc(1)
	if err != nil {
		t.Fatal(err)
	}
	s, err := b.Seal()
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	m, err := d.Map(s)
	if err != nil {
		t.Fatal(err)
	}
	for _, x := range []struct {
		off int64
		n   int
	}{{-1, 1}, {s.Bytes, 1}, {s.Bytes - 1, 2}, {1<<63 - 1, 1}} {
		if n, err := m.ReadAt(make([]byte, x.n), x.off); err == nil {
			t.Errorf("ReadAt(%d bytes, %d) = %d, want an error", x.n, x.off, n)
		}
	}
	for range 2 {
		if err := m.Close(); err != nil {
			t.Error(err)
		}
	}
	if n, err := m.ReadAt(make([]byte, 1), 0); err == nil {
		t.Errorf("ReadAt after Close = %d, want an error", n)
	}
}

// Cases D1 and D2: whatever the order and choice of GPUs, a name is never
// another GPU's.
func TestNames(t *testing.T) {
	const (
		first  = "GPU-11111111-0000-4000-8000-000000000001"
		second = "GPU-12222222-0000-4000-8000-000000000002"
		slice  = "MIG-33333333-0000-4000-8000-000000000003"
	)
	library := build(t)
	t.Setenv("FAKE_CUDA_GPUS", slice+"@3b,"+second+"@2a,"+first+"@1a") // CUDA: fastest first
	none := func(name string) string {
		return fmt.Sprintf("open GPU %q: it names none or several of %s, %s, %s", name, first, second, slice)
	}
	const hidden = ` hides GPUs, so that a number could name another one; use the uuid`
	for _, tt := range []struct{ name, visible, order, want string }{
		{first, "", "", first},
		{second, "", "", second},
		{slice, "", "", slice},
		{strings.ToLower(second), "", "", second},
		{"GPU-12", "", "", second},
		{"mig-3", "", "", slice},
		{"0", "", "", first},
		{"1", "", "", second},
		{"1", "", "PCI_BUS_ID", second},
		{"2", "", "", slice},
		{first, "2,1", "", first},
		{first, "1,2", "PCI_BUS_ID", "open GPU \"" + first + "\": it names none or several of " + second + ", " + slice},
		{second, second, "", second},
		{second, "GPU-12", "", second},
		{"0", "1", "", `open GPU "0": CUDA_VISIBLE_DEVICES=1` + hidden},
		{"3", "", "", none("3")},
		{"-1", "", "", none("-1")},
		{"", "", "", none("")},
		{"GPU-", "", "", none("GPU-")},
		{"GPU-1", "", "", none("GPU-1")},
		{first + "0", "", "", none(first + "0")},
	} {
		if t.Setenv("CUDA_VISIBLE_DEVICES", tt.visible); tt.visible == "" {
			os.Unsetenv("CUDA_VISIBLE_DEVICES")
		}
		t.Setenv("CUDA_DEVICE_ORDER", tt.order)
		d, err := cuda.Open(tt.name, cuda.Options{Library: library})
		var got string
		if err == nil {
			got, err = d.UUID(), d.Close()
		}
		if err != nil {
			got = err.Error()
			if !errors.As(err, new(*cuda.NotFound)) {
				t.Errorf("Open(%q): %v is no NotFound", tt.name, err)
			}
		}
		if got != tt.want {
			t.Errorf("Open(%q) with %q visible in order %q\n got %s\nwant %s", tt.name, tt.visible, tt.order, got, tt.want)
		}
	}
	if got := cuda.Env(slice); len(got) != 1 || got[0] != "CUDA_VISIBLE_DEVICES="+slice {
		t.Errorf("Env = %q", got)
	}
}

// Case D4: what is asked is compared with what is free, and whoever is slower
// than another tenant gets the same error.
func TestNoMemory(t *testing.T) {
	const gib = 1 << 30
	library, uuid := build(t), newGPU(t, 0)
	t.Setenv("FAKE_CUDA_TOTAL", fmt.Sprint(16*gib))
	d := open(t, library, uuid)
	b, err := d.Alloc(10 * gib)
	if err != nil {
		t.Fatal(err)
	}
	_, err = d.Alloc(8 * gib)
	var short *device.NoMemory
	if !errors.As(err, &short) || *short != (device.NoMemory{Want: 8 * gib, Free: 6 * gib}) {
		t.Errorf("Alloc: %v", err)
	}
	if err := errors.Join(b.Close(), d.Close()); err != nil {
		t.Fatal(err)
	}
	t.Setenv("FAKE_CUDA_FAIL", "cuMemCreate:1:2")
	d = open(t, library, uuid)
	if _, err := d.Alloc(8 * gib); !errors.As(err, &short) || *short != (device.NoMemory{Want: 8 * gib, Free: 16 * gib}) {
		t.Errorf("Alloc against a faster one: %v", err)
	}
	if err := d.Close(); err != nil {
		t.Fatal(err)
	}
	t.Setenv("FAKE_CUDA_FAIL", "cuDevicePrimaryCtxRetain:1:2")
	if d, err := cuda.Open(uuid, cuda.Options{Library: library}); !errors.As(err, &short) {
		t.Errorf("Open without room for a context = %v, %v; want NoMemory", d, err)
	}
}

func TestClosed(t *testing.T) {
	d := open(t, build(t), newGPU(t, 0))
	if err := d.Close(); err != nil {
		t.Fatal(err)
	}
	if n, err := d.Free(); err == nil {
		t.Errorf("Free of a closed device = %d", n)
	}
	if b, err := d.Alloc(1); err == nil {
		t.Errorf("Alloc of a closed device = %v", b)
	}
}

func TestBadOptions(t *testing.T) {
	for _, o := range []cuda.Options{{BlockBytes: 4096}, {Ring: 1}, {BlockBytes: -1}} {
		if d, err := cuda.Open("0", o); err == nil || errors.As(err, new(*cuda.NoDriver)) {
			t.Errorf("Open with %+v = %v, %v", o, d, err)
		}
	}
}
