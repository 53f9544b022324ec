// SPDX-FileCopyrightText: The wcache authors
// SPDX-License-Identifier: MIT

package index

import (
	"errors"
	"fmt"
	"io/fs"
	"path"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/wcache/wcache/internal/fd"
	"github.com/wcache/wcache/stamp"
)

// place is an open folder on a path.
type place struct {
	dir   *fd.FD
	real  string // its path without links
	kind  kind
	watch int32 // 0 if its changes aren't reported
}

// step is the end of a path.
type step struct {
	info     stamp.Info // zero with an error
	at       place      // the folder that contains its last name
	base     string     // the last name, "" if the path ended with a folder
	real     string     // the path without links
	text     string     // the target text of a link
	err      error      // why it leads nowhere
	vanished bool       // the link is gone
}

// maxLinks is how many links one path may contain, as in the kernel.
const maxLinks = 40

// trail follows a path as the kernel does, and notes each name on the way as one that
// the entry depends on.
func (rd *reading) trail(entry string, from place, text string) step {
	sys := rd.b.r.sys
	at, err := rd.from(from, text)
	if err != nil {
		return step{err: err}
	}
	parts := strings.Split(text, "/")
	links := 0
	for len(parts) > 0 {
		part := parts[0]
		parts = parts[1:]
		if part == "" || part == "." {
			continue
		}
		rd.depend(entry, at.watch, "", false)
		if part != ".." {
			rd.depend(entry, at.watch, part, false)
		}
		info, err := sys.stat(at.dir.Int(), part)
		real := path.Join(at.real, part)
		if err != nil {
			return step{at: at, base: part, real: real, err: err}
		}
		last := !remain(parts)
		switch {
		case info.Mode.Type() == fs.ModeSymlink:
			if links++; links > maxLinks {
				return step{at: at, base: part, real: real, err: unix.ELOOP}
			}
			text, err := sys.readlink(at.dir.Int(), part)
			if err != nil {
				return step{at: at, base: part, real: real, err: err}
			}
			if at, err = rd.from(at, text); err != nil {
				return step{err: err}
			}
			parts = append(strings.Split(text, "/"), parts...)
		case info.Mode.IsDir() && last:
			return step{info: info, at: at, base: part, real: real}
		case info.Mode.IsDir():
			next, err := rd.open(at, part)
			if err != nil {
				return step{at: at, base: part, real: real, err: err}
			}
			at = next
		case !last:
			return step{at: at, base: part, real: real, err: unix.ENOTDIR}
		default:
			return step{info: info, at: at, base: part, real: real}
		}
	}
	rd.depend(entry, at.watch, "", false)
	info, err := sys.stat(at.dir.Int(), "")
	return step{info: info, at: at, real: at.real, err: err}
}

// remain reports whether a path goes on.
func remain(parts []string) bool {
	for _, p := range parts {
		if p != "" && p != "." {
			return true
		}
	}
	return false
}

// link follows a link in the folder. Most links of a snapshot go through the same
// folders, so those are followed once, as a route.
func (rd *reading) link(name string) step {
	text, err := rd.b.r.sys.readlink(rd.here.dir.Int(), name)
	if err != nil {
		return step{err: err, vanished: errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.EINVAL)} // EINVAL: something else has replaced it
	}
	dir, base := path.Split(text)
	if base == "" || base == "." || base == ".." {
		dir, base = text+"/", ""
	}
	if dir == "" {
		dir = "./"
	}
	if rd.via == nil {
		rd.via = make(map[string]string)
	}
	rd.via[name] = dir
	s, ok := rd.routes[dir]
	if !ok {
		rd.looked[dir] = struct{}{}
		if s = rd.trail(dir, rd.here, dir); s.err == nil && !s.info.Mode.IsDir() {
			s.err = unix.ENOTDIR
		}
		if s.err == nil && s.base != "" && base != "" {
			var at place
			if at, s.err = rd.open(s.at, s.base); s.err == nil {
				s.at, s.base, s.real = at, "", at.real
			}
		}
		rd.routes[dir] = s
		rd.reached(s.real)
	}
	if s.err == nil && base != "" {
		s = rd.trail(name, s.at, base)
		rd.reached(s.real)
	}
	s.text = text
	return s
}

// from is the folder in which a path, met in another folder, begins.
func (rd *reading) from(at place, text string) (place, error) {
	if !strings.HasPrefix(text, "/") {
		return at, nil
	}
	if rd.slash.dir == nil {
		dir, err := rd.b.r.sys.open(unix.AT_FDCWD, "/", unix.O_PATH|unix.O_DIRECTORY)
		if err != nil {
			return place{}, err
		}
		rd.opened = append(rd.opened, dir)
		rd.slash = place{dir: dir, real: "/"}
		rd.look(&rd.slash)
	}
	return rd.slash, nil
}

// open opens a folder in another one.
func (rd *reading) open(at place, name string) (place, error) {
	dir, err := rd.b.r.sys.open(at.dir.Int(), name, unix.O_PATH|unix.O_DIRECTORY|unix.O_NOFOLLOW)
	if err != nil {
		return place{}, err
	}
	rd.opened = append(rd.opened, dir)
	p := place{dir: dir, real: path.Join(at.real, name)}
	rd.look(&p)
	return p, nil
}

// look finds out which changes of a place can be watched.
func (rd *reading) look(p *place) {
	r := rd.b.r
	var err error
	if p.kind, err = r.sys.kind(p.dir.Int()); err != nil {
		p.kind = foreign
	}
	switch p.kind {
	case pseudo:
		if p != &rd.here {
			rd.unseen(p, "what is in it changes by itself")
		}
		return
	case foreign:
		rd.unseen(p, "its file system may be changed by other machines or programs")
		return
	}
	if p.watch, err = rd.watch(p.dir, folderMask); err != nil {
		rd.unseen(p, err.Error())
	}
}

// watch asks the kernel to report changes, at least until the reading ends.
func (rd *reading) watch(f *fd.FD, mask uint32) (int32, error) {
	wd, err := rd.b.r.x.watch(f, mask, rd.f)
	if err == nil {
		rd.watches = append(rd.watches, wd)
	}
	return wd, err
}

// unseen notes that changes may not be reported: in the folder, or in a place on the way
// to a link's target. The first reason stays.
func (rd *reading) unseen(p *place, why string) {
	if rd.blind != "" {
		return
	}
	rd.blind = why
	if p != &rd.here {
		rd.blind = fmt.Sprintf("on the way, %s: %s", p.real, why)
	}
}

// depend notes that an entry depends on a name in a watched folder, or on a watched file
// or folder itself. It is called before the entry is read, so that no change is missed.
func (rd *reading) depend(entry string, wd int32, on string, isFile bool) {
	if wd == 0 {
		return
	}
	h := hold{wd, on}
	for _, have := range rd.holds[entry] {
		if have == h {
			return
		}
	}
	rd.holds[entry] = append(rd.holds[entry], h)
	x := rd.b.r.x
	x.mu.Lock()
	defer x.mu.Unlock()
	x.depend(ref{rd.f, entry}, h, isFile)
}

// reached notes a path that the root's links lead to, to notice mounts there.
func (rd *reading) reached(real string) {
	r := rd.b.r
	r.x.mu.Lock()
	defer r.x.mu.Unlock()
	for _, known := range []string{r.path, r.real} {
		if known != "" && (real == known || strings.HasPrefix(real, known+"/")) {
			return
		}
	}
	if rd.f == r.top {
		r.real = real
	}
	if len(r.reach) < maxReach {
		r.reach[real] = struct{}{}
	} else {
		r.reach["/"] = struct{}{} // now any mount concerns the root
	}
}

// maxReach is how many paths outside of a root are tracked separately.
const maxReach = 10_000
