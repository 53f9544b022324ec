// SPDX-FileCopyrightText: The wcache authors
// SPDX-License-Identifier: MIT

package hungfs

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"testing/fstest"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/wcache/wcache/internal/testmain"
)

var when = time.Unix(1_700_000_000, 123_456_789)

// many are more entries than one READDIR has room for.
const many = 120

func files() fstest.MapFS {
	m := fstest.MapFS{
		"a/config.json":       {Data: []byte("{}"), Mode: 0o644, ModTime: when},
		"a/model.safetensors": {Data: []byte(strings.Repeat("0123456789", 1_000)), Mode: 0o600, ModTime: when},
	}
	for i := range many {
		m[fmt.Sprintf("b/model-%03d/config.json", i)] = &fstest.MapFile{Data: []byte("{}"), Mode: 0o644}
	}
	return m
}

func mount(t *testing.T) (*FS, string) {
	t.Helper()
	dir := t.TempDir()
	f, err := Mount(dir, files())
	var not *Unavailable
	if errors.As(err, &not) {
		t.Skip("nothing else covers this: ", err)
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := f.Close(); err != nil {
			t.Error(err)
		}
	})
	return f, dir
}

// TestAnswers holds what is seen below the mount to what was given.
func TestAnswers(t *testing.T) {
	_, dir := mount(t)
	if err := fstest.TestFS(os.DirFS(filepath.Join(dir, "a")), "config.json", "model.safetensors"); err != nil {
		t.Error(err)
	}
	list, err := os.ReadDir(filepath.Join(dir, "b"))
	if err != nil || len(list) != many {
		t.Errorf("%d entries of %d are listed: %v", len(list), many, err)
	}
	for name, file := range files() {
		got, err := os.ReadFile(filepath.Join(dir, name))
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(file.Data, got); diff != "" {
			t.Errorf("%s: (-want +got)\n%s", name, diff)
		}
	}
	st, err := os.Stat(filepath.Join(dir, "a/model.safetensors"))
	if err != nil {
		t.Fatal(err)
	}
	want, got := fmt.Sprint(10_000, fs.FileMode(0o600), when.UTC()), fmt.Sprint(st.Size(), st.Mode(), st.ModTime().UTC())
	if got != want {
		t.Errorf("stat gives %s, want %s", got, want)
	}
	if _, err := os.Stat(filepath.Join(dir, "c")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("what isn't there gives %v", err)
	}
	if err := os.WriteFile(filepath.Join(dir, "d"), nil, 0o600); !errors.Is(err, unix.EROFS) {
		t.Errorf("a write gives %v", err)
	}
}

// look reads a path in another goroutine, which ends by itself only if the file
// system answers.
func look(path string) <-chan error {
	c := make(chan error, 1)
	go func() {
		_, err := os.ReadDir(path)
		c <- err
	}()
	return c
}

// TestHang looks at a path that is known to the kernel: it keeps nothing.
func TestHang(t *testing.T) {
	f, dir := mount(t)
	if err := <-look(filepath.Join(dir, "a")); err != nil {
		t.Fatal(err)
	}
	for range 3 {
		f.Hang()
		f.Hang()
		answer := look(filepath.Join(dir, "a"))
		testmain.Eventually(t, "a request waits", f.Waiting)
		select {
		case err := <-answer:
			t.Fatalf("a hung file system has answered: %v", err)
		default:
		}
		f.Resume()
		f.Resume()
		if err := <-answer; err != nil {
			t.Fatal(err)
		}
	}
}

// TestClose ends a file system for which others wait.
func TestClose(t *testing.T) {
	f, dir := mount(t)
	d, err := os.Open(dir) // leads there after the unmount, too
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	f.Hang()
	answer := make(chan error, 1)
	go func() {
		_, err := d.Stat()
		answer <- err
	}()
	testmain.Eventually(t, "a request waits", f.Waiting)
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
	if err := <-answer; !errors.Is(err, unix.ENOTCONN) && !errors.Is(err, unix.ECONNABORTED) {
		t.Errorf("who has waited gets %v", err)
	}
	mounts, err := os.ReadFile("/proc/self/mounts")
	if err != nil {
		t.Fatal(err)
	}
	if strings.Contains(string(mounts), dir) {
		t.Error("it is still mounted")
	}
	if err := f.Close(); err != nil {
		t.Errorf("a second Close gives %v", err)
	}
}

// TestKilled kills a program that waits for the file system, one file of which it
// has open.
func TestKilled(t *testing.T) {
	f, dir := mount(t)
	file, err := os.Open(filepath.Join(dir, "a/config.json"))
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	c := exec.Command("stat", dir)
	c.ExtraFiles = []*os.File{file}
	f.Hang()
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	testmain.Eventually(t, "a request waits", f.Waiting)
	if err := c.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	if err := c.Wait(); err == nil || err.Error() != "signal: killed" {
		t.Errorf("it ended with %v", err)
	}
}

// FuzzAnswer gives the server what only the kernel can send.
func FuzzAnswer(f *testing.F) {
	add := func(opcode uint32, body any) {
		var b []byte
		var err error
		if body != nil {
			if b, err = binary.Append(nil, binary.NativeEndian, body); err != nil {
				f.Fatal(err)
			}
		}
		h, err := binary.Append(nil, binary.NativeEndian, inHeader{Len: uint32(inHeaderSize + len(b)), Opcode: opcode, Unique: 2, Node: rootNode})
		if err != nil {
			f.Fatal(err)
		}
		f.Add(append(h, b...))
	}
	add(opInit, initIn{version, revision + 10})
	add(opLookup, []byte("a\x00"))
	add(opGetattr, nil)
	add(opReaddir, readIn{Size: 4096})
	add(opReaddir, readIn{Offset: 1, Size: 30})
	add(opRead, readIn{Offset: 1 << 63, Size: 4096})
	tree := files()
	f.Fuzz(func(t *testing.T, b []byte) {
		s := &FS{files: tree, names: []string{"."}, nodes: map[string]uint64{".": rootNode}}
		reply, err := s.answer(b)
		if err != nil || reply == nil {
			return
		}
		if n := binary.NativeEndian.Uint32(reply); int(n) != len(reply) {
			t.Errorf("a reply of %d bytes says that it has %d", len(reply), n)
		}
	})
}

// TestUnmounted ends the server when somebody else unmounts it.
func TestUnmounted(t *testing.T) {
	f, dir := mount(t)
	if err := unix.Unmount(dir, 0); err != nil {
		t.Fatal(err)
	}
	<-f.ended
	if f.err != nil {
		t.Error(f.err)
	}
	if err := f.Close(); !errors.Is(err, unix.EINVAL) {
		t.Errorf("Close says %v, want that nothing is mounted there", err)
	}
}

func TestMountFails(t *testing.T) {
	_, err := Mount(filepath.Join(t.TempDir(), "none"), files())
	var not *Unavailable
	if errors.As(err, &not) {
		t.Skip("nothing else covers this: ", err)
	}
	if !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a mount on nothing gives %v", err)
	}
}

// TestSizes holds the structures to what the kernel's header says of them.
func TestSizes(t *testing.T) {
	want := map[string]int{
		"inHeader": inHeaderSize, "outHeader": outHeaderSize, "initOut": 64, "attr": 88, "attrOut": 104, "entryOut": 128,
		"openOut": 16, "readIn": 40, "direntHeader": 24, "statfsOut": 80,
	}
	got := map[string]int{
		"inHeader": binary.Size(inHeader{}), "outHeader": binary.Size(outHeader{}), "initOut": binary.Size(initOut{}),
		"attr": binary.Size(attr{}), "attrOut": binary.Size(attrOut{}), "entryOut": binary.Size(entryOut{}),
		"openOut": binary.Size(openOut{}), "readIn": binary.Size(readIn{}), "direntHeader": binary.Size(direntHeader{}),
		"statfsOut": binary.Size(statfsOut{}),
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("sizes (-want +got)\n%s", diff)
	}
}
