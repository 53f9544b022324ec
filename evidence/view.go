// SPDX-FileCopyrightText: The wcache authors
// SPDX-License-Identifier: MIT

package evidence

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/wcache/wcache/internal/fd"
	"github.com/wcache/wcache/weights"
)

// view is the file system that another process sees: from its root, in its mount
// namespace. It is a [weights.Files].
type view struct {
	process process
	root    *fd.FD
	ours    bool // this process sees the same
}

var _ weights.Files = (*view)(nil)

// view opens a view. The caller closes it.
func (p process) view() (*view, error) {
	n, err := unix.Open(procPath(p.pid, "root"), unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, p.unreadable("root", err)
	}
	v := &view{process: p}
	if v.root, err = fd.New(n); err != nil {
		return nil, err
	}
	if err = p.alive(); err == nil {
		v.ours, err = p.looksLike(process{pid: os.Getpid()})
	}
	if err != nil {
		_ = v.close()
		return nil, err
	}
	return v, nil
}

func (v *view) close() error { return v.root.Close() }

// Stat follows links as the process would.
func (v *view) Stat(path string) (fs.FileInfo, error) {
	f, err := v.open(path, unix.O_PATH)
	if err != nil {
		return nil, err
	}
	defer func() { _ = f.Close() }() // an O_PATH descriptor has no data to lose
	return f.Stat()
}

// Open opens for reading, without waiting for the writer of a pipe.
func (v *view) Open(path string) (*os.File, error) {
	return v.open(path, unix.O_RDONLY|unix.O_NONBLOCK|unix.O_NOCTTY)
}

// open resolves links and ".." below the process's root, absolute ones too. The links of
// /proc that leave the root without a path fail.
func (v *view) open(path string, flags uint64) (*os.File, error) {
	how := unix.OpenHow{Flags: flags | unix.O_CLOEXEC, Resolve: unix.RESOLVE_IN_ROOT | unix.RESOLVE_NO_MAGICLINKS}
	const tries = 8 // EAGAIN: something was renamed meanwhile, so that ".." might lead out
	var n int
	var err error
	for range tries {
		n, err = unix.Openat2(v.root.Int(), path, &how)
		if err != unix.EAGAIN && err != unix.EINTR {
			break
		}
	}
	if err != nil {
		return nil, &fs.PathError{Op: "open", Path: path, Err: err}
	}
	return os.NewFile(uintptr(n), path), nil
}

// read reads a regular file of at most limit bytes. changed is the change time of its inode.
func (v *view) read(path string, limit int64) (text []byte, changed time.Time, err error) {
	f, err := v.Open(path)
	if err != nil {
		return nil, changed, err
	}
	defer func() { _ = f.Close() }() // nothing was written
	info, err := f.Stat()
	if err != nil {
		return nil, changed, err
	}
	if !info.Mode().IsRegular() {
		return nil, changed, &fs.PathError{Op: "read", Path: path, Err: errors.New("isn't a regular file")}
	}
	text, err = io.ReadAll(io.LimitReader(f, limit+1))
	if err == nil && int64(len(text)) > limit {
		err = &fs.PathError{Op: "read", Path: path, Err: fmt.Errorf("is over %d bytes long", limit)}
	}
	return text, changeTime(info), err
}

// looksLike reports whether two processes have one mount namespace and one root.
func (p process) looksLike(other process) (bool, error) {
	for _, name := range []string{"ns/mnt", "root"} {
		one, err := p.link(name)
		if err != nil {
			return false, err
		}
		two, err := other.link(name)
		if err != nil || one != two {
			return false, err
		}
	}
	// Of two mounts at one path, one covers the other.
	one, err := os.Stat(procPath(p.pid, "root") + "/")
	if err != nil {
		return false, p.unreadable("root", err)
	}
	two, err := os.Stat(procPath(other.pid, "root") + "/")
	return err == nil && os.SameFile(one, two), other.unreadable("root", err)
}

// sameView says why the paths of two processes mean different files, "" if they mean the
// same: the engine opens the paths that the other process was given.
func sameView(engine, told process) (why string, err error) {
	if engine.pid == told.pid {
		return "", nil
	}
	same, err := engine.looksLike(told)
	if err != nil {
		return "", err
	}
	if !same {
		return fmt.Sprintf("processes %d and %d have different roots or mount namespaces", engine.pid, told.pid), nil
	}
	one, err := engine.link("cwd")
	if err != nil {
		return "", err
	}
	two, err := told.link("cwd")
	if err != nil {
		return "", err
	}
	if one != two {
		return fmt.Sprintf("processes %d and %d have different working directories", engine.pid, told.pid), nil
	}
	return "", nil
}

// cwd is a process's working directory as the process sees it. The kernel gives the path
// from the root of the mount namespace, or from here.
func (p process) cwd() (string, error) {
	cwd, err := p.link("cwd")
	if err != nil {
		return "", err
	}
	root, err := p.link("root")
	if err != nil {
		return "", err
	}
	return below(root, cwd), nil
}

// below is a path relative to a root that lies on it, "" if it doesn't lie on it.
func below(root, dir string) string {
	if root == "/" {
		return dir
	}
	if rest, ok := strings.CutPrefix(dir, root); ok && (rest == "" || rest[0] == '/') {
		return path.Clean("/" + rest)
	}
	return ""
}
