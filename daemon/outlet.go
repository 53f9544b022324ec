// SPDX-FileCopyrightText: The wcache authors
// SPDX-License-Identifier: MIT

package daemon

import (
	"fmt"
	"io"
	"net"
	"os"

	"golang.org/x/sys/unix"
)

// descriptor reads a segment of host memory. It doesn't own the descriptor.
type descriptor int

func (d descriptor) ReadAt(p []byte, off int64) (int, error) {
	n := 0
	for n < len(p) {
		m, err := unix.Pread(int(d), p[n:], off+int64(n))
		switch {
		case err == unix.EINTR:
		case err != nil:
			return n, fmt.Errorf("read segment: %w", err)
		case m == 0:
			return n, io.ErrUnexpectedEOF
		default:
			n += m
		}
	}
	return n, nil
}

// outlet writes replies to an engine's connection. The bytes of a segment don't pass
// through this process: the kernel copies them.
type outlet struct{ conn *net.UnixConn }

func (o outlet) Write(b []byte) (int, error) { return o.conn.Write(b) }

// ReadFrom is called by [io.Copy] to write a part of a segment.
func (o outlet) ReadFrom(r io.Reader) (int64, error) {
	if section, ok := r.(*io.SectionReader); ok {
		from, off, n := section.Outer()
		if d, ok := from.(descriptor); ok {
			return o.send(d, off, n)
		}
	}
	return io.Copy(struct{ io.Writer }{o}, r)
}

// maxSend is the most bytes of one sendfile call, a little less than MAX_RW_COUNT of
// linux/fs.h.
const maxSend = 1 << 30

// send writes n bytes at off of a segment, with sendfile(2).
func (o outlet) send(d descriptor, off, n int64) (sent int64, err error) {
	raw, err := o.conn.SyscallConn()
	if err != nil {
		return 0, fmt.Errorf("send segment: %w", err)
	}
	var failed error
	err = raw.Write(func(fd uintptr) (done bool) {
		for sent < n {
			m, err := unix.Sendfile(int(fd), int(d), &off, int(min(n-sent, maxSend)))
			switch {
			case err == unix.EINTR:
			case err == unix.EAGAIN:
				return false // until the engine has read some
			case err != nil:
				failed = os.NewSyscallError("sendfile", err)
				return true
			case m == 0:
				failed = io.ErrUnexpectedEOF
				return true
			default:
				sent += int64(m)
			}
		}
		return true
	})
	if err == nil {
		err = failed
	}
	if err != nil {
		err = fmt.Errorf("send segment: %w", err)
	}
	return sent, err
}
