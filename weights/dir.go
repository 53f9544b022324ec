// SPDX-FileCopyrightText: The wcache authors
// SPDX-License-Identifier: MIT

// Package weights finds model directories and says which of their files vLLM
// loads. It reads configurations, indexes and headers; of tensors' data it reads
// only what [SameContent] compares.
//
// The rules are vLLM's, releases 0.30 to 0.33: default_loader.py and
// weight_utils.py for what is loaded, weight_cache/protocol.py for what the
// checkpoint hash covers.
package weights

import (
	"hash"
	"iter"

	"github.com/wcache/wcache/weights/hfconfig"
	"github.com/wcache/wcache/weights/safetensors"
)

// File is a safetensors file as it was when its header was read.
type File struct {
	Path   string // absolute
	Base   string
	Size   int64  // bytes
	MTime  int64  // nanoseconds since 1970
	Inode  uint64
	Device uint64
	Header *safetensors.Header
}

// Dir is a model directory as it was when it was opened. It holds no descriptor
// and is safe for concurrent use.
type Dir struct {
	Path    string // absolute
	Config  *hfconfig.Config
	Hashed  []*File  // what the checkpoint hash covers, by base name
	Load    []*File  // what vLLM loads, in its order
	Ignored []string // base names of safetensors files that are there and not loaded
}

// Unusable is the error for a directory that can't be loaded before somebody has
// changed it.
type Unusable struct {
	Path   string // the file or directory at fault
	Reason string // what is wrong, and what to do
	Err    error  // the cause, such as a [*safetensors.FormatError], or nil
}

func (e *Unusable) Error() string { panic("not yet") }
func (e *Unusable) Unwrap() error { return e.Err }

// Changed is the error for a file that isn't any more what it was.
type Changed struct {
	Path string
	What string
}

func (e *Changed) Error() string { panic("not yet") }

// Open reads a model directory's configuration, indexes and headers.
func Open(path string) (*Dir, error) { panic("not yet") }

// CheckpointHash is the hash that vLLM takes of the directory's headers, in hex.
func (d *Dir) CheckpointHash(h func() hash.Hash) string { panic("not yet") }

// Find gives the tensor of a name that vLLM would end up with, and its file.
func (d *Dir) Find(name string) (*File, safetensors.Tensor, bool) { panic("not yet") }

// All gives each tensor that Find would find, in load order.
func (d *Dir) All() iter.Seq2[*File, safetensors.Tensor] { panic("not yet") }

// Stale reports, as a [*Changed], the first file that would be read otherwise now.
func (d *Dir) Stale() error { panic("not yet") }

// SameContent reports whether two directories load to the same tensors.
func SameContent(a, b *Dir) (bool, error) { panic("not yet") }
