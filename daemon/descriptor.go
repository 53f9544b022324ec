// SPDX-FileCopyrightText: The wcache authors
// SPDX-License-Identifier: MIT

package daemon

import (
	"fmt"
	"io"

	"golang.org/x/sys/unix"
)

// descriptor reads a segment of host memory by its descriptor, which it doesn't own.
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
