// SPDX-FileCopyrightText: The wcache authors
// SPDX-License-Identifier: MIT

// Package hungfs mounts a file system that can stop answering, like a network file system whose
// server is gone. It is for tests and measurements: while it hangs, all reads below the mount
// wait.
//
// It speaks the kernel's FUSE protocol on /dev/fuse itself, without a library or a
// helper program, and so needs root. Of the protocol it has what reading a tree of
// files takes. The kernel is told to keep nothing it learns, so that a hang shows
// at the next look at any path.
package hungfs

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/wcache/wcache/internal/fd"
)

// Unavailable says why this machine can't mount: it has no /dev/fuse, or the process has no
// right to mount.
type Unavailable struct{ cause error }

func (u *Unavailable) Error() string {
	return "mount a file system that hangs: it takes root and /dev/fuse: " + u.cause.Error()
}

func (u *Unavailable) Unwrap() error { return u.cause }

// FS is a mounted file system. It is safe for concurrent use.
//
// The process that has it must not wait for a path below it while it is hung,
// unless another goroutine calls Resume or Close.
type FS struct {
	dir   string
	files fs.FS
	dev   *os.File
	raw   syscall.RawConn
	ended chan struct{} // closed when the server's goroutine has ended
	err   error         // why it ended, to be read after that
	done  chan struct{} // closed by Close
	once  sync.Once

	mu    sync.Mutex
	open  chan struct{} // closed while it answers
	names []string      // path by number of the node, from rootNode on
	nodes map[string]uint64
}

// Mount mounts files, read-only, on the directory dir and answers until Hang is
// called. The error is an [*Unavailable] where this process can't mount at all.
// Of files, only directories and regular files are shown; none may be changed
// while it is mounted. The caller owns the mount and has to Close it; it ends
// answering when the process ends, and dir has to be unmounted by hand then.
func Mount(dir string, files fs.FS) (*FS, error) {
	n, err := unix.Open("/dev/fuse", unix.O_RDWR|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, &Unavailable{fmt.Errorf("open /dev/fuse: %w", err)}
	}
	owner, err := fd.New(n)
	if err != nil {
		return nil, err
	}
	options := fmt.Sprintf("fd=%d,rootmode=%o,user_id=%d,group_id=%d,allow_other", n, unix.S_IFDIR, os.Getuid(), os.Getgid())
	if err := unix.Mount("wcache-hungfs", dir, "fuse.hungfs", unix.MS_NOSUID|unix.MS_NODEV|unix.MS_RDONLY, options); err != nil {
		err = fmt.Errorf("mount on %q: %w", dir, err)
		if errors.Is(err, unix.EPERM) || errors.Is(err, unix.ENODEV) {
			err = &Unavailable{err}
		}
		return nil, errors.Join(err, owner.Close())
	}
	dev := os.NewFile(uintptr(owner.Disown()), "/dev/fuse")
	raw, err := dev.SyscallConn()
	if err != nil {
		return nil, errors.Join(err, dev.Close(), unix.Unmount(dir, unix.MNT_DETACH))
	}
	f := &FS{
		dir: dir, files: files, dev: dev, raw: raw,
		ended: make(chan struct{}), done: make(chan struct{}), open: make(chan struct{}),
		names: []string{"."}, nodes: map[string]uint64{".": rootNode},
	}
	close(f.open)
	go func() {
		defer close(f.ended)
		f.err = f.serve()
	}()
	if err := f.settle(); err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return f, nil
}

// Hang makes the file system stop answering. Requests that come from now on wait
// in the kernel, where a signal that kills ends their callers, as with NFS.
func (f *FS) Hang() {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.answers() {
		f.open = make(chan struct{})
	}
}

// Resume makes it answer again, beginning with what has waited.
func (f *FS) Resume() {
	f.mu.Lock()
	defer f.mu.Unlock()
	if !f.answers() {
		close(f.open)
	}
}

// Waiting reports whether a program waits for an answer, so has accessed a path below the mount
// since it hangs. It may be true for a moment while the file system answers.
func (f *FS) Waiting() bool {
	n := 0
	err := f.raw.Control(func(fd uintptr) {
		n, _ = unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, 0) // it can only be interrupted
	})
	return err == nil && n == 1 // else it is closed
}

// answers reports whether the file system answers. Precondition: mu is held.
func (f *FS) answers() bool {
	select {
	case <-f.open:
		return true
	default:
		return false
	}
}

// gate is closed as long as the file system answers.
func (f *FS) gate() <-chan struct{} {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.open
}

// Close ends the file system and unmounts it, hung or not: programs that wait get an error
// (ENOTCONN or ECONNABORTED). A second Close does nothing. It returns the error at which the
// server gave up, if it did.
func (f *FS) Close() error {
	var err error
	f.once.Do(func() {
		close(f.done)
		// Closing the last descriptor aborts the connection, which wakes all who wait;
		// only then it is certain that the unmount doesn't wait for one of them.
		err = f.dev.Close()
		<-f.ended
		if e := unix.Unmount(f.dir, unix.MNT_DETACH); e != nil {
			err = errors.Join(err, fmt.Errorf("unmount %q: %w", f.dir, e))
		}
		err = errors.Join(err, f.err)
	})
	return err
}
