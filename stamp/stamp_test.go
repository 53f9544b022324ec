// SPDX-FileCopyrightText: The wcache authors
// SPDX-License-Identifier: MIT

package stamp

import (
	"errors"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/wcache/wcache/internal/testmain"
)

func TestMain(m *testing.M) { testmain.Run(m) }

func of1(t *testing.T, path string) Stamp {
	t.Helper()
	i, err := Of(path)
	if err != nil {
		t.Fatal(err)
	}
	return i.Stamp
}

// settled waits until every later write to a file shows.
func settled(t *testing.T, path string) Stamp {
	t.Helper()
	s := of1(t, path)
	time.Sleep(s.Unsettled(time.Now()))
	return s
}

func write(t *testing.T, path, text string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

// Ways in which a file gets other contents with the same size and modification time.
func TestOtherContents(t *testing.T) {
	then := time.Now().Add(-time.Hour)
	for _, c := range []struct {
		name   string
		change func(t *testing.T, path string)
		want   string
	}{
		{"written in place, time put back", func(t *testing.T, path string) {
			write(t, path, "22222")
			if err := os.Chtimes(path, then, then); err != nil {
				t.Fatal(err)
			}
		}, "was written, or its attributes were changed"},
		{"cp -a over it", func(t *testing.T, path string) {
			other := path + ".v2"
			write(t, other, "22222")
			if err := os.Chtimes(other, then, then); err != nil {
				t.Fatal(err)
			}
			if out, err := exec.Command("cp", "-a", other, path).CombinedOutput(); err != nil {
				t.Fatalf("%v: %s", err, out)
			}
		}, "was written, or its attributes were changed"},
		{"written through a mapping, time put back", func(t *testing.T, path string) {
			f, err := os.OpenFile(path, os.O_RDWR, 0)
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = f.Close() }()
			b, err := unix.Mmap(int(f.Fd()), 0, 5, unix.PROT_WRITE|unix.PROT_READ, unix.MAP_SHARED)
			if err != nil {
				t.Fatal(err)
			}
			copy(b, "22222")
			if err := unix.Munmap(b); err != nil {
				t.Fatal(err)
			}
			if err := os.Chtimes(path, then, then); err != nil {
				t.Fatal(err)
			}
		}, "was written, or its attributes were changed"},
		{"only touched", func(t *testing.T, path string) {
			if err := os.Chmod(path, 0o640); err != nil {
				t.Fatal(err)
			}
		}, "was written, or its attributes were changed"},
	} {
		t.Run(c.name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "f")
			write(t, path, "11111")
			if err := os.Chtimes(path, then, then); err != nil {
				t.Fatal(err)
			}
			was := settled(t, path)
			c.change(t, path)
			is := of1(t, path)
			if got := was.Difference(is); got != c.want {
				t.Errorf("got %q, want %q", got, c.want)
			}
			if !was.MayBeEqual(is) || !was.SameFile(is) {
				t.Errorf("%+v and %+v: one file, whose contents may be equal", was, is)
			}
		})
	}
}

func TestDifference(t *testing.T) {
	was := Stamp{Size: 5, MTime: 1, CTime: 2, Inode: 3, Device: 4, Mount: 5}
	with := func(change func(*Stamp)) Stamp { s := was; change(&s); return s }
	for _, c := range []struct {
		was, is Stamp
		want    string
		equal   bool // the contents may be
	}{
		{was, was, "", true},
		{Stamp{}, Stamp{}, "", false},
		{was, Stamp{}, "is gone", false},
		{Stamp{}, was, "is new", false},
		{was, with(func(s *Stamp) { s.Size = 6 }), "had 5 bytes, has 6", false},
		{was, with(func(s *Stamp) { s.Inode = 6 }), "was replaced", true},
		{was, with(func(s *Stamp) { s.Device = 6 }), "was replaced", true},
		{was, with(func(s *Stamp) { s.Mount = 6 }), "is on another mount", true},
		{was, with(func(s *Stamp) { s.MTime = 6 }), "was written", false},
		{was, with(func(s *Stamp) { s.CTime = 6 }), "was written, or its attributes were changed", true},
	} {
		if got := c.was.Difference(c.is); got != c.want {
			t.Errorf("%+v: got %q, want %q", c.is, got, c.want)
		}
		if got := c.was.MayBeEqual(c.is); got != c.equal {
			t.Errorf("%+v: contents may be equal: %v, want %v", c.is, got, c.equal)
		}
	}
}

func TestUnsettled(t *testing.T) {
	now := time.Unix(1_700_000_000, 500_000_000)
	at := func(age time.Duration) int64 { return now.Add(-age).UnixNano() }
	for _, c := range []struct {
		name         string
		ctime, mtime int64
		want         time.Duration
	}{
		{"written now", at(0), at(0), tick + 1},
		{"a little ago", at(5 * time.Millisecond), at(time.Hour), tick - 5*time.Millisecond + 1},
		{"a tick ago", at(tick), at(time.Hour), 1},
		{"longer ago", at(tick + 1), at(0), 0},
		{"a server's clock a little ahead", at(-tick), at(time.Hour), 2*tick + 1},
		{"a clock that is far ahead", at(-tick - 1), at(time.Hour), 0},
		{"whole seconds: there may be no finer time", at(500 * time.Millisecond), at(500 * time.Millisecond), second - 500*time.Millisecond + 1},
		{"whole seconds long ago", at(2500 * time.Millisecond), at(2500 * time.Millisecond), 0},
		{"a file system without change times", 0, at(time.Millisecond), tick - time.Millisecond + 1},
	} {
		s := Stamp{Size: 1, CTime: c.ctime, MTime: c.mtime}
		if got := s.Unsettled(now); got != c.want {
			t.Errorf("%s: got %v, want %v", c.name, got, c.want)
		}
	}
	if got := (Stamp{}).Unsettled(now); got != 0 {
		t.Errorf("a missing file is unsettled for %v", got)
	}
}

func TestOf(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "f")
	write(t, path, "12345")
	if err := os.Symlink(path, path+".link"); err != nil {
		t.Fatal(err)
	}
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = f.Close() }()
	byFD, err := OfFD(int(f.Fd()))
	if err != nil {
		t.Fatal(err)
	}
	byPath, err := Of(path + ".link")
	if err != nil {
		t.Fatal(err)
	}
	info, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	if byFD != byPath || byPath.Size != info.Size() || byPath.MTime != info.ModTime().UnixNano() || byPath.Mode != 0o600 || int(byPath.UID) != os.Getuid() {
		t.Errorf("got %+v and %+v; os.Stat says %+v", byFD, byPath, info.Sys())
	}
	if byPath.CTime == 0 || byPath.Inode == 0 {
		t.Errorf("got %+v", byPath)
	}
	if i, err := Of(dir); err != nil || !i.Mode.IsDir() {
		t.Errorf("directory: got %+v, %v", i, err)
	}
	if _, err := Of(path + ".none"); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("got %v", err)
	}
}

func TestAt(t *testing.T) {
	dir := t.TempDir()
	write(t, dir+"/file", "12345")
	if err := os.Symlink("file", dir+"/link"); err != nil {
		t.Fatal(err)
	}
	f, err := os.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = f.Close() }()
	if got, err := At(int(f.Fd()), "file"); err != nil || got.Stamp != of1(t, dir+"/file") {
		t.Errorf("got %+v and %v", got, err)
	}
	if got, err := At(int(f.Fd()), "link"); err != nil || got.Mode.Type() != fs.ModeSymlink || got.Size != 4 {
		t.Errorf("got %+v and %v", got, err)
	}
	if _, err := At(int(f.Fd()), "none"); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("got %v", err)
	}
}

func TestText(t *testing.T) {
	for _, s := range []Stamp{
		{},
		{Size: 191976, MTime: 1764419467000005000, CTime: 1764419467000006001, Inode: 1<<64 - 1, Device: unix.Mkdev(254, 1<<20-1), Mount: 1 << 40},
		{Size: 1, MTime: -1, CTime: 1764419467e9},
	} {
		text, err := s.MarshalText()
		if err != nil {
			t.Fatal(err)
		}
		var got Stamp
		if err := got.UnmarshalText(text); err != nil || got != s {
			t.Errorf("%s: got %+v and %v, want %+v", text, got, err, s)
		}
	}
}

func FuzzText(f *testing.F) {
	f.Add([]byte("missing"))
	f.Add([]byte("size=5 mtime=2026-11-29T12:31:07Z ctime=2026-11-29T12:31:07.5Z inode=42 device=254:0 mount=83"))
	f.Fuzz(func(t *testing.T, b []byte) {
		var s Stamp
		if s.UnmarshalText(b) != nil {
			return
		}
		text, err := s.MarshalText()
		if err != nil {
			t.Fatal(err)
		}
		var again Stamp
		if err := again.UnmarshalText(text); err != nil || again != s {
			t.Errorf("%q became %q: %+v, %v", b, text, again, err)
		}
	})
}
