// SPDX-FileCopyrightText: The wcache authors
// SPDX-License-Identifier: MIT

// Package loader fills device memory in a child process, so that whatever goes
// wrong with a device or a disk ends the child and never the cache. [Run] is the
// daemon's side; [Child] is the child's, which `wcache load` consists of. For the
// same reason [Verify] has a child read memory back, and [Ask] has one look how a GPU
// is. [Hash] has one read files at idle priority.
//
// Run and Child talk over a SOCK_SEQPACKET socketpair in packets of JSON (package-internal,
// both sides are always the same binary). The job goes to the child as a sealed
// memory file; segments and the table come back as descriptors (SCM_RIGHTS). To be
// verified segments go to the child in the same way.
package loader

import (
	"io"
	"time"

	"github.com/wcache/wcache/device"
	"github.com/wcache/wcache/internal/fd"
	"github.com/wcache/wcache/layout"
	"github.com/wcache/wcache/loader/native"
	"github.com/wcache/wcache/tensor"
)

// Digest is the sha256 of a file of a job.
type Digest = native.Digest

// Difference is where memory isn't what its files give.
type Difference = native.Difference

// Damaged is the error for a file that a Hugging Face cache names by another sha256.
type Damaged = native.Damaged

// Job is what one child does: carry out a plan on a device.
type Job struct {
	Task       string       `json:"task,omitempty"` // set by Run, Verify and Hash
	Device     string       `json:"device"`         // for the child's open function, such as "host"
	Plan       *layout.Plan `json:"plan"`
	Workers    int          `json:"workers"`     // that read in parallel; 0: as many as suit the CPUs
	BlockBytes int          `json:"block_bytes"` // most bytes of one read; 0: 4 MiB
	Direct     bool         `json:"direct"`      // files that aren't in the page cache are read past it
	// Patience is how long to try again while the device is full; 0: not at all,
	// and nobody is asked who has filled it.
	Patience time.Duration `json:"patience"`
	// Digests are files whose sha256 is wanted, of the plan's or others. They are
	// computed meanwhile, and all files come by the page cache then, Direct or not. A
	// load of a file that a Hugging Face cache names by another digest fails.
	Digests []layout.File `json:"digests,omitempty"`
	// Pieces is of how many descriptors the segment is that is to be verified. Run and
	// Verify set it.
	Pieces int `json:"pieces,omitempty"`
}

// Progress says how far a job is.
type Progress struct {
	Allocated int64 // bytes of device memory that are held
	Done      int64 // bytes that are filled, or compared; fewer if digests take longer
	Total     int64 // bytes that will be
	// Digest is one that has just become known, of a job's Digests. Nil: none has.
	Digest *Digest
	// Waiting says that nothing can be done yet, and what is waited for.
	Waiting string
}

// Result is a finished job. The caller owns all descriptors, see Close.
type Result struct {
	// Table is valid, and its segment is as large as Segment is.
	Table *tensor.Table
	// TableFD is a sealed memory file that holds Table.Encode(), and what to keep
	// beside the segment for the process that finds them after a restart.
	TableFD *fd.FD
	Segment device.Segment
	Digests []Digest      // by file
	Keeper  *Keeper       // the child, if the memory is its own; nil: it has nothing more to do
	Elapsed time.Duration // from the child's start to its last packet
	Filling time.Duration // of that, from the moment the memory was there until it was full

	difference *Difference // of a job that verifies
}

// Close closes all descriptors, and so frees the memory.
func (r *Result) Close() {
	if r.TableFD != nil {
		_ = r.TableFD.Close()
	}
	_ = r.Segment.Close()
}

// Options say how the child is started.
type Options struct {
	// Command is the program and its arguments, usually {"/proc/self/exe", "load"}.
	// The child finds its end of the socketpair as descriptor ChildFD.
	Command []string
	// Env is the child's environment; nil means this process's.
	Env []string
	// Stderr gets what the child writes to standard error, line by line; nil discards
	// it. A Write that waits keeps the child waiting. An *os.File is the child's own
	// standard error instead, which keeps it waiting where nobody reads.
	Stderr io.Writer
	// ExitWait is how long a child that has handed everything over may take to
	// exit before it is killed; 0 means 5 s. A driver may need some of that.
	ExitWait time.Duration
}

// ChildFD is the number of the child's end of the socketpair.
const ChildFD = 3

// Kinds of [Error] that a caller can act on. All others are KindFailed.
const (
	// KindNoMemory: the device has no room; Want and Free are set. Make room.
	KindNoMemory = "no memory"
	// KindFileChanged: a file is not the one of the plan. Plan anew.
	KindFileChanged = "file changed"
	// KindFileUnreadable: a file is missing or can't be read.
	KindFileUnreadable = "file unreadable"
	// KindDamaged: a file is not what its name in a Hugging Face cache says. It lasts
	// until somebody fetches it again.
	KindDamaged = "damaged"
	// KindNoDevice: the device can't be used at all; the message says what to do.
	KindNoDevice = "no device"
	// KindDied: the child ended without a word: killed, out of memory, crashed.
	KindDied = "died"
	// KindFailed is anything else.
	KindFailed = "failed"
)

// Error is why a child could not do its job. Nothing of the job is left.
type Error struct {
	Kind    string
	Message string // says which file or device, for people
	Want    int64  // bytes that were asked for, with KindNoMemory
	Free    int64  // bytes that were free, with KindNoMemory
	Doing   string `json:"-"` // what the child was to do; "": load a model
}

func (e *Error) Error() string {
	if e.Doing == "" {
		//diag - cache/cache.go has it
		return "load model: " + e.Message
	}
	return e.Doing + ": " + e.Message
}

// FetchAgain is what to do about a file of a Hugging Face cache that isn't what its name
// says: the hub's library takes a blob that is there for a good one.
const FetchAgain = "remove the blob that the file is a link to, and fetch the model again"

// Advice is what to do about it.
func (e *Error) Advice() string {
	switch e.Kind {
	case KindNoMemory:
		return "wcache evict frees what is held; all other memory belongs to other programs"
	case KindFileChanged:
		return "wait until nothing writes to it"
	case KindDamaged:
		return FetchAgain
	case KindNoDevice:
		return "wcache doctor looks for what is missing"
	case KindFileUnreadable:
		return "see that the file is there and can be read"
	}
	return "see the service's log, and on a GPU nvidia-smi"
}

// Refusal is one of a damaged file, which every load would find again.
func (e *Error) Refusal() (field, reason string, ok bool) {
	return "checkpoint", e.Error(), e.Kind == KindDamaged
}
