// SPDX-FileCopyrightText: The wcache authors
// SPDX-License-Identifier: MIT

// Package socket binds sockets on the paths where engines look for them, and guards them:
// with the lock file that vLLM's own daemon uses, in a directory that other users can't
// enter, and by making removed files anew.
package socket

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/wcache/wcache/daemon/peer"
)

// maxPath is the longest path of a Unix socket: sizeof(sun_path) less its NUL.
const maxPath = 107

// Listen binds a socket that only this user can reach. It makes a missing directory. It
// refuses a directory, or a file at the socket's path, that another user could have
// planted. It replaces a socket that no process serves.
//
// The caller owns the listener and the claim, and closes both, the claim last.
func Listen(path string) (*net.UnixListener, *Claim, error) {
	if len(path) > maxPath {
		//diag starting PATH NUMBER NUMBER
		// The kernel limits the length of a socket's path. Choose a shorter directory.
		return nil, nil, fmt.Errorf("listen on %q: a socket's path has at most %d bytes, this one has %d: choose a shorter directory", path, maxPath, len(path))
	}
	if err := privateDir(filepath.Dir(path)); err != nil {
		//diag starting PATH REASON
		// The daemon can't make this socket, for the reason that follows; "Paths of sockets"
		// explains it if it is one of wcache's. Correct the path, or the file or directory there.
		return nil, nil, fmt.Errorf("listen on %q: %w", path, err)
	}
	lock, err := takeLock(path)
	if err != nil {
		return nil, nil, err
	}
	c := &Claim{path: path, lock: lock}
	c.keepDir()
	l, err := bind(path)
	if err != nil {
		return nil, nil, errors.Join(fmt.Errorf("listen on %q: %w", path, err), c.Close())
	}
	c.own(l)
	return l, c, nil
}

// privateDir makes a directory of mode 0700. It checks an existing one as vLLM's client
// does before it connects.
func privateDir(dir string) error {
	st, err := os.Lstat(dir)
	if errors.Is(err, fs.ErrNotExist) {
		if err := os.MkdirAll(dir, 0o700); err != nil {
			return fmt.Errorf("make directory: %w", err)
		}
		st, err = os.Lstat(dir)
	}
	if err != nil {
		return fmt.Errorf("check directory: %w", err)
	}
	switch {
	case st.Mode().Type() == fs.ModeSymlink:
		//diag listen PATH
		// Engines refuse a link, as another user could have planted it. Remove it, or name the
		// directory that it leads to.
		return fmt.Errorf("check directory %s: is a link, which engines refuse: remove it, or name the directory that it leads to", dir)
	case !st.IsDir():
		//diag listen PATH
		// A file has the name of the directory. Choose another path, or remove the file.
		return fmt.Errorf("check directory %s: is not a directory: choose another", dir)
	case owner(st) != os.Getuid():
		//diag listen PATH NUMBER NUMBER
		// Another user has made the directory, which can happen in `/tmp`. Choose another directory.
		return fmt.Errorf("check directory %s: belongs to uid %d, not to uid %d: choose another", dir, owner(st), os.Getuid())
	case st.Mode().Perm()&0o077 != 0:
		//diag listen PATH MODE
		// Other users may enter the directory, so engines refuse sockets in it. Run `chmod 700` on
		// it.
		return fmt.Errorf("check directory %s: mode %04o lets others in: chmod 700 it", dir, st.Mode().Perm())
	}
	return nil
}

func owner(st fs.FileInfo) int {
	return int(st.Sys().(*syscall.Stat_t).Uid) // what os.Lstat gives on Linux
}

// lockEnding ends the name of the file that vLLM's own daemon locks while it runs.
const lockEnding = ".lock"

// takeLock takes vLLM's lock, so that two daemons, wcache's or vLLM's, never serve the same
// path. The caller owns the file; its close releases the lock.
func takeLock(socket string) (*os.File, error) {
	for {
		f, err := tryLock(socket)
		if err != nil || same(f, socket+lockEnding) {
			return f, err
		}
		// The file was removed after tryLock opened it: other daemons would lock a new file.
		if err := f.Close(); err != nil {
			return nil, fmt.Errorf("lock socket %q: %w", socket, err)
		}
	}
}

func tryLock(socket string) (*os.File, error) {
	path := socket + lockEnding
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0o600)
	switch {
	case errors.Is(err, unix.ELOOP):
		//diag listen PATH PATH
		// The lock file beside the socket is a symbolic link, which another user could have
		// planted. Remove it.
		return nil, fmt.Errorf("lock socket %q: %s is a link: remove it", socket, path)
	case err != nil:
		return nil, fmt.Errorf("lock socket %q: %w", socket, err)
	}
	err = unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
	switch {
	case errors.Is(err, unix.EWOULDBLOCK):
		//diag listen PATH PROCESS
		// Another daemon, wcache's or vLLM's own, listens on this path. Choose another path, or end
		// that daemon, which frees what it holds.
		err = fmt.Errorf("lock socket %q: %s serves it already: choose another path, or end it, which frees what it holds", socket, holder(f))
	case err != nil:
		err = fmt.Errorf("lock socket %q: %w", socket, err)
	default:
		return f, nil
	}
	return nil, errors.Join(err, f.Close())
}

// holder names the process that holds a lock, from /proc/locks: lines such as
// "1: FLOCK  ADVISORY  WRITE 4711 fe:00:262146 0 EOF".
func holder(f *os.File) string {
	var st unix.Stat_t
	if err := unix.Fstat(int(f.Fd()), &st); err != nil {
		return "another process"
	}
	file := fmt.Sprintf("%02x:%02x:%d", unix.Major(st.Dev), unix.Minor(st.Dev), st.Ino)
	for range 3 { // the kernel leaves lines out while other processes lock and unlock
		locks, err := os.ReadFile("/proc/locks")
		if err != nil {
			break
		}
		for line := range strings.Lines(string(locks)) {
			if part := strings.Fields(line); len(part) > 5 && part[1] == "FLOCK" && part[5] == file {
				pid, _ := strconv.Atoi(part[4]) // the kernel writes digits
				return peer.Describe(pid)
			}
		}
	}
	return "another process"
}

func bind(path string) (*net.UnixListener, error) {
	st, err := os.Lstat(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		if by, ok := orphaned(path); ok {
			//diag listen PROCESS
			// The daemon that listens on this path has lost its socket and lock files; it makes them
			// again within seconds. Wait for it, or end it, which frees the weights that it holds.
			return nil, fmt.Errorf("%s listens on it, and its file was removed: wait until it makes it again, or end it, which frees what it holds", by)
		}
	case err != nil:
		return nil, err
	case st.Mode().Type() == fs.ModeSymlink:
		//diag listen
		// A symbolic link, which another user could have planted, has the path of the socket. Remove
		// it.
		return nil, errors.New("there is a link, which engines refuse: remove it")
	case st.Mode().Type() != fs.ModeSocket:
		//diag listen
		// A file that is not a socket has the path of the socket. Remove it, or choose another path.
		return nil, errors.New("there is a file that isn't a socket: remove it")
	case owner(st) != os.Getuid():
		//diag listen NUMBER NUMBER
		// The socket at this path belongs to another user. Have that user remove it, or choose
		// another path.
		return nil, fmt.Errorf("there is a socket of uid %d, not of uid %d: remove it", owner(st), os.Getuid())
	default:
		if by, ok := served(path); ok {
			//diag listen PROCESS
			// Another program listens at this path and does not use wcache's lock file. Choose
			// another path, or end that program, which frees what it holds.
			return nil, fmt.Errorf("%s serves it, without its lock: choose another path, or end it, which frees what it holds", by)
		}
		if err := os.Remove(path); err != nil {
			return nil, err
		}
	}
	// unix(7): bind makes the file with the mode of the socket, less the umask. With a
	// chmod after bind, other users could connect before it; a change of the umask would
	// affect the whole process.
	var modeErr error
	config := net.ListenConfig{Control: func(_, _ string, c syscall.RawConn) error {
		err := c.Control(func(fd uintptr) { modeErr = unix.Fchmod(int(fd), 0o600) })
		return errors.Join(err, modeErr)
	}}
	l, err := config.Listen(context.Background(), "unix", path)
	if err != nil {
		return nil, err
	}
	return l.(*net.UnixListener), nil // what "unix" gives
}

// served reports whether a process listens on a socket, and names it.
func served(path string) (by string, ok bool) {
	c, err := net.Dial("unix", path)
	if err != nil {
		// EAGAIN: a process listens, and its queue is full.
		return "another process", errors.Is(err, unix.EAGAIN)
	}
	defer func() { _ = c.Close() }()
	p, err := peer.Of(c.(*net.UnixConn)) // what "unix" gives
	if err != nil {
		return "another process", true
	}
	return peer.Describe(p.PID), true
}
