// SPDX-FileCopyrightText: The wcache authors
// SPDX-License-Identifier: MIT

// Package layout turns a checkpoint into the tensors that vLLM would make of it for one
// rank. The result is a [Plan]: plain data that says which ranges of which files go where.
// The package reads only headers and config.json, and opens no device; package loader
// carries a plan out.
//
// The rules are vLLM's, releases 0.30 to 0.33, as recorded in testdata/layouts. Anything
// that can't be built bit for bit as vLLM does is refused, see [Unsupported].
package layout

import (
	"fmt"

	"github.com/wcache/wcache/stamp"
	"github.com/wcache/wcache/tensor"
)

// Plan builds one rank of a model in one segment. It is plain data, goes to the
// loader child as JSON, and is safe for concurrent use once made.
type Plan struct {
	// Table lies in a segment of Table.Segment bytes at least.
	Table *tensor.Table `json:"table"`
	// Files have absolute paths. A loader stops if a file isn't the one that existed when
	// the plan was made.
	Files []File `json:"files"`
	// Copies, Zeros, Literals and Ropes together write each byte of each storage
	// exactly once. Their order carries no meaning but favours sequential reads:
	// copies are sorted by file, then by source.
	Copies   []Copy    `json:"copies"`
	Zeros    []Zero    `json:"zeros"`
	Literals []Literal `json:"literals"`
	Ropes    []Rope    `json:"ropes"`
	// Notes are remarks for the log, such as files that are present but unused.
	Notes []string `json:"notes"`
}

// File is a checkpoint file as it was when the plan was made.
type File struct {
	Path  string      `json:"path"`
	Stamp stamp.Stamp `json:"stamp"`
}

// Copy moves Rows runs of RowBytes source bytes each, the starts of which are
// SrcStride bytes apart in the file, to contiguous memory at Dst. One run is
// Rows 1. With From and To of different types each element is cast, rounding to
// nearest even; the destination then has RowBytes/From.Size()*To.Size() bytes a run.
type Copy struct {
	Dst       int64        `json:"dst"`  // bytes from the segment's start
	File      int          `json:"file"` // index into Plan.Files
	Src       int64        `json:"src"`  // bytes from the file's start
	Rows      int64        `json:"rows"`
	RowBytes  int64        `json:"row_bytes"`
	SrcStride int64        `json:"src_stride"`
	From      tensor.DType `json:"from"`
	To        tensor.DType `json:"to"`
}

// Zero clears bytes: vocabulary padding.
type Zero struct {
	Dst   int64 `json:"dst"`
	Bytes int64 `json:"bytes"`
}

// Literal writes a few given bytes: scalars such as an attention scale of 1.0.
type Literal struct {
	Dst  int64  `json:"dst"`
	Data []byte `json:"data"`
}

// Rope writes a cos_sin_cache: Rows rows of len(InvFreq) cosines and then as many
// sines, of position/PositionScale*InvFreq[i], times Magnitude, computed in
// float32 and rounded to To at the end, as vLLM's rotary embedding classes do.
type Rope struct {
	Dst           int64        `json:"dst"`
	Rows          int64        `json:"rows"`
	InvFreq       []float32    `json:"inv_freq"`
	PositionScale float32      `json:"position_scale"` // 1 but for linear scaling
	Magnitude     float32      `json:"magnitude"`      // 1 but for yarn
	To            tensor.DType `json:"to"`
}

// Unsupported is the error for a model or an option that the native loader can't build
// exactly as vLLM does. It is final: asking again changes nothing.
type Unsupported struct {
	Field  string // the key's field that caused it, such as "model_arch"
	Reason string // what is not supported, for people
}

func (e *Unsupported) Error() string {
	//diag - the reason is explained by itself
	return fmt.Sprintf("plan layout: %s: %s", e.Field, e.Reason)
}
