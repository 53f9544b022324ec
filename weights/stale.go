// SPDX-FileCopyrightText: The wcache authors
// SPDX-License-Identifier: MIT

package weights

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"syscall"
	"time"
	"unicode/utf8"

	"github.com/wcache/wcache/stamp"
)

// survey stamps each file of a directory that can influence what vLLM loads; a
// symlink to nothing has the zero Stamp.
func survey(dir string) (map[string]stamp.Stamp, error) {
	f, err := os.Open(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, &Unusable{Path: dir, Reason: "does not exist", Err: err}
	}
	if err != nil {
		return nil, denied(dir, fmt.Errorf("open model directory: %w", err))
	}
	names, err := f.Readdirnames(-1)
	_ = f.Close() // nothing was written
	if errors.Is(err, syscall.ENOTDIR) {
		return nil, &Unusable{Path: dir, Reason: "is a file; give the directory that it is in", Err: err}
	}
	if err != nil {
		return nil, fmt.Errorf("list model directory: %w", err)
	}
	have := make(map[string]stamp.Stamp)
	for _, name := range names {
		if !Decides(name) {
			continue
		}
		path := filepath.Join(dir, name)
		if !utf8.ValidString(name) {
			return nil, &Unusable{Path: path, Reason: "has a name that is not UTF-8, which vLLM can't hash; rename it"}
		}
		info, err := stamp.Of(path)
		switch {
		case err == nil:
			have[name] = info.Stamp
		case errors.Is(err, fs.ErrNotExist):
			have[name] = stamp.Stamp{}
		default:
			return nil, denied(path, fmt.Errorf("survey model directory: %w", err))
		}
	}
	return have, nil
}

// settle surveys a directory when no file is so fresh that another write could
// leave the same stamp. It waits for that, up to two seconds a try, and gives up
// with a [*stamp.Changed] on a file that is being written all the time.
func settle(dir string) (map[string]stamp.Stamp, error) {
	const tries = 3
	for try := 1; ; try++ {
		have, err := survey(dir)
		if err != nil {
			return nil, err
		}
		now := time.Now()
		var wait time.Duration
		var fresh string
		for _, name := range slices.Sorted(maps.Keys(have)) {
			if w := have[name].Unsettled(now); w > wait {
				wait, fresh = w, name
			}
		}
		if wait == 0 {
			return have, nil
		}
		if try == tries {
			return nil, &stamp.Changed{Path: filepath.Join(dir, fresh), What: "is being written"}
		}
		time.Sleep(wait)
	}
}

// Stale reports, as a [*stamp.Changed], the first file by name that would make Open give
// another Dir now: one that was written, replaced, removed, or has come. Of files
// whose contents have certainly changed it is the first, if there are any. It looks
// at names and stamps alone, so it is cheap enough for each request.
func (d *Dir) Stale() error {
	now, err := survey(d.Path)
	var unusable *Unusable
	if errors.As(err, &unusable) && errors.Is(err, fs.ErrNotExist) {
		return &stamp.Changed{Path: d.Path, What: "is gone"}
	}
	if err != nil {
		return err
	}
	var touched *stamp.Changed
	for _, name := range d.used {
		was, is := d.have[name], now[name]
		what := was.Difference(is)
		switch {
		case what == "":
		case !was.MayBeEqual(is):
			return &stamp.Changed{Path: filepath.Join(d.Path, name), What: what}
		case touched == nil:
			touched = &stamp.Changed{Path: filepath.Join(d.Path, name), What: what, MayBeEqual: true}
		}
	}
	for _, name := range slices.Sorted(maps.Keys(now)) {
		if _, ok := d.have[name]; !ok && (!d.indexed || !IsWeights(name) || IsConsolidated(name)) {
			return &stamp.Changed{Path: filepath.Join(d.Path, name), What: "is new"}
		}
	}
	if touched != nil {
		return touched
	}
	return nil
}

// Open opens the file for reading, if it is still the one that it was. The error is
// a [*stamp.Changed] if it isn't. The caller owns it.
func (f *File) Open() (*os.File, error) { return openSame(f.Path, f.Stamp) }

// openSame opens a file that a survey has seen, if it is unchanged.
func openSame(path string, want stamp.Stamp) (*os.File, error) {
	info, err := stamp.Of(path)
	if err == nil && !info.Mode.IsRegular() { // opening a pipe would block
		return nil, &Unusable{Path: path, Reason: "is not a regular file; move it out of the model directory"}
	}
	f, err := os.Open(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, &stamp.Changed{Path: path, What: "is gone"}
	}
	if err != nil {
		return nil, denied(path, fmt.Errorf("open weights: %w", err))
	}
	if err = want.Check(int(f.Fd()), path); err != nil {
		_ = f.Close() // nothing was written
		return nil, err
	}
	return f, nil
}
