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

// Claim is what this process has of a socket's path: the lock that says so to others, and
// the files there that are its own. Anybody of the same user can remove or replace them
// while it runs, as can what clears old files from /tmp; Check notices, and makes anew what
// this process made. It is safe for concurrent use.
//
// Files are known by their inodes, of which a descriptor is kept: none of these numbers is
// given to another file meanwhile.
type Claim struct {
	path string

	mu    sync.Mutex
	bound bool     // the socket was made here, and not by a service manager
	lock  *os.File // holds the lock, nil: another process does, or it could not be looked for
	dir   *os.File // holds a shared lock on the directory, nil: that has failed
	file  *os.File // the socket's file, nil: not known
}

// NewClaim takes the lock of a socket that a service manager has made. Where another
// process has it there is a claim all the same, whose Check says who: engines may reach
// the other one. The caller closes it.
func NewClaim(socket string) *Claim {
	c := &Claim{path: socket}
	c.lock, _ = takeLock(socket) // Check says why not
	c.keepDir()
	c.file, _ = pinned(socket)
	return c
}

// Check looks whether all is there still. Of a socket that was made here, and whose file or
// directory was removed, it gives a new one, which the caller owns; the one before reaches
// nobody any more. The error is what engines or people meet that can't be mended here.
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
		// The file of a socket that the daemon made was removed, and can't be made again for the
		// given reason. Mend it; the daemon tries again.
		return nil, fmt.Errorf("keep socket %q: %w", c.path, err)
	}
	c.own(l)
	return l, nil
}

// prepare makes the directory of a socket that was made here, and says what became of the
// file of another, which is the manager's to make.
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
		return &Unreachable{c.path, "was removed, and engines reach nobody there"}
	case err != nil:
		return fmt.Errorf("look at socket: %w", err)
	case c.file == nil: // it was not there before
		c.file, _ = pinned(c.path)
		return nil
	}
	//diag serving
	// Another program has made its own socket at the path of the service manager's. End that
	// program, and restart the socket unit.
	return &Unreachable{c.path, "was replaced by another one, which engines reach"}
}

// Unreachable is the error for a socket of a service manager that has lost its file. Only
// the manager can make it anew.
type Unreachable struct{ Socket, How string }

//diag - its ends have comments of their own

func (e *Unreachable) Error() string { return fmt.Sprintf("socket %s %s", e.Socket, e.How) }

// own takes note of a socket's file that was made here.
func (c *Claim) own(l *net.UnixListener) {
	l.SetUnlinkOnClose(false) // by its name, whoever's it is by then
	release(&c.file)
	c.file, _ = pinned(c.path)
	c.bound = true
}

// Close removes the socket's file, if it was made here and is there still, and gives the
// lock up. The listener is to be closed before. While a Check hangs, of a file system that
// doesn't answer, nothing is done: the end of the process gives the lock up.
func (c *Claim) Close() error {
	if !c.mu.TryLock() {
		return nil
	}
	defer c.mu.Unlock()
	var err error
	if c.bound && same(c.lock, c.path+lockEnding) && same(c.file, c.path) {
		err = os.Remove(c.path) // nobody else makes one while the lock is held
	}
	release(&c.file)
	release(&c.lock)
	release(&c.dir)
	return err
}

// keepDir takes a lock on the directory that any number of processes may have. As long as
// one has it, systemd-tmpfiles(8) leaves what is in there alone, however old it is; see
// tmpfiles.d(5). Locks of files count from systemd 254 on only.
func (c *Claim) keepDir() {
	release(&c.dir)
	dir := filepath.Dir(c.path)
	f, err := os.OpenFile(dir, os.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return
	}
	if unix.Flock(int(f.Fd()), unix.LOCK_SH|unix.LOCK_NB) != nil { // by one who looks through it, and tries again later
		release(&f)
	}
	c.dir = f
}

// pinned opens the file of a socket without connecting to it.
func pinned(path string) (*os.File, error) {
	n, err := unix.Open(path, unix.O_PATH|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("look at socket %q: %w", path, err)
	}
	return os.NewFile(uintptr(n), path), nil
}

// same reports whether an open file is what a path leads to.
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
