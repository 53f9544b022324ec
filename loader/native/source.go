// SPDX-FileCopyrightText: The wcache authors
// SPDX-License-Identifier: MIT

package native

import (
	"errors"
	"fmt"
	"io"

	"golang.org/x/sys/unix"

	"github.com/wcache/wcache/internal/fd"
	"github.com/wcache/wcache/layout"
	"github.com/wcache/wcache/stamp"
)

// Unreadable is the error for a file that can't be opened or read.
type Unreadable struct {
	Path   string
	Offset int64 // bytes from the file's start, -1 if it could not be opened
	Err    error
}

func (e *Unreadable) Error() string {
	if e.Offset < 0 {
		return fmt.Sprintf("open %q: %v", e.Path, e.Err)
	}
	//diag files FILE NUMBER REASON
	// The disk or the network file system reports an error. Look at `dmesg`, and mend the disk or
	// the mount.
	return fmt.Sprintf("read %q at byte %d: %v", e.Path, e.Offset, e.Err)
}

func (e *Unreadable) Unwrap() error { return e.Err }

// source is an open checkpoint file. It is safe for concurrent use.
type source struct {
	fd   *fd.FD
	file layout.File

	// For blocks that aren't in the page cache; nil: everything goes through it.
	direct, probe *fd.FD
	// cached is inCache, except in tests that have to choose: the kernel changes the page
	// cache at any moment.
	cached func(off int64, n int) bool
}

func openSources(files []layout.File, direct bool) ([]*source, error) {
	var list []*source
	for _, f := range files {
		s, err := openSource(f)
		if err != nil {
			closeSources(list)
			return nil, err
		}
		list = append(list, s)
	}
	if !direct {
		return list, nil
	}
	for _, s := range list { // after all files are open
		if err := s.openDirect(); err != nil {
			closeSources(list)
			return nil, err
		}
	}
	return list, nil
}

func closeSources(list []*source) {
	for _, s := range list {
		for _, f := range []*fd.FD{s.fd, s.direct, s.probe} {
			if f != nil {
				_ = f.Close() // only read, so an error loses nothing
			}
		}
	}
}

func openSource(file layout.File) (*source, error) {
	n, err := unix.Open(file.Path, unix.O_RDONLY|unix.O_CLOEXEC, 0)
	for errors.Is(err, unix.EINTR) {
		n, err = unix.Open(file.Path, unix.O_RDONLY|unix.O_CLOEXEC, 0)
	}
	if err != nil {
		return nil, &Unreadable{Path: file.Path, Offset: -1, Err: err}
	}
	f, err := fd.New(n)
	if err != nil {
		return nil, err
	}
	s := &source{fd: f, file: file}
	if err := s.check(); err != nil {
		_ = f.Close()
		return nil, err
	}
	return s, nil
}

// check compares the file with its stamp in the plan.
func (s *source) check() error {
	err := s.file.Stamp.Check(s.fd.Int(), s.file.Path)
	var changed *stamp.Changed
	if err != nil && !errors.As(err, &changed) {
		return &Unreadable{Path: s.file.Path, Offset: -1, Err: err}
	}
	return err
}

// read fills b from the given offset. A file that ends or fails is a [*stamp.Changed] if it
// was changed, since that is then why.
func (s *source) read(b []byte, off int64) error {
	for len(b) > 0 {
		n, err := unix.Pread(s.fd.Int(), b, off)
		if err == unix.EINTR {
			continue
		}
		if err == nil && n == 0 {
			err = io.ErrUnexpectedEOF
		}
		if err != nil {
			if changed := s.check(); changed != nil {
				return changed
			}
			return &Unreadable{Path: s.file.Path, Offset: off, Err: err}
		}
		b, off = b[n:], off+int64(n)
	}
	return nil
}
