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
)

// stamp tells whether a file is still the one it was; the zero stamp is that of a
// symlink to nothing. Devices are left out: their numbers may change when a file
// system is mounted again.
type stamp struct {
	Size  int64  `json:"size"`  // bytes
	MTime int64  `json:"mtime"` // nanoseconds since 1970
	Inode uint64 `json:"inode"`
}

func stampOf(info fs.FileInfo) stamp {
	return stamp{Size: info.Size(), MTime: info.ModTime().UnixNano(), Inode: stat(info).Ino}
}

func device(info fs.FileInfo) uint64 { return stat(info).Dev }

func stat(info fs.FileInfo) *syscall.Stat_t { return info.Sys().(*syscall.Stat_t) } // what os.Stat gives on Linux

// survey stamps each file of a directory that can have a part in what vLLM loads.
func survey(dir string) (map[string]stamp, error) {
	f, err := os.Open(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, &Unusable{Path: dir, Reason: "does not exist", Err: err}
	}
	if err != nil {
		return nil, fmt.Errorf("open model directory: %w", err)
	}
	names, err := f.Readdirnames(-1)
	_ = f.Close() // nothing was written
	if errors.Is(err, syscall.ENOTDIR) {
		return nil, &Unusable{Path: dir, Reason: "is a file; give the directory that it is in", Err: err}
	}
	if err != nil {
		return nil, fmt.Errorf("list model directory: %w", err)
	}
	have := make(map[string]stamp)
	for _, name := range names {
		if !isWeights(name) && name != configName && name != indexName && name != consolidatedIndexName {
			continue
		}
		path := filepath.Join(dir, name)
		if !utf8.ValidString(name) {
			return nil, &Unusable{Path: path, Reason: "has a name that is not UTF-8, which vLLM can't hash; rename it"}
		}
		info, err := os.Stat(path)
		switch {
		case err == nil:
			have[name] = stampOf(info)
		case errors.Is(err, fs.ErrNotExist):
			have[name] = stamp{}
		default:
			return nil, fmt.Errorf("survey model directory: %w", err)
		}
	}
	return have, nil
}

// Time stamps have the grain of the kernel's clock tick, 10 ms at most (CONFIG_HZ
// is 100 or more), and in some file systems of one or two seconds; then they are
// whole seconds.
const (
	tick   = 20 * time.Millisecond
	second = 2 * time.Second
)

// settle surveys a directory when no file is so fresh that another write could
// leave the same stamp. It waits for that, up to two seconds a try, and gives up
// with a [*Changed] on a file that is being written all the time.
//
// A clock of a file server that runs ahead of ours by more than a tick defeats it.
func settle(dir string) (map[string]stamp, error) {
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
			if w := unsettled(have[name].MTime, now); w > wait {
				wait, fresh = w, name
			}
		}
		if wait == 0 {
			return have, nil
		}
		if try == tries {
			return nil, &Changed{Path: filepath.Join(dir, fresh), What: "is being written"}
		}
		time.Sleep(wait)
	}
}

// unsettled is for how long from now on a write could leave the given time.
func unsettled(mtime int64, now time.Time) time.Duration {
	grain := tick
	if mtime%int64(time.Second) == 0 {
		grain = second
	}
	age := now.Sub(time.Unix(0, mtime))
	if age > grain || age < -tick {
		return 0
	}
	return grain - age + 1
}

// Changed is the error for a file that isn't any more what it was when it was
// read. Reading the directory again may help.
type Changed struct {
	Path string
	What string // such as "is gone"
}

func (e *Changed) Error() string { return fmt.Sprintf("check file %q: %s", e.Path, e.What) }

// Stale reports, as a [*Changed], the first file by name that would make Open give
// another Dir now: one that was written, replaced, removed, or has come. It looks
// at names, sizes, times and inodes alone, so it is cheap enough for each request;
// whoever writes a file and sets its time back deceives it.
func (d *Dir) Stale() error {
	now, err := survey(d.Path)
	var unusable *Unusable
	if errors.As(err, &unusable) && errors.Is(err, fs.ErrNotExist) {
		return &Changed{Path: d.Path, What: "is gone"}
	}
	if err != nil {
		return err
	}
	for _, name := range d.used {
		if what := difference(d.have[name], now[name]); what != "" {
			return &Changed{Path: filepath.Join(d.Path, name), What: what}
		}
	}
	for _, name := range slices.Sorted(maps.Keys(now)) {
		if _, ok := d.have[name]; !ok && (!d.indexed || !isWeights(name) || isConsolidated(name)) {
			return &Changed{Path: filepath.Join(d.Path, name), What: "is new"}
		}
	}
	return nil
}

// difference says how a file has changed, "" if it hasn't.
func difference(was, is stamp) string {
	switch {
	case was == is:
		return ""
	case is == stamp{}:
		return "is gone"
	case was.Size != is.Size:
		return fmt.Sprintf("had %d bytes, has %d", was.Size, is.Size)
	case was.Inode != is.Inode:
		return "was replaced"
	default:
		return "was written"
	}
}

// openSame opens a file that a survey has seen, if it is still the same.
func openSame(path string, want stamp) (*os.File, fs.FileInfo, error) {
	info, err := os.Stat(path)
	if err == nil && !info.Mode().IsRegular() { // opening a pipe would block
		return nil, nil, &Unusable{Path: path, Reason: "is not a regular file; move it out of the model directory"}
	}
	f, err := os.Open(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil, &Changed{Path: path, What: "is gone"}
	}
	if err != nil {
		return nil, nil, fmt.Errorf("open weights: %w", err)
	}
	if info, err = unchanged(f, path, want); err != nil {
		_ = f.Close() // nothing was written
		return nil, nil, err
	}
	return f, info, nil
}

// unchanged makes sure that an open file is the one that a survey has seen.
func unchanged(f *os.File, path string, want stamp) (fs.FileInfo, error) {
	info, err := f.Stat()
	if err != nil {
		return nil, fmt.Errorf("stat weights: %w", err)
	}
	if what := difference(want, stampOf(info)); what != "" {
		return nil, &Changed{Path: path, What: what}
	}
	return info, nil
}
