// SPDX-FileCopyrightText: The wcache authors
// SPDX-License-Identifier: MIT

package index

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"path/filepath"
	"slices"
	"time"
	"unicode/utf8"

	"golang.org/x/sys/unix"

	"github.com/wcache/wcache/internal/fd"
	"github.com/wcache/wcache/stamp"
	"github.com/wcache/wcache/weights"
	"github.com/wcache/wcache/weights/safetensors"
)

// fault says why something in a model directory is not known. Its error has the file's
// base name as path, because a folder may be moved.
type fault struct {
	name string // of the file, "" for the folder
	err  error
}

// unusable is a fault that lasts until the file changes.
func unusable(name, reason string, err error) *fault {
	return &fault{name, &weights.Unusable{Path: name, Reason: reason, Err: err}}
}

// in turns the fault into an error for a file in a directory.
func (e *fault) in(dir string) error {
	path := filepath.Join(dir, e.name)
	var bad *weights.Unusable
	var half *weights.Unfinished
	switch {
	case errors.As(e.err, &bad):
		return &weights.Unusable{Path: path, Reason: bad.Reason, Err: bad.Err}
	case errors.As(e.err, &half):
		return &weights.Unfinished{Path: path, Reason: half.Reason, Err: half.Err}
	}
	return fmt.Errorf("read weights %q: %w", path, e.err)
}

func (e *fault) same(o *fault) bool {
	return (e == nil) == (o == nil) && (e == nil || e.name == o.name && e.err.Error() == o.err.Error())
}

// lasts reports whether the fault stays while the file is the same.
func (e *fault) lasts() bool {
	var bad *weights.Unusable
	return errors.As(e.err, &bad)
}

// makeModel makes a model of the located files, and of the known files that were not
// looked at. Without weights there is no model. It returns false if it needs files that
// were not located.
func (rd *reading) makeModel() bool {
	rd.model = nil
	m := &model{files: make(map[string]*file), cut: rd.cut}
	if !rd.whole {
		for name, f := range rd.before.files {
			if _, ok := rd.looked[name]; !ok {
				m.files[name] = f
			}
		}
	}
	for name, at := range rd.located {
		m.files[name] = rd.file(name, at)
	}
	var all []string
	for name := range m.files {
		if weights.IsWeights(name) {
			all = append(all, name)
		}
	}
	if len(all) == 0 {
		return true
	}
	slices.Sort(all)
	rd.model = m
	return rd.b.r.x.o.Once || rd.hash(m, all)
}

// file stamps a file, and asks the kernel to report its changes from then on. Its
// contents are known if they were known before.
func (rd *reading) file(name string, at located) *file {
	if at.err != nil {
		return rd.lost(name, at, at.err)
	}
	var old *file
	if rd.before != nil {
		old = rd.before.files[name]
	}
	if _, dirty := rd.dirty[name]; dirty {
		old = nil
	}
	regular, sys := at.info.Mode.IsRegular(), rd.b.r.sys
	watching := regular && at.in.kind == local
	if old != nil && old.keeps(at.info.Stamp) && (old.watch != 0 || !watching) {
		rd.depend(name, old.watch, "", true)
		return old
	}
	f := &file{stamp: at.info.Stamp}
	if watching {
		open, err := sys.open(at.in.dir.Int(), at.base, unix.O_PATH|unix.O_NOFOLLOW)
		if err != nil {
			return rd.lost(name, at, err)
		}
		defer sys.close(open)
		rd.watchFile(name, f, open)
		info, err := sys.stat(open.Int(), "")
		if err != nil {
			return rd.lost(name, at, err)
		}
		f.stamp, regular = info.Stamp, info.Mode.IsRegular()
	}
	if !regular { // what happens inside a folder doesn't count
		f.stamp = stamp.Stamp{Inode: f.stamp.Inode, Device: f.stamp.Device, Mount: f.stamp.Mount}
	}
	f.settled = f.stamp.Unsettled(time.Now()) == 0
	switch {
	case !utf8.ValidString(name):
		//diag files
		// The engine computes a hash of file names and fails at this one. Rename the file.
		f.err = unusable(name, "has a name that is not UTF-8, which vLLM can't hash; rename it", nil)
	case !regular:
		//diag files
		// A folder, pipe or device has a name that ends in `.safetensors`. Move it out of the model
		// directory.
		f.err = unusable(name, "is not a regular file; move it out of the model directory", nil)
	case old != nil && old.keeps(f.stamp):
		f.known, f.digest, f.names, f.err = old.known, old.digest, old.names, old.err
	}
	return f
}

// keeps reports whether the known contents, or the fault, are still those of a file with
// this stamp.
func (f *file) keeps(now stamp.Stamp) bool {
	return f.stamp == now && f.settled && (f.err == nil || f.err.lasts())
}

// lost makes the entry of a file that can't be reached.
func (rd *reading) lost(name string, at located, err error) *file {
	if errors.Is(err, fs.ErrNotExist) && at.text != "" {
		return &file{err: unusable(name, fmt.Sprintf("is a symlink to %q, which does not exist; fetch the model again", at.text), err)}
	}
	return &file{err: &fault{name, err}}
}

// watchFile asks the kernel to report a file's changes. A file that can't be read isn't
// watched; its folder's watch reports when that changes.
func (rd *reading) watchFile(name string, f *file, open *fd.FD) {
	wd, err := rd.watch(open, fileMask)
	switch {
	case err == nil:
		f.watch = wd
		rd.depend(name, wd, "", true)
	case !errors.Is(err, unix.EACCES):
		rd.unseen(&rd.here, err.Error())
	}
}

// hash finds the names that the hash covers and reads the unknown headers. If it finds
// no fault, it computes the hashes of the directory. It returns false if it needs files
// that were not located.
func (rd *reading) hash(m *model, all []string) bool {
	var against *fault
	m.covered, against = rd.covered(m, all)
	names := slices.DeleteFunc(slices.Clone(m.covered), func(name string) bool { return m.files[name] == nil })
	if m.covered == nil {
		names = all
	}
	unknown := slices.DeleteFunc(slices.Clone(names), func(name string) bool { f := m.files[name]; return f.known || f.err != nil })
	here := func(name string) bool { _, ok := rd.located[name]; return ok }
	old := rd.before
	if against != nil || old != nil && old.md5 != "" && slices.Equal(old.covered, m.covered) {
		if slices.ContainsFunc(unknown, func(name string) bool { return !here(name) }) {
			return false
		}
		_ = rd.headers(m, unknown, newSums()) // m notes the headers that could not be read
		if against != nil {
			m.err = against
			return true
		}
		if maps.Equal(old.spec(), m.digests()) {
			m.md5, m.sha256 = old.md5, old.sha256
			return true
		}
	}
	if !rd.whole {
		return false
	}
	sums := newSums()
	if m.err = rd.headers(m, names, sums); m.err == nil {
		m.md5, m.sha256 = sums.hex()
	}
	return true
}

// headers adds headers to sums, by name. It returns the fault of the first header that
// can't be read.
func (rd *reading) headers(m *model, names []string, s sums) (first *fault) {
	for _, name := range names {
		f := m.files[name]
		if f.err == nil {
			g := *f
			g.err = rd.contents(name, f, func(r readerAt) error {
				var err error
				g.digest, err = s.header(r, name, f.stamp.Size, rd.b.r.buf)
				return err
			})
			if g.known = g.err == nil; !g.known {
				g.digest = digest{}
			}
			f = &g
			m.files[name] = f
		}
		if first == nil {
			first = f.err
		}
	}
	return first
}

// digests gives the header digests of the files that the hash covers.
func (m *model) digests() spec {
	s := make(spec, len(m.covered))
	for _, name := range m.covered {
		if f := m.files[name]; f != nil && f.known {
			s[name] = f.digest
		}
	}
	return s
}

// covered gives the names that the hash covers, nil if that isn't known, and the fault
// that makes the hash impossible.
func (rd *reading) covered(m *model, all []string) ([]string, *fault) {
	index := m.files[weights.ShardIndexName]
	switch {
	case m.cut:
		return nil, unusable("", "has more files than are looked at; remove what is not part of the model", nil)
	case index == nil:
		return all, nil
	case index.err == nil && !index.known:
		i := *index
		i.names, i.err = rd.shards(index)
		i.known = i.err == nil
		index = &i
		m.files[weights.ShardIndexName] = index
	}
	if index.err != nil {
		return nil, index.err
	}
	missing, err := weights.Covered(weights.ShardIndexName, index.names, all)
	switch {
	case err != nil:
		return index.names, &fault{weights.ShardIndexName, err}
	case len(missing) > 0:
		reason := fmt.Sprintf("unfinished snapshot: %d of %d shards are missing, such as %q; fetch the model again", len(missing), len(index.names), missing[0])
		return index.names, unusable(weights.ShardIndexName, reason, fs.ErrNotExist)
	}
	return index.names, nil
}

// A shard index of largeIndex bytes or more waits until few others are in memory.
const (
	largeIndex = 1 << 20
	largeSlots = 2
)

// shards reads the shard index.
func (rd *reading) shards(f *file) (names []string, e *fault) {
	const name = weights.ShardIndexName
	if f.stamp.Size > weights.MaxShardIndex {
		return nil, unusable(name, fmt.Sprintf("is over the limit of %d bytes", weights.MaxShardIndex), nil)
	}
	if f.stamp.Size > largeIndex {
		select {
		case rd.b.r.x.large <- struct{}{}:
			defer func() { <-rd.b.r.x.large }()
		case <-time.After(rd.b.r.x.o.HungAfter): // the readers of other indexes may hang
			rd.unseen(&rd.here, "too many large files are being read")
			return nil, &fault{name, errors.New("too many large files are being read")}
		}
	}
	e = rd.contents(name, f, func(r readerAt) error {
		b := make([]byte, f.stamp.Size)
		if _, err := r.ReadAt(b, 0); err != nil {
			return err
		}
		var err error
		if names, err = weights.ParseShardIndex(b); err != nil {
			return &weights.Unusable{Path: name, Reason: err.Error() + "; fetch it again"}
		}
		return nil
	})
	return names, e
}

// contents reads a file that was located and must not change meanwhile.
func (rd *reading) contents(name string, f *file, read func(readerAt) error) *fault {
	at, sys := rd.located[name], rd.b.r.sys
	open, err := sys.open(at.in.dir.Int(), at.base, unix.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK|unix.O_NOCTTY)
	if err != nil {
		return rd.unreadable(name, err)
	}
	defer sys.close(open)
	same := func() error {
		info, err := sys.stat(open.Int(), "")
		if err == nil && f.stamp != info.Stamp {
			err = errWritten
		}
		return err
	}
	r := readerAt{sys, open.Int()}
	if err = same(); err == nil {
		if err = read(r); err == nil {
			err = same()
		}
	}
	var format *safetensors.FormatError
	var bad *weights.Unusable
	switch {
	case err == nil:
		return nil
	case errors.As(err, &bad):
		return &fault{name, err}
	case errors.As(err, &format):
		begin := make([]byte, 512)
		n, _ := r.ReadAt(begin, 0) // the bytes only help to explain the error
		return &fault{name, weights.Misread(name, begin[:n], f.stamp, err)}
	}
	return rd.unreadable(name, err)
}

var errWritten = errors.New("it is being written")

// unreadable is a fault that may pass. The kernel reports a change of permissions or
// contents, and no other cause.
func (rd *reading) unreadable(name string, err error) *fault {
	if !errors.Is(err, fs.ErrPermission) && !errors.Is(err, errWritten) {
		rd.unseen(&rd.here, fmt.Sprintf("%s could not be read: %v", name, err))
	}
	return &fault{name, err}
}
