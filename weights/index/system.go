// SPDX-FileCopyrightText: The wcache authors
// SPDX-License-Identifier: MIT

package index

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/wcache/wcache/internal/fd"
	"github.com/wcache/wcache/stamp"
)

// system is the kernel, as a walker uses it. Each of these calls may take for ever if a
// file server does not answer. A directory is given as a descriptor; unix.AT_FDCWD
// stands for the working directory.
type system interface {
	// open is openat(2), close-on-exec. The caller owns the descriptor.
	open(dir int, name string, flags int) (*fd.FD, error)
	// close closes a descriptor that was opened for reading, so no data can be lost. It is
	// part of system because some file systems can block in close, too.
	close(f *fd.FD)
	// stat stamps an entry of a directory, without following links; "" is the open file.
	stat(dir int, name string) (stamp.Info, error)
	// list calls each for every entry of a directory except "." and "..", until each
	// returns false. kind is a DT_ constant, DT_UNKNOWN if the file system doesn't tell.
	list(dir int, each func(name string, kind byte) bool) error
	readlink(dir int, name string) (string, error)
	// read is pread(2).
	read(file int, b []byte, off int64) (int, error)
	// kind is the kind of file system that an open file is on.
	kind(file int) (kind, error)
	// mountTop reports whether an open directory is the top of a mounted file system.
	mountTop(dir int) (bool, error)
}

// kind says who can change a file system.
type kind int

const (
	foreign kind = iota // others may change it: a server, or a program behind FUSE
	local               // only this kernel changes it, so inotify reports every change
	pseudo              // the kernel makes its contents, which are not stored files
)

// kindOf knows file systems by the magic numbers of statfs(2). Unlisted ones count as
// foreign.
func kindOf(magic int64) kind {
	switch magic {
	case 0xEF53, 0x58465342, 0x9123683E, 0x01021994, 0x858458F6, // ext2 to ext4, xfs, btrfs, tmpfs, ramfs
		0xF2F52010, 0x2FC12FC1, 0xCA451A4E, 0x794C7630, 0xE0F5E1E2, // f2fs, zfs, bcachefs, overlayfs, erofs
		0x73717368, 0x9660, 0x15013346, 0x4D44, 0x2011BAB0, 0x7366746E, 0x3153464A: // squashfs, iso9660, udf, vfat, exfat, ntfs3, jfs
		return local
	case 0x9FA0, 0x62656572, 0x27E0EB, 0x63677270, 0x64626720, 0x74726163, 0x73636673, // proc, sysfs, cgroup, cgroup2, debugfs, tracefs, securityfs
		0xCAFE4A11, 0x6165676C, 0xDE5E81E4, 0x1CD1, 0x19800202, 0xF97CFF8C, 0x62656570, 0x42494E4D: // bpf, pstore, efivarfs, devpts, mqueue, selinuxfs, configfs, binfmt_misc
		return pseudo
	}
	return foreign
}

// linux is the real system.
type linux struct{}

func (linux) open(dir int, name string, flags int) (*fd.FD, error) {
	for {
		n, err := unix.Openat(dir, name, flags|unix.O_CLOEXEC, 0)
		if err == nil {
			return fd.New(n)
		}
		if !errors.Is(err, unix.EINTR) {
			return nil, err
		}
	}
}

func (linux) close(f *fd.FD) { _ = f.Close() } // nothing was written

func (linux) stat(dir int, name string) (stamp.Info, error) {
	if name == "" {
		return stamp.OfFD(dir)
	}
	return stamp.At(dir, name)
}

func (linux) list(dir int, each func(name string, kind byte) bool) error {
	buf := make([]byte, 32<<10)
	for {
		n, err := unix.Getdents(dir, buf)
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil || n == 0 {
			return err
		}
		for b := buf[:n]; len(b) > 0; {
			name, kind, size, err := entryOf(b)
			if err != nil {
				return err
			}
			b = b[size:]
			if name != "." && name != ".." && !each(name, kind) {
				return nil
			}
		}
	}
}

// entryOf decodes the first entry of the output of getdents64(2): inode and offset, eight
// bytes each, the entry's size, two bytes, its kind, and a name that ends with 0.
func entryOf(b []byte) (name string, kind byte, size int, err error) {
	const before = 8 + 8 + 2 + 1
	if len(b) < before {
		return "", 0, 0, fmt.Errorf("list directory: %d bytes are too few for an entry", len(b))
	}
	size = int(binary.NativeEndian.Uint16(b[16:]))
	if size < before || size > len(b) {
		return "", 0, 0, fmt.Errorf("list directory: an entry of %d bytes in %d", size, len(b))
	}
	text, _, _ := bytes.Cut(b[before:size], []byte{0})
	return string(text), b[18], size, nil
}

func (linux) readlink(dir int, name string) (string, error) {
	buf := make([]byte, unix.PathMax)
	n, err := unix.Readlinkat(dir, name, buf)
	if err != nil {
		return "", err
	}
	return string(buf[:n]), nil
}

func (linux) read(file int, b []byte, off int64) (int, error) {
	for {
		n, err := unix.Pread(file, b, off)
		if !errors.Is(err, unix.EINTR) {
			return max(n, 0), err
		}
	}
}

func (linux) kind(file int) (kind, error) {
	for {
		var st unix.Statfs_t
		err := unix.Fstatfs(file, &st)
		if err == nil {
			return kindOf(int64(uint32(st.Type))), nil // st.Type is int64 here, int32 on others
		}
		if !errors.Is(err, unix.EINTR) {
			return foreign, err
		}
	}
}

func (linux) mountTop(dir int) (bool, error) {
	var st unix.Statx_t
	if err := unix.Statx(dir, "", unix.AT_EMPTY_PATH, 0, &st); err != nil {
		return false, err
	}
	return st.Attributes&unix.STATX_ATTR_MOUNT_ROOT != 0, nil
}

// timed notes when the current call began. Calls come from one goroutine; other
// goroutines may read the time.
type timed struct {
	system
	limit time.Duration // a longer call is reported when it returns
	late  func()
	base  time.Time
	begun atomic.Int64  // nanoseconds since base, 0 between calls
	stuck time.Duration // total of longer calls; only the caller uses it
}

func (t *timed) enter() int64 {
	now := int64(max(time.Since(t.base), 1))
	t.begun.Store(now)
	return now
}

func (t *timed) leave(begun int64) {
	t.begun.Store(0)
	if took := time.Since(t.base) - time.Duration(begun); took > t.limit {
		t.stuck += took
		t.late()
	}
}

// since is when the current call began, the zero time between calls.
func (t *timed) since() time.Time {
	if begun := t.begun.Load(); begun != 0 {
		return t.base.Add(time.Duration(begun))
	}
	return time.Time{}
}

func (t *timed) open(dir int, name string, flags int) (*fd.FD, error) {
	defer t.leave(t.enter())
	return t.system.open(dir, name, flags)
}

func (t *timed) close(f *fd.FD) {
	defer t.leave(t.enter())
	t.system.close(f)
}

func (t *timed) stat(dir int, name string) (stamp.Info, error) {
	defer t.leave(t.enter())
	return t.system.stat(dir, name)
}

func (t *timed) list(dir int, each func(name string, kind byte) bool) error {
	begun := t.enter()
	defer func() { t.leave(begun) }()
	return t.system.list(dir, func(name string, kind byte) bool {
		begun = t.enter() // a long listing is not a hanging call
		return each(name, kind)
	})
}

func (t *timed) readlink(dir int, name string) (string, error) {
	defer t.leave(t.enter())
	return t.system.readlink(dir, name)
}

func (t *timed) read(file int, b []byte, off int64) (int, error) {
	defer t.leave(t.enter())
	return t.system.read(file, b, off)
}

func (t *timed) kind(file int) (kind, error) {
	defer t.leave(t.enter())
	return t.system.kind(file)
}

func (t *timed) mountTop(dir int) (bool, error) {
	defer t.leave(t.enter())
	return t.system.mountTop(dir)
}

// readerAt makes an open file an io.ReaderAt.
type readerAt struct {
	sys  system
	file int
}

func (r readerAt) ReadAt(b []byte, off int64) (int, error) {
	var n int
	for n < len(b) {
		m, err := r.sys.read(r.file, b[n:], off+int64(n))
		if err != nil {
			return n, err
		}
		if m == 0 {
			return n, io.EOF
		}
		n += m
	}
	return n, nil
}
