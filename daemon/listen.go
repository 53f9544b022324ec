// SPDX-FileCopyrightText: The wcache authors
// SPDX-License-Identifier: MIT

package daemon

import (
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// maxPath is the longest path of a Unix socket: sizeof(sun_path) less its NUL.
const maxPath = 107

// Listen binds a socket that only this user reaches. It makes the directory if
// there is none, and refuses one, or anything at the socket's path, that another
// user could have planted. A socket that nobody serves is replaced.
//
// The caller owns the listener and the lock, and closes both, the lock last.
func Listen(path string) (*net.UnixListener, *os.File, error) {
	if len(path) > maxPath {
		return nil, nil, fmt.Errorf("listen on %q: a socket's path has at most %d bytes, this one has %d: choose a shorter directory", path, maxPath, len(path))
	}
	if err := privateDir(filepath.Dir(path)); err != nil {
		return nil, nil, fmt.Errorf("listen on %q: %w", path, err)
	}
	lock, err := Lock(path)
	if err != nil {
		return nil, nil, err
	}
	l, err := bind(path)
	if err != nil {
		return nil, nil, errors.Join(fmt.Errorf("listen on %q: %w", path, err), lock.Close())
	}
	return l, lock, nil
}

// privateDir makes a directory of mode 0700, or checks one that is there in the
// way that vLLM's client checks it before it connects.
func privateDir(dir string) error {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return fmt.Errorf("make directory: %w", err)
	}
	st, err := os.Lstat(dir)
	if err != nil {
		return fmt.Errorf("check directory: %w", err)
	}
	owner := st.Sys().(*syscall.Stat_t).Uid
	switch {
	case !st.IsDir():
		return fmt.Errorf("check directory %s: is a link or no directory, and engines refuse that", dir)
	case int(owner) != os.Getuid():
		return fmt.Errorf("check directory %s: belongs to uid %d, not to uid %d", dir, owner, os.Getuid())
	case st.Mode().Perm()&0o077 != 0:
		return fmt.Errorf("check directory %s: mode %04o lets others in: chmod 700 it", dir, st.Mode().Perm())
	}
	return nil
}

// Lock takes the lock that vLLM's own daemon holds for its life, so that the two
// never serve one path together. The caller owns the file, which is the lock.
func Lock(socket string) (*os.File, error) {
	path := socket + ".lock"
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0o600)
	if err != nil {
		return nil, fmt.Errorf("lock socket %q: %w", socket, err)
	}
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		err = fmt.Errorf("lock socket %q: %s serves it already", socket, holder(f))
		return nil, errors.Join(err, f.Close())
	}
	return f, nil
}

// holder names the process that holds a lock, from /proc/locks: lines such as
// "1: FLOCK  ADVISORY  WRITE 4711 fe:00:262146 0 EOF".
func holder(f *os.File) string {
	var st unix.Stat_t
	if err := unix.Fstat(int(f.Fd()), &st); err != nil {
		return "another process"
	}
	file := fmt.Sprintf("%02x:%02x:%d", unix.Major(st.Dev), unix.Minor(st.Dev), st.Ino)
	locks, err := os.ReadFile("/proc/locks")
	if err != nil {
		return "another process"
	}
	for line := range strings.Lines(string(locks)) {
		if part := strings.Fields(line); len(part) > 5 && part[1] == "FLOCK" && part[5] == file {
			comm, err := os.ReadFile("/proc/" + part[4] + "/comm")
			if err != nil {
				return "process " + part[4]
			}
			return fmt.Sprintf("process %s (%s)", part[4], strings.TrimSpace(string(comm)))
		}
	}
	return "another process"
}

func bind(path string) (*net.UnixListener, error) {
	st, err := os.Lstat(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
	case err != nil:
		return nil, err
	case st.Mode().Type() != fs.ModeSocket:
		return nil, fmt.Errorf("there is a file that is no socket: remove it")
	default:
		if c, err := net.Dial("unix", path); err == nil {
			_ = c.Close()
			return nil, fmt.Errorf("a process that holds no lock serves it already")
		}
		if err := os.Remove(path); err != nil {
			return nil, err
		}
	}
	// The socket gets its mode from the umask at the moment of bind: a chmod
	// afterwards would leave it open to others in between.
	old := unix.Umask(0o177)
	defer unix.Umask(old)
	return net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
}
