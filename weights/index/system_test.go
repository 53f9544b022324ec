// SPDX-FileCopyrightText: The wcache authors
// SPDX-License-Identifier: MIT

package index

import (
	"encoding/binary"
	"maps"
	"os"
	"runtime"
	"strings"
	"sync"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/wcache/wcache/internal/fd"
	"github.com/wcache/wcache/stamp"
)

// gate is a system whose calls on paths that contain a word do not return while the gate
// is shut.
type gate struct {
	linux
	word    string
	mu      sync.Mutex
	shut    chan struct{} // nil while it is open
	waiting int
}

func (g *gate) hold() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.shut = make(chan struct{})
}

func (g *gate) release() {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.shut != nil {
		close(g.shut)
		g.shut = nil
	}
}

// held is how many calls are blocked now.
func (g *gate) held() int {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.waiting
}

func (g *gate) pass(name string) {
	if !strings.Contains(name, g.word) {
		return
	}
	g.mu.Lock()
	shut := g.shut
	if shut != nil {
		g.waiting++
	}
	g.mu.Unlock()
	if shut != nil {
		<-shut
		g.mu.Lock()
		g.waiting--
		g.mu.Unlock()
	}
}

func (g *gate) open(dir int, name string, flags int) (*fd.FD, error) {
	g.pass(name)
	return g.linux.open(dir, name, flags)
}

func (g *gate) stat(dir int, name string) (stamp.Info, error) {
	g.pass(name)
	return g.linux.stat(dir, name)
}

// counted is a system that counts how often contents are read, and of which files.
type counted struct {
	linux
	mu    sync.Mutex
	reads int
	files map[uint64]bool // by inode
}

func (c *counted) read(file int, b []byte, off int64) (int, error) {
	info, err := stamp.OfFD(file)
	if err != nil {
		return 0, err
	}
	c.mu.Lock()
	c.reads++
	if c.files == nil {
		c.files = make(map[uint64]bool)
	}
	c.files[info.Inode] = true
	c.mu.Unlock()
	return c.linux.read(file, b, off)
}

func (c *counted) count() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.reads
}

// inodes lists the files that were read.
func (c *counted) inodes() map[uint64]bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return maps.Clone(c.files)
}

// stranger is a user who owns nothing.
const stranger = 65534

// unprivileged is a system as a user without rights sees it, for tests that run as root.
type unprivileged struct{ linux }

// as calls do with a stranger's rights on files, which are a property of the thread.
func as(do func()) {
	if os.Geteuid() != 0 {
		do()
		return
	}
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	_ = unix.Setfsuid(stranger) // it doesn't report failure; tests notice
	do()
	_ = unix.Setfsuid(0)
}

func (u unprivileged) open(dir int, name string, flags int) (f *fd.FD, err error) {
	as(func() { f, err = u.linux.open(dir, name, flags) })
	return f, err
}

func (u unprivileged) stat(dir int, name string) (i stamp.Info, err error) {
	as(func() { i, err = u.linux.stat(dir, name) })
	return i, err
}

func unprivilegedWatch(queue int, path string, mask uint32) (wd int, err error) {
	as(func() { wd, err = unix.InotifyAddWatch(queue, path, mask) })
	return wd, err
}

// remote is a system on which every file system counts as a file server.
type remote struct{ linux }

func (remote) kind(int) (kind, error) { return foreign, nil }

// unsteady is a file server that gives its folders new numbers each time.
type unsteady struct {
	remote
	mu   sync.Mutex
	next uint64
}

func (u *unsteady) stat(dir int, name string) (stamp.Info, error) {
	i, err := u.remote.stat(dir, name)
	if err == nil && i.Mode.IsDir() {
		u.mu.Lock()
		u.next++
		i.Inode = 1<<40 + u.next
		u.mu.Unlock()
	}
	return i, err
}

func TestKindOf(t *testing.T) {
	for magic, want := range map[int64]kind{
		unix.EXT4_SUPER_MAGIC: local, unix.XFS_SUPER_MAGIC: local, unix.BTRFS_SUPER_MAGIC: local, unix.TMPFS_MAGIC: local, unix.OVERLAYFS_SUPER_MAGIC: local,
		unix.RAMFS_MAGIC: local, unix.F2FS_SUPER_MAGIC: local, unix.SQUASHFS_MAGIC: local, unix.ISOFS_SUPER_MAGIC: local, unix.UDF_SUPER_MAGIC: local,
		unix.MSDOS_SUPER_MAGIC: local, unix.EXFAT_SUPER_MAGIC: local, unix.EROFS_SUPER_MAGIC_V1: local,
		unix.NFS_SUPER_MAGIC: foreign, unix.FUSE_SUPER_MAGIC: foreign, unix.CIFS_SUPER_MAGIC: foreign, unix.SMB2_SUPER_MAGIC: foreign, unix.CEPH_SUPER_MAGIC: foreign,
		unix.V9FS_MAGIC: foreign, unix.OCFS2_SUPER_MAGIC: foreign, 0x0BD00BD0: foreign, // the last is Lustre
		unix.PROC_SUPER_MAGIC: pseudo, unix.SYSFS_MAGIC: pseudo, unix.CGROUP_SUPER_MAGIC: pseudo, unix.CGROUP2_SUPER_MAGIC: pseudo, unix.DEBUGFS_MAGIC: pseudo,
		unix.TRACEFS_MAGIC: pseudo, unix.SECURITYFS_MAGIC: pseudo, unix.BPF_FS_MAGIC: pseudo, unix.PSTOREFS_MAGIC: pseudo, unix.EFIVARFS_MAGIC: pseudo,
		unix.DEVPTS_SUPER_MAGIC: pseudo, unix.SELINUX_MAGIC: pseudo, unix.BINFMTFS_MAGIC: pseudo,
	} {
		if got := kindOf(magic); got != want {
			t.Errorf("%#x: got %d, want %d", magic, got, want)
		}
	}
}

func FuzzEntries(f *testing.F) {
	entry := func(name string) []byte {
		b := make([]byte, 19, 64)
		b[18] = unix.DT_DIR
		b = append(append(b, name...), 0)
		binary.NativeEndian.PutUint16(b[16:], uint16(len(b)))
		return b
	}
	f.Add(append(entry("a"), entry("model.safetensors")...))
	f.Add([]byte{18: 4})
	f.Fuzz(func(t *testing.T, b []byte) {
		for len(b) > 0 {
			name, _, size, err := entryOf(b)
			if err != nil {
				return
			}
			if size <= 0 || size > len(b) || len(name) > size || strings.Contains(name, "\x00") {
				t.Fatalf("got %q of %d bytes, of %d", name, size, len(b))
			}
			b = b[size:]
		}
	})
}
