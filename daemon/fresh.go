// SPDX-FileCopyrightText: The wcache authors
// SPDX-License-Identifier: MIT

package daemon

import (
	"context"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/wcache/wcache/config"
	"github.com/wcache/wcache/fingerprint"
	"github.com/wcache/wcache/manifest"
	"github.com/wcache/wcache/resolve"
	"github.com/wcache/wcache/weights"
)

// fresh reports why an entry is not to be served any more: its files are not what
// was loaded, or its key means another directory now.
func (s *Server) fresh(e manifest.Entry) error {
	if device := s.device(s.configuration()); e.Device != device {
		return fmt.Errorf("handles in wcache.toml ask for memory of %s, it is of %s", device, e.Device)
	}
	r := weights.Record{Path: e.Dir, Indexed: e.Indexed}
	for _, f := range e.Files {
		r.Files = append(r.Files, weights.Stamp{Name: f.Name, Size: f.Size, MTime: f.MTime.UnixNano(), Inode: f.Inode, Used: f.Used})
	}
	if err := r.Stale(); err != nil {
		return err
	}
	return s.meant(e)
}

// meant reports whether a key may mean another directory than it did at the load:
// one with the same headers has come or has changed, or the pins have. Only then
// the key is resolved again, which may compare weights.
func (s *Server) meant(e manifest.Entry) error {
	c := s.configuration()
	found := s.candidates(c, e.Key)
	s.mu.Lock()
	before, known := s.decided[e.ID]
	s.mu.Unlock()
	if found == "" || known && found == before {
		return nil
	}
	limit := time.Duration(c.LoadTimeout)
	ctx, cancel := context.WithTimeoutCause(s.ctx, limit, &tooSlow{limit})
	defer cancel()
	dir, err := resolve.Directory(ctx, s.resolving(c), e.Key)
	switch {
	case err != nil:
		return err
	case !resolve.SameDir(dir.Path, e.Dir):
		return fmt.Errorf("its key means %s now", dir.Path)
	}
	s.decide(e.Key, found)
	return nil
}

func (s *Server) resolving(c config.Config) resolve.Options {
	return resolve.Options{Index: s.o.Index, Roots: c.Roots, Env: s.o.Env, Pins: c.Pins, Assume: c.Assume, CUDA: s.o.GPU && !s.o.AMD}
}

// maxDecided is more than the keys that a GPU has room for. What is forgotten is
// resolved again.
const maxDecided = 1000

// decide remembers what a key was resolved by.
func (s *Server) decide(key fingerprint.Key, found string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.decided) >= maxDecided {
		clear(s.decided)
	}
	s.decided[key.ID()] = found
}

// candidates is a text that changes when a checkpoint hash may come to mean another
// directory: the pins, the directories that have it and, where there are several,
// their files. It is empty where no directory has it, and for a checkpoint that is
// no hash: that names its directory.
func (s *Server) candidates(c config.Config, key fingerprint.Key) string {
	dirs, err := s.o.Index.Lookup(key.Str("checkpoint"))
	if err != nil || len(dirs) == 0 {
		return ""
	}
	var b strings.Builder
	fmt.Fprintf(&b, "%q %q", c.Pins, dirs)
	if len(dirs) == 1 {
		return b.String()
	}
	for _, dir := range dirs {
		list, err := os.ReadDir(dir)
		if err != nil {
			fmt.Fprintf(&b, " %v", err)
		}
		for _, f := range list {
			if name := f.Name(); strings.HasSuffix(name, ".safetensors") || strings.HasSuffix(name, ".json") {
				st, err := os.Stat(filepath.Join(dir, name))
				if err != nil {
					fmt.Fprintf(&b, " %v", err)
					continue
				}
				fmt.Fprintf(&b, " %q %d %d %d", name, st.Size(), st.ModTime().UnixNano(), inode(st))
			}
		}
	}
	return b.String()
}

func inode(st fs.FileInfo) uint64 { return st.Sys().(*syscall.Stat_t).Ino } // what os.Stat gives on Linux

// record notes the files of a target's directory, as they were when it was read.
func record(r weights.Record) []manifest.File {
	var files []manifest.File
	for _, f := range r.Files {
		files = append(files, manifest.File{Name: f.Name, Size: f.Size, MTime: time.Unix(0, f.MTime).UTC(), Inode: f.Inode, Used: f.Used})
	}
	return files
}
