// SPDX-FileCopyrightText: The wcache authors
// SPDX-License-Identifier: MIT

// Package weights finds model directories and says which of their files vLLM
// loads. It reads configurations, indexes and headers. Of the tensors' data it
// reads only what [SameContent] compares.
//
// The rules are vLLM's, releases 0.30 to 0.33: default_loader.py and
// weight_utils.py for what is loaded, weight_cache/protocol.py for what the
// checkpoint hash covers.
package weights

import (
	"context"
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
	"runtime"
	"runtime/debug"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/wcache/wcache/internal/quota"
	"github.com/wcache/wcache/stamp"
	"github.com/wcache/wcache/weights/hfconfig"
	"github.com/wcache/wcache/weights/safetensors"
)

// File is a safetensors file as it was when its header was read.
type File struct {
	Path        string // absolute; symlinks, such as those of a Hugging Face snapshot, are not resolved
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
	Load    []*File  // what vLLM loads, in its order; a subset of Hashed, or all of it
	Ignored []string // base names of safetensors files that exist and aren't loaded

	have    map[string]stamp.Stamp // the survey on which all of this is based
	used    []string               // names in have whose change matters, sorted
	indexed bool                   // model.safetensors.index.json says which files count
	names   places
	headers int64 // bytes of JSON that were read
	memory  *Memory
	shares  []*quota.Share    // of memory
	took    int64             // bytes the total of all shares
	lost    []runtime.Cleanup // give them back
}

// Unusable is the error for a directory that can't be loaded until the user has
// changed it. Asking again gives the same answer.
type Unusable struct {
	Path   string // the file or directory at fault
	Reason string // what is wrong, and what to do
	Err    error  // the cause where it has a type, such as a [*safetensors.FormatError]
}

//diag - the reason is explained by itself

func (e *Unusable) Error() string { return fmt.Sprintf("read weights %q: %s", e.Path, e.Reason) }

func (e *Unusable) Unwrap() error { return e.Err }

// headerReaders is how many headers are read at once, which helps on a slow file
// system.
const headerReaders = 8

// Open reads a model directory's configuration, indexes and headers. Errors that
// callers act on are [*Unusable], [*Unreadable], [*Unfinished] and [*stamp.Changed]; others
// come from the file system.
//
// [Dir.Stale] can later compare the result with the files: Open waits until the last
// write to each file is old enough that a newer one must change the file's stamp.
func Open(path string) (*Dir, error) { return (*Memory)(nil).Open(context.Background(), path) }

// Open is the function [Open] with a memory limit: it waits for the directory's part of
// the memory, at most a minute. After that the error is a [*Busy]; if ctx ends, it is
// ctx's cause. [Dir.Close] gives the part back.
func (m *Memory) Open(ctx context.Context, path string) (d *Dir, err error) {
	path, err = filepath.Abs(path)
	if err != nil {
		return nil, fmt.Errorf("open model directory: %w", err)
	}
	have, err := settle(path)
	if err != nil {
		return nil, err
	}
	d = &Dir{Path: path, have: have, memory: m}
	defer func() {
		if err != nil {
			d.Close()
			d = nil
		}
	}()
	all, config := smallFiles(have)
	share, err := m.take(ctx, path, all)
	if err != nil {
		return d, err
	}
	d.own(share)
	pick, err := choose(path, have)
	if err != nil {
		return d, err
	}
	if err := refuseNested(path, pick); err != nil {
		return d, err
	}
	if err := refuseUnfinished(path, pick); err != nil {
		return d, err
	}
	if d.Config, err = readConfig(path); err != nil {
		return d, err
	}
	share.Keep(config)
	files, err := d.openFiles(ctx, pick.names(), limits{MaxHeaders, MaxTensors})
	if err != nil {
		return d, err
	}
	d.take(pick, files)
	return d, nil
}

// take stores the files that count.
func (d *Dir) take(pick *choice, files map[string]*File) {
	d.Ignored, d.indexed = pick.ignored, pick.indexed
	d.used = slices.Sorted(maps.Keys(files))
	for name := range d.have {
		if !IsWeights(name) {
			d.used = append(d.used, name)
		}
	}
	slices.Sort(d.used)
	for _, name := range pick.hashed {
		d.Hashed = append(d.Hashed, files[name])
	}
	for _, name := range pick.load {
		d.Load = append(d.Load, files[name])
	}
	d.names = sortNames(d.Load)
}

// own makes Close give a share back, or the garbage collector if Close is never called.
func (d *Dir) own(share *quota.Share) {
	d.took += share.Has()
	d.shares = append(d.shares, share)
	if share != nil {
		d.lost = append(d.lost, runtime.AddCleanup(d, (*quota.Share).Give, share))
	}
}

// Close gives the directory's part of a [Memory] back, and is called when the directory
// isn't needed any more. Its fields stay valid.
func (d *Dir) Close() {
	for _, c := range d.lost {
		c.Stop()
	}
	for _, s := range d.shares {
		s.Give()
	}
	if d.took >= muchMemory {
		time.AfterFunc(time.Second, debug.FreeOSMemory) // by then the caller has dropped d
	}
	d.took = 0
}

// muchMemory is the size in bytes from which a directory's memory is returned to the
// system at once. In an idle process Go would not collect it, and would keep it for
// minutes.
const muchMemory = 64 << 20

// limits bound the headers of one directory together.
type limits struct{ bytes, tensors int64 }

// openFiles reads the headers of some files. It adds up the lengths of all headers
// before it reads the first.
func (d *Dir) openFiles(ctx context.Context, names []string, most limits) (map[string]*File, error) {
	lengths := make([]int64, len(names))
	err := each(names, func(i int) (err error) {
		lengths[i], err = d.headerLength(names[i])
		return err
	})
	if err != nil {
		return nil, err
	}
	d.headers = 0
	for _, n := range lengths {
		d.headers += n
	}
	if d.headers > most.bytes {
		return nil, tooLarge(d.Path, &TooLarge{"bytes of headers", d.headers, most.bytes})
	}
	share, err := d.memory.take(ctx, d.Path, d.headers*safetensors.Cost)
	if err != nil {
		return nil, err
	}
	d.own(share)
	files := make([]*File, len(names))
	var tensors, bytes atomic.Int64
	err = each(names, func(i int) error {
		file, err := openFile(d.Path, names[i], d.have[names[i]], lengths[i])
		if err != nil {
			return err
		}
		files[i] = file
		bytes.Add(file.Header.Bytes())
		if n := tensors.Add(int64(len(file.Header.Tensors))); n > most.tensors {
			return tooLarge(d.Path, &TooLarge{"tensors", n, most.tensors})
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	share.Keep(bytes.Load() + placeBytes*tensors.Load())
	byName := make(map[string]*File, len(names))
	for i, name := range names {
		byName[name] = files[i]
	}
	return byName, nil
}

// headerLength is the length of a file's header, in bytes.
func (d *Dir) headerLength(base string) (n int64, err error) {
	want := d.have[base]
	err = reading(filepath.Join(d.Path, base), want, func(f *os.File) error {
		n, err = safetensors.Length(f, want.Size)
		return err
	})
	return n, err
}

// each calls do with the index of each name, several at once, and returns the error of
// the first name that has one. After an error it starts no further calls.
func each(names []string, do func(i int) error) error {
	errs := make([]error, len(names))
	slots := make(chan struct{}, headerReaders)
	var failed atomic.Bool
	var group sync.WaitGroup
	for i := range names {
		slots <- struct{}{}
		if failed.Load() {
			break
		}
		group.Go(func() {
			if errs[i] = do(i); errs[i] != nil {
				failed.Store(true)
			}
			<-slots
		})
	}
	group.Wait()
	for _, err := range errs {
		if err != nil {
			return err
		}
	}
	return nil
}

// openFile reads the header of a file, which must be length bytes long.
func openFile(dir, base string, want stamp.Stamp, length int64) (*File, error) {
	file := &File{Path: filepath.Join(dir, base), Base: base, Stamp: want}
	file.SHA256 = hubDigest(file.Path)
	err := reading(file.Path, want, func(f *os.File) error {
		n, err := safetensors.Length(f, want.Size)
		if err == nil && n == length {
			file.Header, err = safetensors.ReadHeader(f, want.Size)
		}
		return err
	})
	if err == nil && file.Header == nil {
		err = &stamp.Changed{Path: file.Path, What: "has another header than a moment ago"}
	}
	if err != nil {
		return nil, err
	}
	return file, nil
}

// reading opens a safetensors file that a survey has seen, and calls read to read its
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
	return want.Check(int(f.Fd()), path)
}

func dangling(path string) error {
	to, err := os.Readlink(path)
	if err != nil {
		//diag files
		// The file or directory was there when it was listed or named, and is gone. Correct the
		// path, or fetch the model again.
		return &Unusable{Path: path, Reason: "does not exist"}
	}
	if !filepath.IsAbs(to) {
		to = filepath.Join(filepath.Dir(path), to)
	}
	//diag files PATH
	// The link's target is missing: the blob was removed from the Hugging Face cache, or the
	// disk with it is not mounted. Mount it, or fetch the model again.
	return &Unusable{Path: path, Reason: fmt.Sprintf("is a symlink to %q, which does not exist; fetch the model again", to), Err: fs.ErrNotExist}
}

// CheckpointHash is vLLM's hash of a directory, in hex: over each hashed file's base
// name, header length and header. vLLM uses MD5, or SHA-256 if Python is built for
// FIPS. It doesn't cover the data: fine-tunes of one model share it, and so do
// directories that differ only in what they load.
func (d *Dir) CheckpointHash(h func() hash.Hash) string {
	sum := h()
	for _, f := range d.Hashed {
		HashPrefix(sum, f.Base, int64(len(f.Header.Raw)))
		_, _ = io.WriteString(sum, f.Header.Raw)
	}
	return hex.EncodeToString(sum.Sum(nil))
}

// HashPrefix adds the part of a checkpoint hash before each header: the file's base
// name and the header's length in bytes.
func HashPrefix(sum hash.Hash, base string, length int64) {
	sum.Write([]byte(base)) // a hash.Hash returns no errors
	sum.Write(binary.LittleEndian.AppendUint64(nil, uint64(length)))
}

// Find gives the tensor with a name, and the file that contains it. If several files
// have the name, vLLM loads all of them in turn and keeps the last one, so Find gives
// that one. (vLLM's optional loader with several threads leaves the order to chance.)
func (d *Dir) Find(name string) (*File, safetensors.Tensor, bool) {
	p, ok := d.names.find(d.Load, name)
	if !ok {
		return nil, safetensors.Tensor{}, false
	}
	return d.Load[p.file], d.Load[p.file].Header.Tensors[p.tensor], true
}

// All gives each tensor that Find would find, by file in load order, then by offset.
func (d *Dir) All() iter.Seq2[*File, safetensors.Tensor] {
	return func(yield func(*File, safetensors.Tensor) bool) {
		for i, f := range d.Load {
			for j, t := range f.Header.Tensors {
				if p, _ := d.names.find(d.Load, t.Name); p == (place{int32(i), int32(j)}) && !yield(f, t) {
					return
				}
			}
		}
	}
}
