// SPDX-FileCopyrightText: The wcache authors
// SPDX-License-Identifier: MIT

package socket

import (
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/wcache/wcache/internal/testmain"
)

// Whatever another user could have put in the way is refused, with the path and
// what to do.
func TestListenRefuses(t *testing.T) {
	tests := []struct {
		name string
		// plant makes what is in the way below dir and gives the socket's path.
		plant func(t *testing.T, dir string) string
		want  string // with DIR for dir
	}{
		{"directory with group bits", func(t *testing.T, dir string) string {
			do(t, os.Mkdir(dir+"/d", 0o700), os.Chmod(dir+"/d", 0o710))
			return dir + "/d/s.sock"
		}, `listen on "DIR/d/s.sock": check directory DIR/d: mode 0710 lets others in: chmod 700 it`},
		{"directory with world bits", func(t *testing.T, dir string) string {
			do(t, os.Mkdir(dir+"/d", 0o700), os.Chmod(dir+"/d", 0o701))
			return dir + "/d/s.sock"
		}, `listen on "DIR/d/s.sock": check directory DIR/d: mode 0701 lets others in: chmod 700 it`},
		{"symlinked directory", func(t *testing.T, dir string) string {
			do(t, os.Mkdir(dir+"/real", 0o700), os.Symlink("real", dir+"/d"))
			return dir + "/d/s.sock"
		}, `listen on "DIR/d/s.sock": check directory DIR/d: is a link, which engines refuse: remove it, or name the directory that it leads to`},
		{"symlink to nothing for a directory", func(t *testing.T, dir string) string {
			do(t, os.Symlink("none", dir+"/d"))
			return dir + "/d/s.sock"
		}, `listen on "DIR/d/s.sock": check directory DIR/d: is a link, which engines refuse: remove it, or name the directory that it leads to`},
		{"file for a directory", func(t *testing.T, dir string) string {
			do(t, os.WriteFile(dir+"/d", nil, 0o600))
			return dir + "/d/s.sock"
		}, `listen on "DIR/d/s.sock": check directory DIR/d: is not a directory: choose another`},
		{"another's directory", func(t *testing.T, dir string) string {
			asRoot(t)
			do(t, os.Mkdir(dir+"/d", 0o700), os.Chown(dir+"/d", 65534, 65534))
			return dir + "/d/s.sock"
		}, `listen on "DIR/d/s.sock": check directory DIR/d: belongs to uid 65534, not to uid 0: choose another`},
		{"file for a socket", func(t *testing.T, dir string) string {
			do(t, os.WriteFile(dir+"/s.sock", nil, 0o600))
			return dir + "/s.sock"
		}, `listen on "DIR/s.sock": there is a file that isn't a socket: remove it`},
		{"symlinked socket", func(t *testing.T, dir string) string {
			listenPlain(t, dir+"/real.sock")
			do(t, os.Symlink("real.sock", dir+"/s.sock"))
			return dir + "/s.sock"
		}, `listen on "DIR/s.sock": there is a link, which engines refuse: remove it`},
		{"another's socket", func(t *testing.T, dir string) string {
			asRoot(t)
			listenPlain(t, dir+"/s.sock")
			do(t, os.Chown(dir+"/s.sock", 65534, 65534))
			return dir + "/s.sock"
		}, `listen on "DIR/s.sock": there is a socket of uid 65534, not of uid 0: remove it`},
		{"live socket of one who takes no lock", func(t *testing.T, dir string) string {
			listenPlain(t, dir+"/s.sock")
			return dir + "/s.sock"
		}, fmt.Sprintf(`listen on "DIR/s.sock": process %d (socket.test) serves it, without its lock: choose another path, or end it, which frees what it holds`, os.Getpid())},
		{"symlinked lock", func(t *testing.T, dir string) string {
			do(t, os.WriteFile(dir+"/other", nil, 0o600), os.Symlink("other", dir+"/s.sock.lock"))
			return dir + "/s.sock"
		}, `lock socket "DIR/s.sock": DIR/s.sock.lock is a link: remove it`},
		{"long path", func(_ *testing.T, dir string) string {
			return dir + "/" + strings.Repeat("x", 200) + ".sock"
		}, "listen on \"DIR/" + strings.Repeat("x", 200) + ".sock\": a socket's path has at most 107 bytes, this one has LEN: choose a shorter directory"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			dir := private(t)
			path := tt.plant(t, dir)
			before := testmain.Tree(t, dir)
			l, lock, err := Listen(path)
			if err == nil {
				_, _ = l.Close(), lock.Close()
				t.Fatal("it listens")
			}
			want := strings.ReplaceAll(strings.ReplaceAll(tt.want, "DIR", dir), "LEN", fmt.Sprint(len(path)))
			if err.Error() != want {
				t.Errorf("got  %s\nwant %s", err, want)
			}
			if after := strings.ReplaceAll(testmain.Tree(t, dir), "s.sock.lock -rw-------\n", ""); after != strings.ReplaceAll(before, "s.sock.lock -rw-------\n", "") {
				t.Errorf("it changed\n%sto\n%s", before, after)
			}
		})
	}
}

// The mode of the socket is never wider than 0600, and of its directory never wider than 0700, with
// any umask: another goroutine watches the mode during bind.
func TestListenMode(t *testing.T) {
	old := unix.Umask(0)
	defer unix.Umask(old)
	dir := private(t)
	path := filepath.Join(dir, "a", "b", "s.sock")
	stop, widest := make(chan struct{}), make(chan os.FileMode)
	go func() {
		var seen os.FileMode
		for {
			select {
			case <-stop:
				widest <- seen
				return
			default:
				if st, err := os.Lstat(path); err == nil {
					seen |= st.Mode().Perm()
				}
			}
		}
	}()
	for range 300 {
		l, lock, err := Listen(path)
		if err != nil {
			t.Fatal(err)
		}
		do(t, l.Close(), lock.Close())
	}
	close(stop)
	if seen := <-widest; seen&^0o600 != 0 {
		t.Errorf("the socket had mode %04o", seen)
	}
	l, lock, err := Listen(path)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { do(t, l.Close(), lock.Close()) }()
	want := "a drwx------\na/b drwx------\na/b/s.sock Srw-------\na/b/s.sock.lock -rw-------\n"
	if got := testmain.Tree(t, dir); got != want {
		t.Errorf("got\n%swant\n%s", got, want)
	}
}

// The error of a second Listen names the first process, and the first goes on.
func TestListenTwice(t *testing.T) {
	path := filepath.Join(private(t), "s.sock")
	l, lock, err := Listen(path)
	if err != nil {
		t.Fatal(err)
	}
	_, _, err = Listen(path)
	want := fmt.Sprintf("lock socket %q: process %d (socket.test) serves it already: choose another path, or end it, which frees what it holds", path, os.Getpid())
	if err == nil || err.Error() != want {
		t.Errorf("got  %v\nwant %s", err, want)
	}
	c, err := net.Dial("unix", path)
	if err != nil {
		t.Fatalf("the first is gone: %v", err)
	}
	do(t, c.Close(), l.Close(), lock.Close())
}

// A lock that upstream's daemon holds is respected, and its holder is named.
func TestListenForeignLock(t *testing.T) {
	t.Parallel()
	path := filepath.Join(private(t), "s.sock")
	p := another(t, "lock", path+".lock")
	_, _, err := Listen(path)
	want := fmt.Sprintf("lock socket %q: process %d (exe) serves it already: choose another path, or end it, which frees what it holds", path, p.Process.Pid)
	if err == nil || err.Error() != want {
		t.Errorf("got  %v\nwant %s", err, want)
	}
	kill(p)
	l, lock, err := Listen(path)
	if err != nil {
		t.Fatal(err)
	}
	do(t, l.Close(), lock.Close())
}

// What a process that was killed leaves behind is taken over.
func TestListenStale(t *testing.T) {
	path := filepath.Join(private(t), "s.sock")
	l := listenPlain(t, path)
	l.SetUnlinkOnClose(false)
	do(t, l.Close(), os.WriteFile(path+".lock", nil, 0o600))
	l, lock, err := Listen(path)
	if err != nil {
		t.Fatal(err)
	}
	c, err := net.Dial("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	do(t, c.Close(), l.Close(), lock.Close())
	if _, err := os.Lstat(path); err == nil {
		t.Error("the socket is still there")
	}
}

// asRoot skips what only root can set up.
func asRoot(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("chown needs root; the checks are those of any uid")
	}
}

func listenPlain(t *testing.T, path string) *net.UnixListener {
	t.Helper()
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	return l
}
