// SPDX-FileCopyrightText: The wcache authors
// SPDX-License-Identifier: MIT

// Package stamp tells whether a file has changed, from the kernel's metadata of it, without
// reading its contents.
package stamp

import (
	"errors"
	"fmt"
	"io/fs"
	"time"

	"golang.org/x/sys/unix"
)

// Stamp is the metadata of a file at one moment. The zero Stamp stands for a file that doesn't
// exist. It is plain data.
//
// The change time makes it reliable: every write changes it, and programs can't set it. Size and
// modification time alone can stay the same after "cp -p" over a file, or tar; the file system
// reuses the inode's number after a removal.
type Stamp struct {
	Size   int64  // bytes
	MTime  int64  // of the last write, nanoseconds since 1970; programs can set it
	CTime  int64  // of the last write or change of attributes, nanoseconds since 1970; the kernel sets it
	Inode  uint64 // unique on its device at one moment
	Device uint64 // st_dev of the file system
	// Mount is the kernel's number of the mount. From Linux 6.8 on the kernel never reuses
	// one, so that it shows when another image is mounted in the same place.
	Mount uint64
}

// mask has the fields of statx that a Stamp needs. Kernels before 6.8 have no
// STATX_MNT_ID_UNIQUE, and some file systems give no number of the mount at all.
const mask = unix.STATX_BASIC_STATS | unix.STATX_MNT_ID_UNIQUE | unix.STATX_MNT_ID

// Info is a Stamp with further results of statx.
type Info struct {
	Stamp
	Mode fs.FileMode // type and permissions
	UID  uint32      // the owner
}

// Of stamps the file that a path leads to; it follows links. The error wraps that of the system
// call, such as fs.ErrNotExist.
func Of(path string) (Info, error) { return of(unix.AT_FDCWD, path, 0) }

// OfFD stamps an open file.
func OfFD(fd int) (Info, error) { return of(fd, "", unix.AT_EMPTY_PATH) }

// At stamps the entry with the given name of an open directory. It doesn't follow a symbolic
// link.
func At(dir int, name string) (Info, error) { return of(dir, name, unix.AT_SYMLINK_NOFOLLOW) }

func of(fd int, path string, flags int) (Info, error) {
	var st unix.Statx_t
	for {
		err := unix.Statx(fd, path, flags, mask, &st)
		switch {
		case err == nil:
			return info(&st), nil
		case !errors.Is(err, unix.EINTR):
			return Info{}, &fs.PathError{Op: "stat", Path: path, Err: err}
		}
	}
}

func info(st *unix.Statx_t) Info {
	i := Info{
		Stamp: Stamp{
			Size: int64(st.Size), MTime: nanoseconds(st.Mtime), CTime: nanoseconds(st.Ctime),
			Inode: st.Ino, Device: unix.Mkdev(st.Dev_major, st.Dev_minor),
		},
		Mode: fs.FileMode(st.Mode & 0o777),
		UID:  st.Uid,
	}
	if st.Mask&(unix.STATX_MNT_ID_UNIQUE|unix.STATX_MNT_ID) != 0 {
		i.Mount = st.Mnt_id
	}
	switch st.Mode & unix.S_IFMT {
	case unix.S_IFREG:
	case unix.S_IFDIR:
		i.Mode |= fs.ModeDir
	case unix.S_IFLNK:
		i.Mode |= fs.ModeSymlink
	default:
		i.Mode |= fs.ModeIrregular
	}
	return i
}

func nanoseconds(t unix.StatxTimestamp) int64 { return t.Sec*int64(time.Second) + int64(t.Nsec) }

// SameFile reports whether two stamps are of the same file, with any contents.
func (s Stamp) SameFile(other Stamp) bool {
	return s.Inode == other.Inode && s.Device == other.Device && s != Stamp{}
}

// Difference says how a file has changed, for people; "" if it hasn't.
func (s Stamp) Difference(now Stamp) string {
	switch {
	case s == now:
		return ""
	case now == Stamp{}:
		return "is gone"
	case s == Stamp{}:
		return "is new"
	case s.Size != now.Size:
		return fmt.Sprintf("had %d bytes, has %d", s.Size, now.Size)
	case s.Inode != now.Inode || s.Device != now.Device:
		return "was replaced"
	case s.Mount != now.Mount:
		return "is on another mount"
	case s.MTime != now.MTime:
		return "was written"
	default:
		return "was written, or its attributes were changed"
	}
}

// Changed is the error for a file that isn't any more what it was when it was stamped.
// To read it again may help.
type Changed struct {
	Path string
	What string // such as "is gone"
	// MayBeEqual tells that the contents may be what they were, here and in all other
	// files of the same check that have changed: see [Stamp.MayBeEqual].
	MayBeEqual bool
}

//diag files FILE REASON
// A program wrote to the file since it was read, or replaced it; the reason says how. Wait
// until it has ended; the next request reads the model directory again.

func (e *Changed) Error() string { return fmt.Sprintf("check file %q: %s", e.Path, e.What) }

// Check reports, as a [*Changed], that an open file is not, or no longer, the one that
// was stamped. Path is what the error calls it. Other errors come from the file system.
func (s Stamp) Check(fd int, path string) error {
	now, err := OfFD(fd)
	if err != nil {
		return fmt.Errorf("check file %q: %w", path, err)
	}
	if what := s.Difference(now.Stamp); what != "" {
		return &Changed{Path: path, What: what, MayBeEqual: s.MayBeEqual(now.Stamp)}
	}
	return nil
}

// MayBeEqual reports whether a file that differs from what it was may have the same
// contents all the same: as after chmod, a new hard link, a move to another file
// system with all times, or where a file system gives out new inode numbers. Only
// the contents tell.
func (s Stamp) MayBeEqual(now Stamp) bool {
	return s != Stamp{} && now != Stamp{} && s.Size == now.Size && s.MTime == now.MTime
}

// The precision of times is the kernel's clock tick, 10 ms at most (CONFIG_HZ is 100 or more),
// and on some file systems one or two seconds; there times are whole seconds.
const (
	tick   = 20 * time.Millisecond
	second = 2 * time.Second
)

// Unsettled is how long, from now on, another write could leave the stamp unchanged; 0 if every
// later write changes it.
//
// It is wrong if the clock of a file server runs ahead of this machine's by more than a tick.
func (s Stamp) Unsettled(now time.Time) time.Duration {
	if s == (Stamp{}) {
		return 0
	}
	if s.CTime%int64(time.Second) != 0 {
		return unsettled(s.CTime, tick, now)
	}
	// By chance, or because the file system has no finer times, or no change time.
	grain := second
	if s.MTime%int64(time.Second) != 0 {
		grain = tick
	}
	return max(unsettled(s.CTime, second, now), unsettled(s.MTime, grain, now))
}

func unsettled(at int64, grain time.Duration, now time.Time) time.Duration {
	age := now.Sub(time.Unix(0, at))
	if age > grain || age < -tick {
		return 0
	}
	return grain - age + 1
}
