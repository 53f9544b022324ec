// SPDX-FileCopyrightText: The wcache authors
// SPDX-License-Identifier: MIT

package socket

import (
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/wcache/wcache/internal/testmain"
)

// claimed is a socket with its claim, which end with the test.
func claimed(t *testing.T, path string) (*net.UnixListener, *Claim) {
	t.Helper()
	l, c, err := Listen(path)
	do(t, err)
	t.Cleanup(func() {
		_ = l.Close()
		_ = c.Close()
	})
	return l, c
}

// reaches checks that whoever connects is accepted by a listener.
func reaches(t *testing.T, path string, l *net.UnixListener) {
	t.Helper()
	c, err := net.Dial("unix", path)
	do(t, err, l.SetDeadline(time.Now().Add(20*time.Second)))
	s, err := l.Accept()
	do(t, err, c.Close(), s.Close())
}

// What a daemon made is made again when it is removed, and the lock with it: T3.
func TestClaimMadeAnew(t *testing.T) {
	for name, spoil := range map[string]func(t *testing.T, path string){
		"nothing":     func(*testing.T, string) {},
		"the socket":  func(t *testing.T, path string) { do(t, os.Remove(path)) },
		"the lock":    func(t *testing.T, path string) { do(t, os.Remove(path+".lock")) },
		"both":        func(t *testing.T, path string) { do(t, os.Remove(path), os.Remove(path+".lock")) },
		"the folder":  func(t *testing.T, path string) { do(t, os.RemoveAll(filepath.Dir(path))) },
		"a stale one": func(t *testing.T, path string) { do(t, os.Remove(path)); stale(t, path) },
		"another lock": func(t *testing.T, path string) {
			do(t, os.Remove(path+".lock"), os.WriteFile(path+".lock", nil, 0o600))
		},
		"another folder": func(t *testing.T, path string) {
			do(t, os.RemoveAll(filepath.Dir(path)), os.Mkdir(filepath.Dir(path), 0o700))
		},
		"it was moved":    func(t *testing.T, path string) { do(t, os.Rename(path, path+".away")) },
		"the folder, too": func(t *testing.T, path string) { do(t, os.Rename(filepath.Dir(path), filepath.Dir(path)+".away")) },
	} {
		t.Run(name, func(t *testing.T) {
			dir := filepath.Join(private(t), "d")
			path := filepath.Join(dir, "s.sock")
			l, c := claimed(t, path)
			spoil(t, path)
			made, err := c.Check()
			do(t, err)
			if made != nil {
				defer made.Close()
				l = made
			}
			reaches(t, path, l)
			// Nobody else comes beside it.
			if _, _, err := Listen(path); err == nil || !strings.HasPrefix(err.Error(), "lock socket") {
				t.Errorf("a second one: %v", err)
			}
			if made, err := c.Check(); made != nil || err != nil {
				t.Errorf("the next check: %v, %v", made, err)
			}
			do(t, l.Close(), c.Close())
			if _, err := os.Lstat(path); !errors.Is(err, os.ErrNotExist) {
				t.Errorf("its socket is left: %v", err)
			}
		})
	}
}

// stale leaves a socket that nobody serves.
func stale(t *testing.T, path string) {
	t.Helper()
	l := listenPlain(t, path)
	l.SetUnlinkOnClose(false)
	do(t, l.Close())
}

// What can't be mended is said, again and again, and nothing of others is touched. Once
// it is well, all is as it was.
func TestClaimSays(t *testing.T) {
	self := fmt.Sprintf("process %d (socket.test)", os.Getpid())
	for _, tt := range []struct {
		name  string
		spoil func(t *testing.T, path string) (mend func())
		want  string // with DIR for the directory
	}{
		{"the folder is open", func(t *testing.T, path string) func() {
			do(t, os.Chmod(filepath.Dir(path), 0o755))
			return func() { do(t, os.Chmod(filepath.Dir(path), 0o700)) }
		}, `keep socket "DIR/s.sock": check directory DIR: mode 0755 lets others in: chmod 700 it`},
		{"a file is there", func(t *testing.T, path string) func() {
			do(t, os.Remove(path), os.WriteFile(path, nil, 0o600))
			return func() { do(t, os.Remove(path)) }
		}, `keep socket "DIR/s.sock": there is a file that isn't a socket: remove it`},
		{"another process's socket is there", func(t *testing.T, path string) func() {
			do(t, os.Remove(path))
			other := listenPlain(t, path)
			return func() { do(t, other.Close()) }
		}, `keep socket "DIR/s.sock": ` + self + ` serves it, without its lock: choose another path, or end it, which frees what it holds`},
		{"another process has the lock", func(t *testing.T, path string) func() {
			do(t, os.Remove(path), os.Remove(path+".lock"))
			other, err := takeLock(path)
			do(t, err)
			return func() { do(t, other.Close()) }
		}, `lock socket "DIR/s.sock": ` + self + ` serves it already: choose another path, or end it, which frees what it holds`},
	} {
		t.Run(tt.name, func(t *testing.T) {
			dir := filepath.Join(private(t), "d")
			path := filepath.Join(dir, "s.sock")
			l, c := claimed(t, path)
			mend := tt.spoil(t, path)
			before := testmain.Tree(t, dir)
			for range 2 {
				if made, err := c.Check(); made != nil || err == nil || err.Error() != strings.ReplaceAll(tt.want, "DIR", dir) {
					t.Errorf("got  %v\nwant %s", err, strings.ReplaceAll(tt.want, "DIR", dir))
				}
			}
			if diff := cmp.Diff(before, testmain.Tree(t, dir)); diff != "" {
				t.Errorf("it changed:\n%s", diff)
			}
			mend()
			made, err := c.Check()
			do(t, err)
			if made != nil {
				defer made.Close()
				l = made
			}
			reaches(t, path, l)
		})
	}
}

// Of a socket that a service manager made only the lock is the daemon's.
func TestClaimOfAManager(t *testing.T) {
	dir := filepath.Join(private(t), "d")
	do(t, os.Mkdir(dir, 0o700))
	path := filepath.Join(dir, "s.sock")
	listenPlain(t, path)
	c := NewClaim(path)
	defer func() { do(t, c.Close()) }()
	says := func(what, want string) {
		t.Helper()
		made, err := c.Check()
		got := ""
		if err != nil {
			got = err.Error()
		}
		if made != nil || got != want {
			t.Errorf("%s: got %q, %v, want %q", what, got, made, want)
		}
	}
	says("all is there", "")
	do(t, os.Remove(path+".lock"))
	says("the lock is gone", "")
	if _, err := takeLock(path); err == nil {
		t.Error("another one got it")
	}
	do(t, os.Rename(path, path+".away"))
	says("the socket is gone", "socket "+path+" was removed, so engines can't reach the daemon")
	stale(t, path)
	says("another one is there", "socket "+path+" was replaced by another socket, which engines reach instead")
	do(t, os.Rename(path+".away", path))
	says("it is back", "")
	do(t, os.RemoveAll(dir))
	says("the folder is gone", "socket "+path+" was removed, so engines can't reach the daemon")
}

// Another process has the lock from the start: engines may reach that one.
func TestClaimOfAnotherLock(t *testing.T) {
	path := filepath.Join(private(t), "s.sock")
	listenPlain(t, path)
	p := another(t, "lock", path+".lock")
	c := NewClaim(path)
	defer func() { do(t, c.Close()) }()
	want := fmt.Sprintf("lock socket %q: process %d (exe) serves it already: choose another path, or end it, which frees what it holds", path, p.Process.Pid)
	if _, err := c.Check(); err == nil || err.Error() != want {
		t.Errorf("got  %v\nwant %s", err, want)
	}
	kill(p)
	if _, err := c.Check(); err != nil {
		t.Errorf("it has ended, and: %v", err)
	}
}

// A daemon removes only what is its own: C11.
func TestClaimEnds(t *testing.T) {
	path := filepath.Join(private(t), "s.sock")
	first, c := claimed(t, path)
	do(t, os.Remove(path), os.Remove(path+".lock"))
	// A second one, which doesn't see the first as it is in the same process.
	second, d := claimed(t, path)
	do(t, first.Close(), c.Close())
	reaches(t, path, second)
	do(t, second.Close(), d.Close())
	if _, err := os.Lstat(path); err == nil {
		t.Error("its own socket is left")
	}
}

// A daemon whose socket and lock were removed still counts: no second one starts on its path, T3.
func TestListenBesideAnOrphan(t *testing.T) {
	path := filepath.Join(private(t), "s.sock")
	p := another(t, "listen", path)
	do(t, os.Remove(path))
	_, _, err := Listen(path)
	want := fmt.Sprintf("listen on %q: process %d (exe) listens on it, and its file was removed: wait until it makes it again, or end it, which frees what it holds", path, p.Process.Pid)
	if err == nil || err.Error() != want {
		t.Fatalf("got  %v\nwant %s", err, want)
	}
	kill(p)
	claimed(t, path)
}

// systemd-tmpfiles leaves the files of a claim alone however old they are: T4.
func TestClaimIsNotAged(t *testing.T) {
	tmpfiles, err := exec.LookPath("systemd-tmpfiles")
	if err != nil {
		t.Skip("no systemd-tmpfiles here; TestClaimMadeAnew is about locks that were removed")
	}
	root := private(t)
	for _, name := range []string{"claimed", "left"} {
		dir := filepath.Join(root, "tmp", name)
		l, c, err := Listen(filepath.Join(dir, "s.sock"))
		do(t, err)
		// What a process that was killed has left is as old, and nobody's.
		if name == "left" {
			l.SetUnlinkOnClose(false)
			c.bound = false
			do(t, l.Close(), c.Close())
		} else {
			defer func() { do(t, l.Close(), c.Close()) }()
		}
		old := time.Now().Add(-40 * 24 * time.Hour)
		for _, file := range []string{"s.sock", "s.sock.lock", ""} {
			do(t, os.Chtimes(filepath.Join(dir, file), old, old))
		}
	}
	rule := filepath.Join(root, "test.conf")
	do(t, os.WriteFile(rule, fmt.Appendf(nil, "d %s/tmp - - - m:10d\n", root), 0o600))
	if out, err := exec.Command(tmpfiles, "--clean", rule).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	want := "claimed drwx------\nclaimed/s.sock Srw-------\nclaimed/s.sock.lock -rw-------\nleft drwx------\n"
	if diff := cmp.Diff(want, testmain.Tree(t, filepath.Join(root, "tmp"))); diff != "" {
		t.Errorf("files -want +got:\n%s", diff)
	}
}
