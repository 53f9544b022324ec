// SPDX-FileCopyrightText: The wcache authors
// SPDX-License-Identifier: MIT

package hungfs

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"syscall"

	"golang.org/x/sys/unix"
)

// serve answers requests until the file system is closed or unmounted.
func (f *FS) serve() error {
	buf := make([]byte, minRequest)
	for {
		select {
		case <-f.gate():
		case <-f.done:
			return nil
		}
		n, err := f.next(buf)
		switch {
		case f.closed() || errors.Is(err, unix.ENODEV): // the latter: unmounted by others
			return nil
		case errors.Is(err, unix.ENOENT) || errors.Is(err, unix.EINTR): // its caller has ended meanwhile
			continue
		case err != nil:
			return fmt.Errorf("read from /dev/fuse: %w", err)
		case n == 0: // hung
			continue
		}
		reply, err := f.answer(buf[:n])
		if err != nil {
			return err
		}
		if reply == nil {
			continue
		}
		if _, err := f.dev.Write(reply); err != nil && !f.closed() && !errors.Is(err, unix.ENOENT) {
			return fmt.Errorf("write to /dev/fuse: %w", err)
		}
	}
}

func (f *FS) closed() bool {
	select {
	case <-f.done:
		return true
	default:
		return false
	}
}

// probe is a file in the root, seen by its name only, that is opened once.
const probe = ".wcache-hungfs"

// settle brings about the requests POLL and FLUSH, which this server doesn't know
// (ENOSYS): having heard that, the kernel never sends them again. Else the runtime,
// which asks epoll(7) about each file that it opens, would wait for this server
// with the poller that the server itself waits by, and who is killed would wait
// for it with each file that it had open.
func (f *FS) settle() error {
	n, err := unix.Open(filepath.Join(f.dir, probe), unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("open the first file: %w", err)
	}
	_, err = unix.Poll([]unix.PollFd{{Fd: int32(n), Events: unix.POLLIN}}, 0)
	return errors.Join(err, unix.Close(n))
}

// next reads one request. It reads none, and gives 0, if the file system is hung
// when one comes: what has been read can't be killed any more.
func (f *FS) next(buf []byte) (n int, err error) {
	waited := f.raw.Read(func(fd uintptr) bool {
		f.mu.Lock()
		defer f.mu.Unlock()
		if !f.answers() {
			n, err = 0, nil
			return true
		}
		n, err = unix.Read(int(fd), buf)
		return err != unix.EAGAIN
	})
	if waited != nil {
		return 0, waited
	}
	return max(n, 0), err
}

// answer gives the reply to one request, nil where none is expected.
func (f *FS) answer(b []byte) ([]byte, error) {
	var h inHeader
	in := bytes.NewReader(b)
	if err := binary.Read(in, binary.NativeEndian, &h); err != nil || int(h.Len) != len(b) {
		return nil, fmt.Errorf("read request: %d bytes of %d", len(b), h.Len)
	}
	if h.Opcode == opForget || h.Opcode == opBatchForget || h.Opcode == opInterrupt {
		return nil, nil
	}
	body, err := f.do(h, in)
	out := outHeader{Unique: h.Unique}
	var data bytes.Buffer
	switch {
	case err != nil:
		out.Error = -int32(number(err))
	case body != nil:
		if err := binary.Write(&data, binary.NativeEndian, body); err != nil {
			return nil, fmt.Errorf("write reply: %w", err)
		}
	}
	out.Len = outHeaderSize + uint32(data.Len())
	reply, err := binary.Append(nil, binary.NativeEndian, out)
	return append(reply, data.Bytes()...), err
}

// number is the errno that an error of an fs.FS stands for.
func number(err error) unix.Errno {
	var n syscall.Errno
	switch {
	case errors.As(err, &n):
		return n
	case errors.Is(err, fs.ErrNotExist):
		return unix.ENOENT
	default:
		return unix.EIO
	}
}

// do carries out one request. The reply is what encoding/binary writes, or nil.
func (f *FS) do(h inHeader, in io.Reader) (any, error) {
	switch h.Opcode {
	case opInit:
		return initialize(in)
	case opDestroy, opRelease, opReleasedir:
		return nil, nil
	case opStatfs:
		return statfsOut{BlockSize: 4096, FragmentSize: 4096, NameLength: unix.NAME_MAX}, nil
	}
	name, err := f.name(h.Node)
	if err != nil {
		return nil, err
	}
	switch h.Opcode {
	case opGetattr:
		a, err := f.attr(name)
		return attrOut{Attr: a}, err
	case opLookup:
		return f.lookup(name, in)
	case opOpen, opOpendir:
		return openOut{}, nil
	case opReaddir, opRead:
		var r readIn
		if err := binary.Read(in, binary.NativeEndian, &r); err != nil {
			return nil, unix.EINVAL
		}
		if h.Opcode == opRead {
			return f.read(name, r)
		}
		return f.list(name, r)
	default:
		return nil, unix.ENOSYS
	}
}

// initialize agrees on the older of two versions.
func initialize(in io.Reader) (any, error) {
	var i initIn
	if err := binary.Read(in, binary.NativeEndian, &i); err != nil {
		return nil, unix.EINVAL
	}
	if i.Major != version || i.Minor < revision {
		return nil, unix.EPROTO
	}
	return initOut{Major: version, Minor: revision, MaxWrite: maxWrite, TimeGranularity: 1}, nil
}

func (f *FS) name(node uint64) (string, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if node < rootNode || node-rootNode >= uint64(len(f.names)) {
		return "", unix.ESTALE
	}
	return f.names[node-rootNode], nil
}

// node gives a path its number, which it keeps.
func (f *FS) node(name string) uint64 {
	f.mu.Lock()
	defer f.mu.Unlock()
	n, ok := f.nodes[name]
	if !ok {
		n = rootNode + uint64(len(f.names))
		f.names, f.nodes[name] = append(f.names, name), n
	}
	return n
}

func (f *FS) lookup(parent string, in io.Reader) (any, error) {
	b, err := io.ReadAll(in)
	if err != nil || len(b) == 0 {
		return nil, unix.EINVAL
	}
	name := path.Join(parent, string(b[:len(b)-1])) // less the NUL at its end
	a, err := f.attr(name)
	return entryOut{Node: a.Inode, Attr: a}, err
}

func (f *FS) attr(name string) (attr, error) {
	if name == probe {
		return attr{Inode: f.node(name), Links: 1, Mode: unix.S_IFREG | 0o400}, nil
	}
	info, err := fs.Stat(f.files, name)
	if err != nil {
		return attr{}, err
	}
	a := attr{
		Inode: f.node(name), Size: uint64(info.Size()), Blocks: uint64(info.Size()+511) / 512,
		Links: 1, Mode: uint32(info.Mode().Perm()), UID: uint32(os.Getuid()), GID: uint32(os.Getgid()), BlockSize: 4096,
	}
	switch {
	case info.IsDir():
		a.Mode |= unix.S_IFDIR
	case info.Mode().IsRegular():
		a.Mode |= unix.S_IFREG
	default:
		return attr{}, unix.ENOENT
	}
	if t := info.ModTime(); !t.IsZero() {
		seconds, ns := uint64(t.Unix()), uint32(t.Nanosecond())
		a.Atime, a.Mtime, a.Ctime = seconds, seconds, seconds
		a.AtimeNsec, a.MtimeNsec, a.CtimeNsec = ns, ns, ns
	}
	return a, nil
}

func (f *FS) read(name string, r readIn) (any, error) {
	b, err := fs.ReadFile(f.files, name)
	if err != nil {
		return nil, err
	}
	from := min(r.Offset, uint64(len(b)))
	return b[from:min(from+uint64(r.Size), uint64(len(b)))], nil
}

// list gives the entries of a directory from an offset on, which is the number of
// those before it, as many as fit.
func (f *FS) list(name string, r readIn) (any, error) {
	entries, err := fs.ReadDir(f.files, name)
	if err != nil {
		return nil, err
	}
	out := []byte{}
	for i := r.Offset; i < uint64(len(entries)); i++ {
		e := entries[i]
		kind := uint32(unix.S_IFREG >> 12)
		switch {
		case e.IsDir():
			kind = unix.S_IFDIR >> 12
		case !e.Type().IsRegular():
			continue
		}
		d := direntHeader{Inode: f.node(path.Join(name, e.Name())), Next: i + 1, Length: uint32(len(e.Name())), Type: kind}
		before := len(out)
		if out, err = binary.Append(out, binary.NativeEndian, d); err != nil {
			return nil, err
		}
		out = append(out, e.Name()...)
		for len(out)%8 != 0 {
			out = append(out, 0)
		}
		if len(out) > int(r.Size) {
			return out[:before], nil
		}
	}
	return out, nil
}
