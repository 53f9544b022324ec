// SPDX-FileCopyrightText: The wcache authors
// SPDX-License-Identifier: MIT

// Package loader fills device memory in a child process, so that a fault of a device or a
// disk ends the child and not the daemon. [Run] is the daemon's side; [Child] is the
// child's, the command `wcache load`. For the same reason [Verify] has a child read memory
// back, and [Ask] has one check a GPU's health. [Hash] has one read files at idle priority.
//
// Run and Child talk over a SOCK_SEQPACKET socketpair in packets of JSON (package-internal,
// both sides are always the same binary). The job goes to the child as a sealed memory file;
// segments and the table come back as descriptors (SCM_RIGHTS). Segments to verify go to
// the child in the same way.
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

// Difference is where memory differs from its files.
type Difference = native.Difference

// Damaged is the error for a file whose sha256 isn't the one in its name in a Hugging Face
// cache.
type Damaged = native.Damaged

// Job is what one child does: carry out a plan on a device.
type Job struct {
	Task       string       `json:"task,omitempty"` // set by Run, Verify and Hash
	Device     string       `json:"device"`         // for the child's open function, such as "host"
	Plan       *layout.Plan `json:"plan"`
	Workers    int          `json:"workers"`     // goroutines that read in parallel; 0: by the number of CPUs
	BlockBytes int          `json:"block_bytes"` // most bytes of one read; 0: 4 MiB
	Direct     bool         `json:"direct"`      // files that aren't in the page cache are read past it
	// Patience is how long the child tries again while the device is full; 0: not at all,
	// and then the error doesn't name the programs that use the memory.
	Patience time.Duration `json:"patience"`
	// Digests are files, of the plan or others, whose sha256 the child computes meanwhile.
	// Then all files go through the page cache, Direct or not. A load fails if a file's
	// sha256 isn't the one in its name in a Hugging Face cache.
	Digests []layout.File `json:"digests,omitempty"`
	// Pieces is the number of descriptors of the segment to verify. Run and Verify set it.
	Pieces int `json:"pieces,omitempty"`
}

// Progress is the progress of a job.
type Progress struct {
	Allocated int64 // bytes of device memory that are allocated
	Done      int64 // bytes that are filled or compared; fewer if digests take longer
	Total     int64 // bytes to fill or compare
	// Digest is the digest, of those of the job, that was just computed. Nil: none was.
	Digest *Digest
	// Waiting says what the child waits for, such as memory; "" if it doesn't wait.
	Waiting string
}

// Result is the result of a job. The caller owns all descriptors, see Close.
type Result struct {
	// Table is valid, and its segment has the size of Segment.
	Table *tensor.Table
	// TableFD is a sealed memory file that holds Table.Encode(). The caller keeps it with
	// the segment for the process that finds them after a restart.
	TableFD *fd.FD
	Segment device.Segment
	Digests []Digest      // by file
	Keeper  *Keeper       // the child, if it keeps the memory; nil: the child ends
	Elapsed time.Duration // from the child's start to its last packet
	Filling time.Duration // the part of Elapsed after the memory was allocated

	difference *Difference // of a job that verifies
}

// Close closes all descriptors, and so frees the memory.
func (r *Result) Close() {
	if r.TableFD != nil {
		_ = r.TableFD.Close()
	}
	_ = r.Segment.Close()
}

// Options say how to start the child.
type Options struct {
	// Command is the program and its arguments, usually {"/proc/self/exe", "load"}.
	// The child finds its end of the socketpair as descriptor ChildFD.
	Command []string
	// Env is the child's environment; nil means this process's.
	Env []string
	// Stderr gets what the child writes to standard error, line by line; nil discards it. A
	// Write that blocks also blocks the child. An *os.File becomes the child's standard
	// error itself; a pipe that is not read blocks the child.
	Stderr io.Writer
	// ExitWait is how long a child may take to exit after its job before it is killed; 0
	// means 5 s. A driver may need some of that.
	ExitWait time.Duration
}

// ChildFD is the number of the child's end of the socketpair.
const ChildFD = 3

// Kinds of [Error], with what a caller can do.
const (
	// KindNoMemory: the device is full; Want and Free are set. Make room.
	KindNoMemory = "no memory"
	// KindFileChanged: a file has changed since the plan was made. Make a new plan.
	KindFileChanged = "file changed"
	// KindFileUnreadable: a file is missing or can't be read.
	KindFileUnreadable = "file unreadable"
	// KindDamaged: a file's sha256 isn't the one in its name in a Hugging Face cache. The
	// error lasts until the user fetches the file again.
	KindDamaged = "damaged"
	// KindNoDevice: the child can't open the device; the message says what to do.
	KindNoDevice = "no device"
	// KindDied: the child ended without an answer: killed, out of memory, crashed.
	KindDied = "died"
	// KindFailed is anything else.
	KindFailed = "failed"
)

// Error is why a child could not do its job. No memory or descriptor of the job is left.
type Error struct {
	Kind    string
	Message string // says which file or device, for people
	Want    int64  // bytes that were asked for, with KindNoMemory
	Free    int64  // bytes that were free, with KindNoMemory
	Doing   string `json:"-"` // the child's task, which begins the message; "": "load model"
}

func (e *Error) Error() string {
	if e.Doing == "" {
		//diag - cache/cache.go has it
		return "load model: " + e.Message
	}
	return e.Doing + ": " + e.Message
}

// FetchAgain is the advice for a file in a Hugging Face cache with another sha256 than in
// its name. The blob has to be removed, since the hub's library doesn't check existing ones.
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

// Refusal gives a refusal for a damaged file, which fails every load.
func (e *Error) Refusal() (field, reason string, ok bool) {
	return "checkpoint", e.Error(), e.Kind == KindDamaged
}
