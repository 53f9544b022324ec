// SPDX-FileCopyrightText: The wcache authors
// SPDX-License-Identifier: MIT

package index

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"

	"golang.org/x/sys/unix"

	"github.com/wcache/wcache/internal/fd"
)

// The events to watch for. Files are watched themselves, and not through their folder:
// a change through another hard link is only reported for the file, and a download into
// a folder of other names causes no events. IN_CLOSE_WRITE is for writes through a shared
// mapping, which cause no other event. IN_MOVE_SELF is needed since a move changes the
// stamp, also when another hard link moves.
const (
	folderMask = unix.IN_CREATE | unix.IN_DELETE | unix.IN_MOVED_FROM | unix.IN_MOVED_TO | unix.IN_ATTRIB |
		unix.IN_DELETE_SELF | unix.IN_MOVE_SELF | unix.IN_ONLYDIR
	fileMask = unix.IN_MODIFY | unix.IN_CLOSE_WRITE | unix.IN_ATTRIB | unix.IN_DELETE_SELF | unix.IN_MOVE_SELF
)

// event is an event of inotify(7).
type event struct {
	watch int32
	mask  uint32
	name  string // "" for the watched file or folder itself
}

// notifier is the kernel's queue of events, and its signal that a file system was
// mounted or unmounted. Without its descriptors nothing can be watched.
type notifier struct {
	err    error  // why the notifier doesn't work
	queue  *fd.FD // inotify
	mounts *fd.FD // /proc/self/mountinfo, which signals a change once to each open file
	idle   *fd.FD // the same, for wait
	bell   *fd.FD // an eventfd, for ring
	polled [2]unix.PollFd
	buf    []byte
	add    func(queue int, path string, mask uint32) (int, error) // inotify_add_watch
}

func newNotifier() *notifier {
	n := &notifier{add: unix.InotifyAddWatch, buf: make([]byte, 64<<10)}
	open := func(what string, f **fd.FD, number int, err error) {
		if err == nil {
			*f, err = fd.New(number)
		}
		if err != nil && n.err == nil {
			n.err = fmt.Errorf("%s: %w", what, err)
		}
	}
	q, err := unix.InotifyInit1(unix.IN_CLOEXEC | unix.IN_NONBLOCK)
	open("inotify (the limit fs.inotify.max_user_instances may be too small)", &n.queue, q, err)
	for _, f := range []**fd.FD{&n.mounts, &n.idle} {
		m, err := unix.Open(mountinfo, unix.O_RDONLY|unix.O_CLOEXEC, 0)
		open(mountinfo, f, m, err)
	}
	e, err := unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK)
	open("eventfd", &n.bell, e, err)
	if n.err != nil {
		n.close()
	}
	return n
}

func (n *notifier) close() {
	for _, f := range []*fd.FD{n.queue, n.mounts, n.idle, n.bell} {
		if f != nil {
			_ = f.Close() // nothing was written
		}
	}
}

// wait waits until there is something to drain, or until ring is called.
func (n *notifier) wait() {
	fds := []unix.PollFd{
		{Fd: int32(n.queue.Int()), Events: unix.POLLIN},
		{Fd: int32(n.idle.Int()), Events: unix.POLLPRI},
		{Fd: int32(n.bell.Int()), Events: unix.POLLIN},
	}
	for {
		if _, err := unix.Poll(fds, -1); !errors.Is(err, unix.EINTR) {
			return
		}
	}
}

// ring ends all waiting, now and later.
func (n *notifier) ring() {
	if n.err == nil {
		_, _ = unix.Write(n.bell.Int(), []byte{1, 0, 0, 0, 0, 0, 0, 0}) // an eventfd has room for this value
	}
}

// watch watches an open file or folder, whatever its path. An inode keeps its number if
// it is watched again. It is safe for concurrent use.
func (n *notifier) watch(f *fd.FD, mask uint32) (int32, error) {
	if n.err != nil {
		return 0, n.err
	}
	wd, err := n.add(n.queue.Int(), fmt.Sprintf("/proc/self/fd/%d", f.Int()), mask)
	switch {
	case errors.Is(err, unix.ENOSPC):
		return 0, errors.New("the limit of watches is reached, raise fs.inotify.max_user_watches")
	case err != nil:
		return 0, fmt.Errorf("inotify: %w", err)
	}
	return int32(wd), nil
}

// unwatch ends a watch. It is no error if the watch has already ended.
func (n *notifier) unwatch(wd int32) {
	if n.err == nil {
		_, _ = unix.InotifyRmWatch(n.queue.Int(), uint32(wd)) // EINVAL: its inode is gone
	}
}

// drain gives every event that was queued before the call, and reports whether
// mounts have changed since the last call. It does not wait. Only one call may run at a time.
func (n *notifier) drain(each func(event)) (mounts bool) {
	if n.err != nil {
		return false
	}
	n.polled[0] = unix.PollFd{Fd: int32(n.mounts.Int()), Events: unix.POLLPRI}
	n.polled[1] = unix.PollFd{Fd: int32(n.queue.Int()), Events: unix.POLLIN}
	k, err := unix.Poll(n.polled[:], 0)
	for errors.Is(err, unix.EINTR) {
		k, err = unix.Poll(n.polled[:], 0)
	}
	if err != nil || k == 0 {
		return false
	}
	for n.polled[1].Revents&unix.POLLIN != 0 {
		k, err := unix.Read(n.queue.Int(), n.buf)
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil || k <= 0 {
			break // EAGAIN: that was all
		}
		parseEvents(n.buf[:k], each)
		if k < len(n.buf)/2 { // the largest event takes some 300 bytes: so the queue is empty
			break
		}
	}
	return n.polled[0].Revents&unix.POLLPRI != 0
}

// parseEvents reads the output of inotify: number, mask, cookie and length of the name,
// four bytes each, then the name, padded with zeros.
func parseEvents(b []byte, each func(event)) {
	const fixed = unix.SizeofInotifyEvent
	for len(b) >= fixed {
		e := event{watch: int32(binary.NativeEndian.Uint32(b)), mask: binary.NativeEndian.Uint32(b[4:])}
		n := binary.NativeEndian.Uint32(b[12:])
		b = b[fixed:]
		if int64(n) > int64(len(b)) {
			return
		}
		name, _, _ := bytes.Cut(b[:n], []byte{0})
		e.name, b = string(name), b[n:]
		each(e)
	}
}
