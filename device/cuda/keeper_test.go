// SPDX-FileCopyrightText: The wcache authors
// SPDX-License-Identifier: MIT

package cuda_test

import (
	"bytes"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/wcache/wcache/device"
	"github.com/wcache/wcache/device/cuda"
	"github.com/wcache/wcache/device/cuda/fake"
	"github.com/wcache/wcache/device/devicetest"
	"github.com/wcache/wcache/internal/fd"
	"github.com/wcache/wcache/internal/testmain"
)

// kind is a vendor's GPU, of a fake driver.
type kind struct {
	name    string // "cuda" or "hip"
	library string
	gpu     string // as the open function wants it
}

// kinds are those that are kept; each test has a GPU of its own.
func kinds(t *testing.T) []kind {
	return []kind{{"cuda", build(t), newGPU(t, 0)}, {"hip", buildHIP(t), "0000:01:00.0"}}
}

func buildHIP(t *testing.T, without ...string) string {
	t.Helper()
	needCompiler(t)
	path, err := fake.BuildHIP(t.TempDir(), without...)
	if err != nil {
		t.Fatal(err)
	}
	return path
}

// openKind opens a GPU as in a role of TestMain.
func openKind(kind, name string, o cuda.Options) (*cuda.Keeper, error) {
	if kind == "hip" {
		return cuda.OpenHIP(name, o)
	}
	return cuda.OpenKeeper(name, o)
}

func TestKeeper(t *testing.T) {
	for _, k := range kinds(t) {
		t.Run(k.name, func(t *testing.T) {
			devicetest.Run(t,
				func() (device.Device, error) {
					return openKind(k.name, k.gpu, cuda.Options{Library: k.library, BlockBytes: device.MinBlock})
				},
				func(t *testing.T, s device.Segment) []byte { return readKept(t, k, s) })
			t.Setenv("FAKE_CUDA_NO_VMM", "1") // which is what some have a keeper for
			wantFree(t, openKeeper(t, k), 16<<30)
		})
	}
}

func openKeeper(t *testing.T, k kind) *cuda.Keeper {
	t.Helper()
	d, err := openKind(k.name, k.gpu, cuda.Options{Library: k.library, BlockBytes: device.MinBlock})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := d.Close(); err != nil {
			t.Error(err)
		}
	})
	return d
}

// wantFree waits until so many bytes are free: what keeps memory hears of its
// release a little later.
func wantFree(t *testing.T, d device.Device, want int64) {
	t.Helper()
	testmain.Eventually(t, fmt.Sprint(want, " bytes are free"), func() bool {
		free, err := d.Free()
		if err != nil {
			t.Fatal(err)
		}
		return free == want
	})
}

// readKept reads a segment of this process in another one.
func readKept(t *testing.T, k kind, s device.Segment) []byte {
	t.Helper()
	dup, err := s.Pieces[0].Dup()
	if err != nil {
		t.Fatal(err)
	}
	file := os.NewFile(uintptr(dup.Disown()), "segment")
	defer file.Close()
	cmd := child(t, "consumer", k.library, k.gpu, "CUDA_TEST_KEPT="+k.name, fmt.Sprintf("CUDA_TEST_BYTES=%d", s.Bytes))
	cmd.ExtraFiles, cmd.Stderr = []*os.File{file}, os.Stderr
	b, err := cmd.Output()
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// keep fills a segment, hands its descriptor over on descriptor 3, and keeps it.
func keep() error {
	d, err := openKind(os.Getenv("CUDA_TEST_KEPT"), os.Getenv("CUDA_TEST_GPU"), cuda.Options{Library: os.Getenv("CUDA_TEST_LIBRARY"), BlockBytes: device.MinBlock})
	if err != nil {
		return err
	}
	b, err := d.Alloc(2 << 20)
	if err != nil {
		return err
	}
	w, err := b.Writer()
	if err != nil {
		return err
	}
	for off := range int64(2) {
		mem, err := w.Block(off<<20, 1<<20)
		if err != nil {
			return err
		}
		copy(mem, bytes.Repeat([]byte("weights!"), len(mem)/8))
		if err := w.Commit(); err != nil {
			return err
		}
	}
	if err := w.Close(); err != nil {
		return err
	}
	s, err := b.Seal()
	if err != nil {
		return err
	}
	if err := unix.Sendmsg(3, []byte("segment"), unix.UnixRights(s.Pieces[0].Int()), nil, 0); err != nil {
		return err
	}
	_ = s.Close()
	d.Wait()
	return d.Close()
}

// startKeeper starts a process that keeps a segment, and takes that.
func startKeeper(t *testing.T, k kind, env ...string) (*exec.Cmd, device.Segment) {
	t.Helper()
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	theirs, ours := os.NewFile(uintptr(pair[0]), "theirs"), os.NewFile(uintptr(pair[1]), "ours")
	defer ours.Close()
	cmd := child(t, "keeper", k.library, k.gpu, append(env, "CUDA_TEST_KEPT="+k.name)...)
	cmd.ExtraFiles, cmd.Stderr = []*os.File{theirs}, os.Stderr
	err = cmd.Start()
	_ = theirs.Close()
	if err != nil {
		t.Fatal(err)
	}
	c, err := net.FileConn(ours)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	oob := make([]byte, unix.CmsgSpace(4))
	_, n, _, _, err := c.(*net.UnixConn).ReadMsgUnix(make([]byte, 10), oob)
	if err != nil {
		t.Fatal(err)
	}
	messages, err := unix.ParseSocketControlMessage(oob[:n])
	if err != nil || len(messages) != 1 {
		t.Fatalf("%d messages, %v", len(messages), err)
	}
	numbers, err := unix.ParseUnixRights(&messages[0])
	if err != nil {
		t.Fatal(err)
	}
	f, err := fd.New(numbers[0])
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = f.Close() })
	return cmd, device.Whole(f, 2<<20)
}

// What a process keeps is there for others until nobody holds its descriptor,
// which ends the process, or until the process ends, which the descriptor tells.
func TestKeeperEnds(t *testing.T) {
	for _, k := range kinds(t) {
		keeperEnds(t, k)
	}
}

func keeperEnds(t *testing.T, k kind) {
	d := openKeeper(t, k)
	for _, tt := range []struct {
		name string
		kill bool
		env  string
	}{
		{"released", false, ""},
		{"killed", true, ""},
		{"released, and its driver hangs", false, "FAKE_CUDA_FAIL=cuMemFree_v2:1:hang,hipFree:1:hang"},
	} {
		t.Run(k.name+", "+tt.name, func(t *testing.T) {
			cmd, s := startKeeper(t, k, tt.env)
			m, err := d.Map(s)
			if err != nil {
				t.Fatal(err)
			}
			got := make([]byte, s.Bytes)
			if _, err := m.ReadAt(got, 0); err != nil || !bytes.Equal(got, bytes.Repeat([]byte("weights!"), len(got)/8)) {
				t.Errorf("other bytes than the keeper wrote, %v", err)
			}
			if !bytes.Equal(devicetest.ReadBack(t, d, s), got) {
				t.Error("a view shows other bytes")
			}
			if err := errors.Join(m.Close(), s.Gone()); err != nil {
				t.Error(err)
			}
			if !tt.kill {
				second, err := s.Pieces[0].Dup()
				if err != nil {
					t.Fatal(err)
				}
				_ = s.Close()
				if err := device.Whole(second, 0).Gone(); err != nil {
					t.Errorf("with a descriptor left: %v", err)
				}
				_ = second.Close()
				if err := cmd.Wait(); err != nil {
					t.Errorf("keeper: %v", err)
				}
				wantFree(t, d, 16<<30)
				return
			}
			_, _ = cmd.Process.Kill(), cmd.Wait()
			if err := s.Gone(); err == nil {
				t.Error("the segment is not gone")
			}
			var e *cuda.Error
			if m, err := d.Map(s); !errors.As(err, &e) || e.Result != 400 {
				t.Errorf("map what is gone: %v, %v; want an invalid handle", m, err)
			}
			wantFree(t, d, 16<<30)
		})
	}
}

// Each call of a keeper's own fails once, and leaves nothing.
func TestKeeperFaults(t *testing.T) {
	for _, k := range kinds(t) {
		calls := map[string][]string{
			"cuda": {"cuDevicePrimaryCtxRetain:2", "cuMemAlloc_v2:1", "cuIpcGetMemHandle:1", "cuIpcOpenMemHandle_v2:1"},
			"hip":  {"hipDevicePrimaryCtxRetain:2", "hipMalloc:1", "hipIpcGetMemHandle:1", "hipIpcOpenMemHandle:1"},
		}[k.name]
		for _, call := range calls {
			t.Run(call, func(t *testing.T) { keeperFails(t, k, call) })
		}
		t.Setenv("FAKE_CUDA_FAIL", strings.Replace(calls[1], ":1", ":1:2", 1))
		var short *device.NoMemory
		if _, err := openKeeper(t, k).Alloc(1); !errors.As(err, &short) {
			t.Errorf("Alloc against a faster one: %v, want NoMemory", err)
		}
	}
}

func keeperFails(t *testing.T, k kind, call string) {
	_, s := startKeeper(t, k, "FAKE_CUDA_FAIL=")
	t.Setenv("FAKE_CUDA_FAIL", call+":700")
	d := openKeeper(t, k)
	name, _, _ := strings.Cut(call, ":")
	refused(t, keepAndMap(d, s), name)
	wantFree(t, d, 16<<30-s.Bytes)
}

// keepAndMap makes a segment, and maps one of another process.
func keepAndMap(d *cuda.Keeper, other device.Segment) error {
	b, err := d.Alloc(1)
	if err != nil {
		return err
	}
	s, err := b.Seal()
	if err != nil {
		return errors.Join(err, b.Close())
	}
	_ = s.Close()
	m, err := d.Map(other)
	if err != nil {
		return err
	}
	return m.Close()
}

// A segment of the one kind is none of the other.
func TestOtherKind(t *testing.T) {
	library, uuid := build(t), newGPU(t, 0)
	d, k := open(t, library, uuid), openKeeper(t, kind{"cuda", library, uuid})
	for _, x := range []struct {
		from device.Device
		to   mapper
		want string
	}{
		{d, k, "the segment has no keeper"},
		{k, d, "cuMemImportFromShareableHandle: CUDA_ERROR_INVALID_VALUE"},
		{k, k, "cuIpcOpenMemHandle: CUDA_ERROR_INVALID_CONTEXT"}, // of this process
	} {
		b, err := x.from.Alloc(1)
		if err != nil {
			t.Fatal(err)
		}
		s, err := b.Seal()
		if err != nil {
			t.Fatal(err)
		}
		if _, err := x.to.Map(s); err == nil || !strings.Contains(err.Error(), x.want) {
			t.Errorf("map a segment of %T by %T: %v, want %s", x.from, x.to, err, x.want)
		}
		_ = s.Close()
	}
	wantFree(t, d, 16<<30)
}
