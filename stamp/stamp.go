// SPDX-FileCopyrightText: The wcache authors
// SPDX-License-Identifier: MIT

// Package stamp tells whether a file is still the one that it was, by what the
// kernel knows of it: no contents are read.
package stamp

import (
	"errors"
	"fmt"
	"io/fs"
	"time"

	"golang.org/x/sys/unix"
)

// Stamp is a file as it was at one moment. The zero Stamp is that of a file that
// does not exist. It is plain data.
//
// The change time is what makes it sure: every write moves it, and no program can
// set it back. Size and modification time alone stay the same under "cp -p" over
// a file and under tar; the inode's number is used again after a removal.
type Stamp struct {
	Size   int64  // bytes
	MTime  int64  // of the last write, nanoseconds since 1970; programs can set it
	CTime  int64  // of the last write or change of attributes, nanoseconds since 1970; the kernel sets it
	Inode  uint64 // unique on its device at one moment
	Device uint64 // of the file system, as stat's st_dev
	// Mount is the kernel's number of the mount. From Linux 6.8 on it is never used
	// twice, so that another image that is mounted in the same place shows.
	Mount uint64
}

// mask is what a Stamp is made of. Kernels before 6.8 give no STATX_MNT_ID_UNIQUE,
// and some file systems no number of a mount at all.
const mask = unix.STATX_BASIC_STATS | unix.STATX_MNT_ID_UNIQUE | unix.STATX_MNT_ID

// Info is a Stamp with what else statx tells.
type Info struct {
	Stamp
	Mode fs.FileMode // type and permissions
	UID  uint32      // the owner
}

// Of stamps the file that a path leads to; links are followed. The error wraps
// that of the system call, such as fs.ErrNotExist.
func Of(path string) (Info, error) { return of(unix.AT_FDCWD, path, 0) }

// OfFD stamps an open file.
func OfFD(fd int) (Info, error) { return of(fd, "", unix.AT_EMPTY_PATH) }

// At stamps the entry of an open directory that has the given name; a symbolic link
// itself, and not what it leads to.
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

// SameFile reports whether two stamps are of one file, whatever its contents.
func (s Stamp) SameFile(other Stamp) bool {
	return s.Inode == other.Inode && s.Device == other.Device && s != Stamp{}
}

// Difference says how a file differs from what it was, "" where it doesn't.
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

// Times have the grain of the kernel's clock tick, 10 ms at most (CONFIG_HZ is 100
// or more), and in some file systems of one or two seconds; then they are whole
// seconds.
const (
	tick   = 20 * time.Millisecond
	second = 2 * time.Second
)

// Unsettled is for how long from now on another write could leave the same stamp:
// 0 where every later write shows.
//
// A file server's clock that runs ahead of this machine's by more than a tick
// defeats it.
func (s Stamp) Unsettled(now time.Time) time.Duration {
	if s == (Stamp{}) {
		return 0
	}
	if s.CTime%int64(time.Second) != 0 {
		return unsettled(s.CTime, tick, now)
	}
	// Either by chance, or the file system knows no finer time, or none of changes.
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
