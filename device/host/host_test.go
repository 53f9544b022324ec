// SPDX-FileCopyrightText: The wcache authors
// SPDX-License-Identifier: MIT

package host_test

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/wcache/wcache/device"
	"github.com/wcache/wcache/device/devicetest"
	"github.com/wcache/wcache/device/host"
	"github.com/wcache/wcache/internal/fd"
	"github.com/wcache/wcache/internal/testmain"
)

func TestMain(m *testing.M) { testmain.Run(m) }

func TestDevice(t *testing.T) {
	open := func() (device.Device, error) { return host.Open(), nil }
	devicetest.Run(t, open, read)
	devicetest.RunViews(t, open)
}

func TestStaged(t *testing.T) {
	open := func() (device.Device, error) { return devicetest.Staged(host.Open()), nil }
	devicetest.Run(t, open, read)
	devicetest.RunViews(t, open)
}

// A memory file that could become shorter under its reader is no segment.
func TestViewRefuses(t *testing.T) {
	f, err := fd.Memory("open")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if err := unix.Ftruncate(f.Int(), 4096); err != nil {
		t.Fatal(err)
	}
	if v, err := host.Open().View(device.Whole(f, 4096)); err == nil {
		t.Errorf("got %v, want an error", v)
	}
	if err := f.Seal(); err != nil {
		t.Fatal(err)
	}
	if v, err := host.Open().View(device.Whole(f, 8192)); err == nil {
		t.Errorf("of another size: got %v, want an error", v)
	}
}

// read maps a segment as an engine does.
func read(t *testing.T, s device.Segment) []byte {
	t.Helper()
	mem, err := unix.Mmap(s.Pieces[0].Int(), 0, int(s.Bytes), unix.PROT_READ, unix.MAP_PRIVATE)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Munmap(mem)
	return bytes.Clone(mem)
}

// An engine opens /proc/PID/fd/N with the user's full rights; it must not be able
// to change what others have mapped.
func TestSegmentIsReadOnly(t *testing.T) {
	b, err := host.Open().Alloc(1 << 16)
	if err != nil {
		t.Fatal(err)
	}
	s, err := b.Seal()
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	n := s.Pieces[0].Int()
	if _, err := unix.Pwrite(n, []byte("x"), 0); !errors.Is(err, unix.EPERM) {
		t.Errorf("write: %v, want EPERM", err)
	}
	for _, size := range []int64{0, 1 << 20} {
		if err := unix.Ftruncate(n, size); !errors.Is(err, unix.EPERM) {
			t.Errorf("truncate to %d: %v, want EPERM", size, err)
		}
	}
	if _, err := unix.Mmap(n, 0, 1<<16, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED); !errors.Is(err, unix.EPERM) {
		t.Errorf("map writable: %v, want EPERM", err)
	}
	if err := unix.Fallocate(n, unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, 0, 4096); !errors.Is(err, unix.EPERM) {
		t.Errorf("punch a hole: %v, want EPERM", err)
	}
	if _, err := unix.FcntlInt(uintptr(n), unix.F_ADD_SEALS, 0); !errors.Is(err, unix.EPERM) {
		t.Errorf("change seals: %v, want EPERM", err)
	}
}

// The pages must be there when Alloc returns, for a later shortage is a SIGBUS.
func TestAllocReserves(t *testing.T) {
	b, err := host.Open().Alloc(10<<20 + 1)
	if err != nil {
		t.Fatal(err)
	}
	defer b.Close()
	s, err := b.Seal()
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	var st unix.Stat_t
	if err := unix.Fstat(s.Pieces[0].Int(), &st); err != nil {
		t.Fatal(err)
	}
	if want := int64(10<<20 + os.Getpagesize()); st.Size != want || st.Blocks*512 != want {
		t.Errorf("segment of %d bytes has %d in memory, want %d of both", st.Size, st.Blocks*512, want)
	}
}

func TestNothingStaysMapped(t *testing.T) {
	for range 4 {
		b, err := host.Open().Alloc(1 << 20)
		if err != nil {
			t.Fatal(err)
		}
		if err := b.Close(); err != nil {
			t.Fatal(err)
		}
		b, err = host.Open().Alloc(1 << 20)
		if err != nil {
			t.Fatal(err)
		}
		s, err := b.Seal()
		if err != nil {
			t.Fatal(err)
		}
		_ = s.Close()
	}
	maps, err := os.ReadFile("/proc/self/maps")
	if err != nil {
		t.Fatal(err)
	}
	if n := bytes.Count(maps, []byte("wcache-segment")); n != 0 {
		t.Errorf("%d segments are mapped still", n)
	}
}

// A refusal by the kernel is the same error as one by the look at the free
// memory. The limit is one of the address space, since no other can be had
// without privileges, and in a child, since it would starve Go's own heap.
func TestAllocRefusedByKernel(t *testing.T) {
	if os.Getenv("HOST_TEST_CHILD") == "" {
		cmd := exec.Command("/proc/self/exe", "-test.run=^TestAllocRefusedByKernel$")
		cmd.Env = append(os.Environ(), "HOST_TEST_CHILD=1", "GORACE=atexit_sleep_ms=0")
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Errorf("child: %v\n%s", err, out)
		}
		return
	}
	used, err := addressSpace()
	if err != nil {
		t.Fatal(err)
	}
	limit := unix.Rlimit{Cur: used + 1<<30, Max: unix.RLIM_INFINITY}
	if err := unix.Setrlimit(unix.RLIMIT_AS, &limit); err != nil {
		t.Fatal(err)
	}
	d := host.Open()
	free, err := d.Free()
	if err != nil {
		t.Fatal(err)
	}
	if free < 2<<30 {
		t.Skipf("%d bytes are free; TestDevice covers a refusal for that reason", free)
	}
	b, err := d.Alloc(2 << 30)
	var short *device.NoMemory
	if !errors.As(err, &short) || short.Want != 2<<30 {
		t.Errorf("Alloc over the limit = %v, %v; want NoMemory", b, err)
	}
}

func addressSpace() (uint64, error) {
	b, err := os.ReadFile("/proc/self/statm") // pages, see proc_pid_statm(5)
	if err != nil {
		return 0, err
	}
	var pages uint64
	_, err = fmt.Sscan(string(b), &pages)
	return pages * uint64(os.Getpagesize()), err
}

func TestCheck(t *testing.T) {
	sealed, err := fd.Sealed("segment", make([]byte, 4096))
	if err != nil {
		t.Fatal(err)
	}
	defer sealed.Close()
	open, err := fd.Memory("unsealed")
	if err != nil {
		t.Fatal(err)
	}
	defer open.Close()
	for _, tt := range []struct {
		name string
		seg  device.Segment
		want string
	}{
		{"finished", device.Whole(sealed, 4096), ""},
		{"another size", device.Whole(sealed, 8192), "check segment: 4096 bytes with seals 0xf, want 8192 with 0xf"},
		{"unsealed", device.Whole(open, 0), "check segment: 0 bytes with seals 0x0, want 0 with 0xf"},
	} {
		got := ""
		if err := host.Check(tt.seg); err != nil {
			got = err.Error()
		}
		if got != tt.want {
			t.Errorf("%s: got %q, want %q", tt.name, got, tt.want)
		}
	}
}
