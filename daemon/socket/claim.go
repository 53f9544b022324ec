// SPDX-FileCopyrightText: The wcache authors
// SPDX-License-Identifier: MIT

package socket

import (
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"sync"

	"golang.org/x/sys/unix"
)

// Claim holds the path of a socket for this process: the lock, which other daemons see, and
// the socket's files. Any process of the same user can remove or replace the files, and so
// can a cleaner of /tmp; Check notices that, and makes the files of this process anew. It
// is safe for concurrent use.
//
// A Claim knows files by their inodes, and keeps a descriptor of each, so that the file
// system can't give the inode's number to another file.
type Claim struct {
	path string

	mu    sync.Mutex
	bound bool     // this process made the socket, and not a service manager
	lock  *os.File // holds the lock, nil: another process holds it, or locking failed
	dir   *os.File // holds a shared lock on the directory, nil: locking failed
	file  *os.File // the socket's file, nil: not known
}

// NewClaim takes the lock of a socket that a service manager has made. If another process
// has the lock, the error of Check names that process, since engines may reach it instead.
// The caller closes the claim.
func NewClaim(socket string) *Claim {
	c := &Claim{path: socket}
	c.lock, _ = takeLock(socket) // Check tries again and gives the error
	c.keepDir()
	c.file, _ = pinned(socket)
	return c
}

// Check checks that the files are still there. If this process made the socket, and its
// file or directory was removed, Check makes a new socket, which the caller owns and has to
// serve: clients can't reach the earlier one. Otherwise the listener is nil. The error is a
// problem that Check can't repair, and that may keep engines from reaching this process.
func (c *Claim) Check() (*net.UnixListener, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if err := c.prepare(); err != nil {
		return nil, err
	}
	if !same(c.dir, filepath.Dir(c.path)) {
		c.keepDir()
	}
	if !same(c.lock, c.path+lockEnding) {
		lock, err := takeLock(c.path)
		if err != nil {
			return nil, err
		}
		release(&c.lock)
		c.lock = lock
	}
	if !c.bound || same(c.file, c.path) {
		return nil, nil
	}
	l, err := bind(c.path)
	if err != nil {
		//diag serving PATH REASON
		// The file of a socket that the daemon made was removed, and the daemon can't make it again
		// for the given reason. Mend it; the daemon tries again.
		return nil, fmt.Errorf("keep socket %q: %w", c.path, err)
	}
	c.own(l)
	return l, nil
}

// prepare makes the directory of a socket of this process. For a socket of a service
// manager it checks the file, which only the manager can make.
func (c *Claim) prepare() error {
	if c.bound {
		if err := privateDir(filepath.Dir(c.path)); err != nil {
			return fmt.Errorf("keep socket %q: %w", c.path, err)
		}
		return nil
	}
	_, err := os.Lstat(c.path)
	switch {
	case same(c.file, c.path):
		return nil
	case errors.Is(err, fs.ErrNotExist):
		//diag serving
		// The file of a socket that belongs to the service manager was removed. Restart the socket
		// unit, which makes it again.
		return &Unreachable{c.path, "was removed, so engines can't reach the daemon"}
	case err != nil:
		return fmt.Errorf("look at socket: %w", err)
	case c.file == nil: // it was not there before
		c.file, _ = pinned(c.path)
		return nil
	}
	//diag serving
	// Another program has made its own socket at the path of the service manager's. End that
	// program, and restart the socket unit.
	return &Unreachable{c.path, "was replaced by another socket, which engines reach instead"}
}

// Unreachable is the error for a socket of a service manager that has lost its file. Only
// the manager can make it anew.
type Unreachable struct{ Socket, How string }

//diag - its ends have comments of their own

func (e *Unreachable) Error() string { return fmt.Sprintf("socket %s %s", e.Socket, e.How) }

// own notes the file of a socket that this process made.
func (c *Claim) own(l *net.UnixListener) {
	l.SetUnlinkOnClose(false) // it would remove the name, which may be another socket's by then
	release(&c.file)
	c.file, _ = pinned(c.path)
	c.bound = true
}

// Close removes the socket's file, if this process made it and it is still there, and
// releases the lock. The caller closes the listener before. While a Check hangs, because a
// file system doesn't answer, Close does nothing: the end of the process releases the lock.
func (c *Claim) Close() error {
	if !c.mu.TryLock() {
		return nil
	}
	defer c.mu.Unlock()
	var err error
	if c.bound && same(c.lock, c.path+lockEnding) && same(c.file, c.path) {
		err = os.Remove(c.path) // while the lock is held, no other daemon makes one
	}
	release(&c.file)
	release(&c.lock)
	release(&c.dir)
	return err
}

// keepDir takes a shared lock on the directory. While a process holds it,
// systemd-tmpfiles(8) doesn't remove old files in the directory; see tmpfiles.d(5). Locks
// on the files themselves would have that effect only from systemd 254 on.
func (c *Claim) keepDir() {
	release(&c.dir)
	dir := filepath.Dir(c.path)
	f, err := os.OpenFile(dir, os.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return
	}
	if unix.Flock(int(f.Fd()), unix.LOCK_SH|unix.LOCK_NB) != nil { // systemd-tmpfiles is at work there; Check tries again
		release(&f)
	}
	c.dir = f
}

// pinned opens the file of a socket by O_PATH, without connecting.
func pinned(path string) (*os.File, error) {
	n, err := unix.Open(path, unix.O_PATH|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("look at socket %q: %w", path, err)
	}
	return os.NewFile(uintptr(n), path), nil
}

// same reports whether a path leads to an open file.
func same(f *os.File, path string) bool {
	if f == nil {
		return false
	}
	var held, there unix.Stat_t
	return unix.Fstat(int(f.Fd()), &held) == nil && unix.Lstat(path, &there) == nil && held.Dev == there.Dev && held.Ino == there.Ino
}

func release(f **os.File) {
	if *f != nil {
		_ = (*f).Close() // nothing was written
		*f = nil
	}
}
