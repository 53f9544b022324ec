// SPDX-FileCopyrightText: The wcache authors
// SPDX-License-Identifier: MIT

// Package weights finds model directories and says which of their files vLLM
// loads. It reads configurations, indexes and headers; of the tensors' data it
// reads only what [SameContent] compares.
//
// The rules are vLLM's, releases 0.30 to 0.33: default_loader.py and
// weight_utils.py for what is loaded, weight_cache/protocol.py for what the
// checkpoint hash covers.
package weights

import (
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"hash"
	"io"
	"io/fs"
	"iter"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"sync"

	"github.com/wcache/wcache/stamp"
	"github.com/wcache/wcache/weights/hfconfig"
	"github.com/wcache/wcache/weights/safetensors"
)

// File is a safetensors file as it was when its header was read.
type File struct {
	Path        string // absolute; symlinks, as of a Hugging Face snapshot, are not resolved
	Base        string
	stamp.Stamp // of the file that a symlink leads to
	Header      *safetensors.Header
	SHA256      string // of the contents in hex, as the Hugging Face hub gave it; "" if it didn't
}

// Dir is a model directory as it was when it was opened. It holds no descriptor
// and is safe for concurrent use.
type Dir struct {
	Path    string // absolute
	Config  *hfconfig.Config
	Hashed  []*File  // what the checkpoint hash covers, by base name
	Load    []*File  // what vLLM loads, in its order; partly or wholly those of Hashed
	Ignored []string // base names of safetensors files that are there and not loaded

	have    map[string]stamp.Stamp // the survey that all of this rests on
	used    []string               // names in have whose change matters, sorted
	indexed bool                   // model.safetensors.index.json says which files count
	names   map[string]place
}

// place is where Find finds a tensor: indexes into Load and its Header.Tensors.
type place struct{ file, tensor int }

// Unusable is the error for a directory that can't be loaded before somebody has
// changed it. Asking again gives the same answer.
type Unusable struct {
	Path   string // the file or directory at fault
	Reason string // what is wrong, and what to do
	Err    error  // the cause where it has a type, such as a [*safetensors.FormatError]
}

func (e *Unusable) Error() string { return fmt.Sprintf("read weights %q: %s", e.Path, e.Reason) }

func (e *Unusable) Unwrap() error { return e.Err }

// headerReaders is how many headers are read at once, which helps where a file
// system answers slowly.
const headerReaders = 8

// Open reads a model directory's configuration, indexes and headers. Errors that
// callers act on are [*Unusable], [*Unreadable], [*Unfinished] and [*Changed]; others
// come from the file system.
//
// What it returns can be held against the files later, see [Dir.Stale]: Open waits
// until the last write to a file is so long ago that a new one must show.
func Open(path string) (*Dir, error) {
	path, err := filepath.Abs(path)
	if err != nil {
		return nil, fmt.Errorf("open model directory: %w", err)
	}
	have, err := settle(path)
	if err != nil {
		return nil, err
	}
	pick, err := choose(path, have)
	if err != nil {
		return nil, err
	}
	if err := refuseNested(path, pick); err != nil {
		return nil, err
	}
	if err := refuseUnfinished(path, pick); err != nil {
		return nil, err
	}
	config, err := readConfig(path)
	if err != nil {
		return nil, err
	}
	files, err := openFiles(path, pick.names(), have)
	if err != nil {
		return nil, err
	}
	d := &Dir{
		Path:    path,
		Config:  config,
		Ignored: pick.ignored,
		have:    have,
		used:    slices.Sorted(maps.Keys(files)),
		indexed: pick.indexed,
		names:   make(map[string]place),
	}
	for name := range have {
		if !IsWeights(name) {
			d.used = append(d.used, name)
		}
	}
	slices.Sort(d.used)
	for _, name := range pick.hashed {
		d.Hashed = append(d.Hashed, files[name])
	}
	for i, name := range pick.load {
		d.Load = append(d.Load, files[name])
		for j, t := range files[name].Header.Tensors {
			d.names[t.Name] = place{i, j}
		}
	}
	return d, nil
}

// openFiles reads the headers of some files of a directory.
func openFiles(dir string, names []string, have map[string]stamp.Stamp) (map[string]*File, error) {
	files := make([]*File, len(names))
	errs := make([]error, len(names))
	slots := make(chan struct{}, headerReaders)
	var group sync.WaitGroup
	for i, name := range names {
		group.Go(func() {
			slots <- struct{}{}
			files[i], errs[i] = openFile(dir, name, have[name])
			<-slots
		})
	}
	group.Wait()
	byName := make(map[string]*File, len(names))
	for i, name := range names {
		if errs[i] != nil {
			return nil, errs[i]
		}
		byName[name] = files[i]
	}
	return byName, nil
}

func openFile(dir, base string, want stamp.Stamp) (*File, error) {
	file := &File{Path: filepath.Join(dir, base), Base: base, Stamp: want}
	file.SHA256 = hubDigest(file.Path)
	err := reading(file.Path, want, func(f *os.File) error {
		h, err := safetensors.ReadHeader(f, want.Size)
		file.Header = h
		return err
	})
	if err != nil {
		return nil, err
	}
	return file, nil
}

// reading opens a safetensors file that a survey has seen, and lets read read its
// header. The file must be the same before and after.
func reading(path string, want stamp.Stamp, read func(*os.File) error) error {
	if want == (stamp.Stamp{}) {
		return dangling(path)
	}
	f, err := openSame(path, want)
	if err != nil {
		return err
	}
	defer func() { _ = f.Close() }() // nothing was written
	if err := read(f); err != nil {
		return Misread(path, beginning(f), want, err)
	}
	return unchanged(f, path, want)
}

func dangling(path string) error {
	to, err := os.Readlink(path)
	if err != nil {
		return &Unusable{Path: path, Reason: "does not exist"}
	}
	if !filepath.IsAbs(to) {
		to = filepath.Join(filepath.Dir(path), to)
	}
	return &Unusable{Path: path, Reason: fmt.Sprintf("is a symlink to %q, which does not exist; fetch the model again", to), Err: fs.ErrNotExist}
}

// CheckpointHash is the hash that vLLM takes of a directory, in hex: over each
// hashed file's base name, header length and header. vLLM uses MD5, and SHA-256
// where Python is built for FIPS. It covers no data: fine-tunes of one model, and
// directories that differ in what they load, share it.
func (d *Dir) CheckpointHash(h func() hash.Hash) string {
	sum := h()
	for _, f := range d.Hashed {
		HashPrefix(sum, f.Base, int64(len(f.Header.Raw)))
		_, _ = io.WriteString(sum, f.Header.Raw)
	}
	return hex.EncodeToString(sum.Sum(nil))
}

// HashPrefix adds what a checkpoint hash has before each header: the file's base name
// and the header's length in bytes.
func HashPrefix(sum hash.Hash, base string, length int64) {
	sum.Write([]byte(base)) // a hash.Hash returns no errors
	sum.Write(binary.LittleEndian.AppendUint64(nil, uint64(length)))
}

// Find gives the tensor of a name, and the file that it is in. Of a name that is
// in several files, vLLM loads all in turn, and the last one stays; so that is the
// one. (Its loader with several threads, an option, lets chance decide.)
func (d *Dir) Find(name string) (*File, safetensors.Tensor, bool) {
	p, ok := d.names[name]
	if !ok {
		return nil, safetensors.Tensor{}, false
	}
	return d.Load[p.file], d.Load[p.file].Header.Tensors[p.tensor], true
}

// All gives each tensor that Find would find, by file in load order, then by
// offset.
func (d *Dir) All() iter.Seq2[*File, safetensors.Tensor] {
	return func(yield func(*File, safetensors.Tensor) bool) {
		for i, f := range d.Load {
			for j, t := range f.Header.Tensors {
				if d.names[t.Name] == (place{i, j}) && !yield(f, t) {
					return
				}
			}
		}
	}
}
