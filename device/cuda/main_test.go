// SPDX-FileCopyrightText: The wcache authors
// SPDX-License-Identifier: MIT

package cuda_test

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"testing"

	"github.com/wcache/wcache/device"
	"github.com/wcache/wcache/device/cuda"
	"github.com/wcache/wcache/device/cuda/fake"
	"github.com/wcache/wcache/internal/fd"
	"github.com/wcache/wcache/internal/testmain"
)

// TestMain is also the program of other processes: a consumer of a segment, and a
// loader that comes to harm.
func TestMain(m *testing.M) {
	var err error
	switch os.Getenv("CUDA_TEST_CHILD") {
	case "consumer":
		err = consume()
	case "keeper":
		err = keep()
	case "loader":
		err = load(os.Getenv("CUDA_TEST_LIBRARY"), os.Getenv("CUDA_TEST_GPU"))
	default:
		testmain.Run(m)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(0)
}

func needCompiler(t *testing.T) {
	t.Helper()
	if _, err := exec.LookPath("cc"); err != nil {
		t.Skip("no C compiler to build the fake driver with; TestReal and BenchmarkFill are about a real one")
	}
}

// build makes a fake driver and returns its path.
func build(t *testing.T, without ...string) string {
	t.Helper()
	needCompiler(t)
	path, err := fake.Build(t.TempDir(), without...)
	if err != nil {
		t.Fatal(err)
	}
	return path
}

// another makes a second library of one, with nothing in common in a process.
func another(t *testing.T, library string) string {
	t.Helper()
	b, err := os.ReadFile(library)
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "libcuda.so.1")
	if err := os.WriteFile(path, b, 0o700); err != nil {
		t.Fatal(err)
	}
	return path
}

// newGPU gives the fake, until the test ends, a GPU of a name of its own. Others
// of its tests then use none of its memory.
func newGPU(t *testing.T, number int) string {
	uuid := fmt.Sprintf("GPU-%08x-0000-4000-8000-%012x", os.Getpid(), number)
	t.Setenv("FAKE_CUDA_GPUS", uuid+"@01")
	return uuid
}

func open(t *testing.T, library, name string) *cuda.Device {
	t.Helper()
	d, err := cuda.Open(name, cuda.Options{Library: library, BlockBytes: device.MinBlock})
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

// read reads a segment in this process.
func read(t *testing.T, d *cuda.Device, s device.Segment) []byte {
	t.Helper()
	m, err := d.Map(s)
	if err != nil {
		t.Fatal(err)
	}
	b := make([]byte, s.Bytes)
	if _, err := m.ReadAt(b, 0); err != nil {
		t.Error(err)
	}
	if err := m.Close(); err != nil {
		t.Error(err)
	}
	return b
}

// child is this program in a role.
func child(t *testing.T, role, library, uuid string, env ...string) *exec.Cmd {
	cmd := exec.Command("/proc/self/exe")
	cmd.Env = append(os.Environ(), "GORACE=atexit_sleep_ms=0",
		"CUDA_TEST_CHILD="+role, "CUDA_TEST_LIBRARY="+library, "CUDA_TEST_GPU="+uuid)
	cmd.Env = append(cmd.Env, env...)
	t.Cleanup(func() {
		if cmd.Process != nil && cmd.ProcessState == nil {
			_ = cmd.Process.Kill()
			_ = cmd.Wait()
		}
	})
	return cmd
}

// mapper is a device in the eyes of a consumer.
type mapper interface {
	device.Device
	Map(device.Segment) (*cuda.Mapping, error)
}

// consume writes the segment that is descriptor 3 to standard output.
func consume() error {
	f, err := fd.New(3)
	if err != nil {
		return err
	}
	bytes, err := strconv.ParseInt(os.Getenv("CUDA_TEST_BYTES"), 10, 64)
	if err != nil {
		return err
	}
	open := func(name string, o cuda.Options) (mapper, error) { return cuda.Open(name, o) }
	if kind := os.Getenv("CUDA_TEST_KEPT"); kind != "" {
		open = func(name string, o cuda.Options) (mapper, error) { return openKind(kind, name, o) }
	}
	d, err := open(os.Getenv("CUDA_TEST_GPU"), cuda.Options{Library: os.Getenv("CUDA_TEST_LIBRARY")})
	if err != nil {
		return err
	}
	m, err := d.Map(device.Whole(f, bytes))
	if err != nil {
		return err
	}
	b := make([]byte, bytes)
	if _, err := m.ReadAt(b, 0); err != nil {
		return err
	}
	if _, err := os.Stdout.Write(b); err != nil {
		return err
	}
	return errors.Join(m.Close(), d.Close())
}

// load makes every call of the driver that there is to make, most of them more
// than once. It undoes what it did even if it fails.
func load(library, name string) (err error) {
	d, err := cuda.Open(name, cuda.Options{Library: library, BlockBytes: device.MinBlock})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, d.Close()) }()
	b, err := d.Alloc(8 << 20)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, b.Close()) }()
	for range 2 {
		if err := write(b); err != nil {
			return err
		}
	}
	s, err := b.Seal()
	if err != nil {
		return err
	}
	defer s.Close()
	m, err := d.Map(s)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, m.Close()) }()
	if _, err := m.ReadAt(make([]byte, 1), 0); err != nil {
		return err
	}
	return readBack(m)
}

func readBack(m *cuda.Mapping) (err error) {
	r, err := m.Reader()
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, r.Close()) }()
	for i := range int64(8) {
		if err := r.Fetch(i<<20, 1<<20); err != nil {
			return err
		}
		if _, err := r.Bytes(); err != nil {
			return err
		}
	}
	return nil
}

func write(b device.Buffer) (err error) {
	w, err := b.Writer()
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, w.Close()) }()
	for i := range int64(8) {
		if _, err := w.Block(i<<20, 1<<20); err != nil {
			return err
		}
		if err := w.Commit(); err != nil {
			return err
		}
	}
	return w.Flush()
}
