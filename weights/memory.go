// SPDX-FileCopyrightText: The wcache authors
// SPDX-License-Identifier: MIT

package weights

import (
	"context"
	"fmt"
	"time"

	"github.com/wcache/wcache/internal/quota"
	"github.com/wcache/wcache/stamp"
	"github.com/wcache/wcache/weights/hfconfig"
	"github.com/wcache/wcache/weights/safetensors"
)

// Limits for all headers of a directory together. The largest published models have
// some 10 MB and 100,000 tensors.
const (
	MaxHeaders = 128 << 20 // bytes of JSON
	MaxTensors = 1_500_000
)

// Memory bounds, in bytes, the memory for headers, configurations and indexes of all
// open directories. A nil Memory bounds only each directory. It is safe for concurrent
// use.
type Memory struct{ quota *quota.Quota }

// OneDirectory is the most that one directory takes of a [Memory], in bytes.
const OneDirectory = MaxHeaders*safetensors.Cost + 2*hfconfig.MaxSize*hfconfig.Cost

// NewMemory makes a memory of so many bytes. With less than [OneDirectory], some
// directories may wait in vain.
func NewMemory(bytes int64) *Memory { return &Memory{quota.New(bytes)} }

// patience is how long a directory waits for others at most, even if its caller would
// wait longer: two directories that each hold a part could wait for each other.
const patience = time.Minute

// Busy is the error if other directories use the common memory. It passes when they
// are closed.
type Busy struct {
	Path string // of the directory
	Want int64  // bytes
	Have int64  // bytes for all
}

func (e *Busy) Error() string {
	//diag files DIRECTORY NUMBER NUMBER
	// Several models with very large headers are opened at the same time. Ask again when the others
	// have been opened.
	return fmt.Sprintf("read weights %q: its headers take up to %d bytes of memory, and those of other models that are being opened take all of the %d that are for them", e.Path, e.Want, e.Have)
}

// Advice is what to do about it.
func (e *Busy) Advice() string { return "ask again when those are loaded" }

// TooLarge is the cause of an [Unusable] for a directory that needs more than any
// model does.
type TooLarge struct {
	What  string // what there is too much of
	Have  int64  // at least this much
	Limit int64
}

func (e *TooLarge) Error() string {
	//diag files NUMBER THINGS NUMBER
	// The headers declare more than ten times what any model has, so the files are damaged or made
	// to use up memory. Check where the files come from, and move the wrong ones out of the
	// directory.
	return fmt.Sprintf("has %d %s in all, of which a model has %d at most; see that its files are what they should be, and move those away that are not", e.Have, e.What, e.Limit)
}

func tooLarge(path string, e *TooLarge) error {
	return &Unusable{Path: path, Reason: e.Error(), Err: e}
}

// take waits for n bytes for a directory.
func (m *Memory) take(ctx context.Context, path string, n int64) (*quota.Share, error) {
	if m == nil {
		return nil, nil
	}
	busy := &Busy{path, n, m.quota.Total()}
	ctx, cancel := context.WithTimeoutCause(ctx, patience, busy)
	defer cancel()
	return m.quota.Take(ctx, n)
}

// indexCost is the most memory that an index of size bytes takes, in bytes: three
// times the text, and 160 for each of its tensors, which need at least 8 bytes of text
// each.
func indexCost(size int64) int64 {
	size = min(size, MaxShardIndex)
	return 3*size + 160*min(size/8, MaxTensors)
}

// smallFiles gives the most memory that the indexes and the configuration of a
// directory take while they are read, and the configuration's part of it.
func smallFiles(have map[string]stamp.Stamp) (all, config int64) {
	for _, name := range []string{configName, "hf_quant_config.json"} {
		config += hfconfig.Cost * min(have[name].Size, hfconfig.MaxSize)
	}
	return config + max(indexCost(have[ShardIndexName].Size), indexCost(have[consolidatedIndexName].Size)), config
}
