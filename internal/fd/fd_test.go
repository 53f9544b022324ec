// SPDX-FileCopyrightText: The wcache authors
// SPDX-License-Identifier: MIT

package fd_test

import (
	"bytes"
	"errors"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/wcache/wcache/internal/fd"
	"github.com/wcache/wcache/internal/testmain"
)

func TestMain(m *testing.M) { testmain.Run(m) }

func null(t *testing.T) *fd.FD {
	t.Helper()
	n, err := unix.Open("/dev/null", unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	f, err := fd.New(n)
	if err != nil {
		t.Fatal(err)
	}
	return f
}

func isOpen(n int) bool {
	_, err := unix.FcntlInt(uintptr(n), unix.F_GETFD, 0)
	return err == nil
}

func TestNewRefusesNone(t *testing.T) {
	if f, err := fd.New(-1); err == nil || f != nil {
		t.Errorf("New(-1) = %v, %v; want an error", f, err)
	}
}

func TestClose(t *testing.T) {
	f := null(t)
	n := f.Int()
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
	if isOpen(n) || f.Int() != -1 {
		t.Errorf("after Close: descriptor open %v, Int %d", isOpen(n), f.Int())
	}
	if err := f.Close(); err != nil {
		t.Errorf("second Close: %v", err)
	}
	if d, err := f.Dup(); !errors.Is(err, unix.EBADF) {
		t.Errorf("Dup after Close = %v, %v; want EBADF", d, err)
	}
}

// Who wants to know of the end of a descriptor is told once, before its number can be
// another's.
func TestOnClose(t *testing.T) {
	f := null(t)
	want := f.Int()
	var got []int
	f.OnClose(func(n int) {
		got = append(got, n)
		if !isOpen(n) {
			t.Error("it is told too late")
		}
	})
	if err := errors.Join(f.Close(), f.Close()); err != nil || len(got) != 1 || got[0] != want {
		t.Errorf("told of %v, want %d once, %v", got, want, err)
	}
	f = null(t)
	f.OnClose(func(int) { t.Error("a descriptor that was handed on is not closed") })
	if err := unix.Close(f.Disown()); err != nil {
		t.Error(err)
	}
}

// Whatever races for a descriptor, one wins: a descriptor that is closed twice
// may by then be somebody else's.
func TestCloseOnce(t *testing.T) {
	for range 100 {
		f := null(t)
		var wg sync.WaitGroup
		got := make([]int, 4)
		for i := range got {
			wg.Go(func() { got[i] = f.Disown() })
		}
		wg.Wait()
		owners := 0
		for _, n := range got {
			if n >= 0 {
				owners++
				_ = unix.Close(n)
			}
		}
		if owners != 1 {
			t.Fatalf("Disown gave the descriptor to %d callers: %v", owners, got)
		}
	}
}

func TestDisown(t *testing.T) {
	f := null(t)
	n := f.Disown()
	if err := f.Close(); err != nil || !isOpen(n) {
		t.Errorf("Close after Disown: %v, descriptor open %v", err, isOpen(n))
	}
	_ = unix.Close(n)
}

func TestDup(t *testing.T) {
	f := null(t)
	defer f.Close()
	d, err := f.Dup()
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	flags, err := unix.FcntlInt(uintptr(d.Int()), unix.F_GETFD, 0)
	if d.Int() == f.Int() || err != nil || flags&unix.FD_CLOEXEC == 0 {
		t.Errorf("Dup of %d = %d, flags %#x, %v; want another, close-on-exec", f.Int(), d.Int(), flags, err)
	}
}

func TestLostIsClosedAndListed(t *testing.T) {
	n := null(t).Int()
	testmain.Eventually(t, "the collector closes a lost descriptor", func() bool {
		runtime.GC()
		return !isOpen(n)
	})
	lost := fd.TakeLost()
	if len(lost) != 1 || !strings.Contains(lost[0], "TestLostIsClosedAndListed") {
		t.Errorf("lost descriptors are %q; want this test's", lost)
	}
}

func TestSealed(t *testing.T) {
	want := bytes.Repeat([]byte("weights"), 10_000)
	f, err := fd.Sealed("wcache-test", want)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	got, err := f.ReadSealed(int64(len(want)))
	if err != nil || !bytes.Equal(got, want) {
		t.Errorf("ReadSealed: %d bytes, %v; want what was written", len(got), err)
	}
	if _, err := unix.Pwrite(f.Int(), []byte("x"), 0); !errors.Is(err, unix.EPERM) {
		t.Errorf("write to a sealed file: %v, want EPERM", err)
	}
	if err := unix.Ftruncate(f.Int(), 1); !errors.Is(err, unix.EPERM) {
		t.Errorf("truncate a sealed file: %v, want EPERM", err)
	}
	if _, err := f.ReadSealed(int64(len(want)) - 1); err == nil {
		t.Error("ReadSealed took a file over the limit")
	}
}

func TestReadSealedRefuses(t *testing.T) {
	open, err := fd.Memory("wcache-test")
	if err != nil {
		t.Fatal(err)
	}
	defer open.Close()
	other := null(t)
	defer other.Close()
	for name, f := range map[string]*fd.FD{"unsealed": open, "not a memory file": other} {
		if b, err := f.ReadSealed(1 << 20); err == nil {
			t.Errorf("%s: read %d bytes, want an error", name, len(b))
		}
	}
}

// Both ends of a connection say who they are, also when they were closed since.
func TestPeer(t *testing.T) {
	l, err := net.Listen("unix", filepath.Join(t.TempDir(), "s"))
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	a, err := net.Dial("unix", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer a.Close()
	b, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	want := &unix.Ucred{Pid: int32(os.Getpid()), Uid: uint32(os.Getuid()), Gid: uint32(os.Getgid())}
	for _, c := range []net.Conn{a, b} {
		got, err := fd.Peer(c.(*net.UnixConn))
		if err != nil || *got != *want {
			t.Errorf("got %+v, %v; want %+v", got, err, want)
		}
	}
	_ = b.Close()
	if got, err := fd.Peer(a.(*net.UnixConn)); err != nil || *got != *want {
		t.Errorf("of an end that is closed: got %+v, %v; want %+v", got, err, want)
	}
	if got, err := fd.Peer(b.(*net.UnixConn)); err == nil {
		t.Errorf("by an end that is closed: got %+v, want an error", got)
	}
}
