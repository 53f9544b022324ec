// SPDX-FileCopyrightText: The wcache authors
// SPDX-License-Identifier: MIT

// Package device defines what wcache needs from the memory that engines map: allocate it,
// fill it, and turn it into a descriptor that keeps it alive without the process that
// allocated it. Host memory is in device/host; device/devicetest has the tests that every
// device passes.
package device

import (
	"errors"
	"fmt"

	"github.com/wcache/wcache/internal/fd"
)

// MinBlock is a block size in bytes that every writer and reader accepts.
const MinBlock = 1 << 20

// Device is one GPU, or the host. Its methods are safe for concurrent use.
type Device interface {
	// Alloc allocates at least the given bytes, more than 0, rounded up to Granularity. All
	// of the memory exists when Alloc returns: a device that is short of memory gives a
	// *NoMemory here, and not later while the buffer is filled.
	Alloc(bytes int64) (Buffer, error)
	// Free is an estimate of the bytes that Alloc could still allocate.
	Free() (int64, error)
	// Granularity is the size in bytes that allocations are a multiple of.
	Granularity() int64
	// View opens a segment of this device for reading; another process may have made it.
	// The caller keeps the descriptors, and may close them before the view.
	View(s Segment) (View, error)
	// Close releases the device. Segments live on; no Buffer or View may be in use.
	Close() error
}

// Buffer is memory that is being filled. Its methods are safe for concurrent use.
// Bytes that were never written are undefined.
type Buffer interface {
	// Bytes is the buffer's real size, which is what it uses of the device.
	Bytes() int64
	// Writer makes one more writer.
	Writer() (Writer, error)
	// Seal ends the filling: the contents are final, and read-only where the
	// device can make them so. It fails, and changes nothing, while a writer is
	// open. The caller owns the segment; the buffer is spent.
	Seal() (Segment, error)
	// Close frees memory that was not sealed. It does nothing after Seal or Close.
	// No writer may be in use.
	Close() error
}

// Writer writes to a buffer. One goroutine makes, uses and closes it; a device may lock that
// goroutine to its thread.
type Writer interface {
	// MaxBlock is the largest n that Block accepts, MinBlock or more.
	MaxBlock() int
	// Block returns n bytes of undefined contents: the buffer's memory at off, or staging.
	// The caller fills them and calls Commit before the next Block, and doesn't touch them
	// after Commit. Block waits while all staging is in flight.
	Block(off int64, n int) ([]byte, error)
	// Commit starts the copy of the last block into the buffer, and may return before the
	// copy ends.
	Commit() error
	// Flush waits until all committed blocks are in the buffer.
	Flush() error
	// Close flushes and ends the writer. A second Close does nothing.
	Close() error
}

// View reads a segment's memory back. Its methods are safe for concurrent use.
type View interface {
	// Bytes is the segment's size.
	Bytes() int64
	// Reader makes one more reader.
	Reader() (Reader, error)
	// Close unmaps the memory; the segment lives on. A second Close does nothing. No reader
	// may be in use.
	Close() error
}

// Reader reads from a view. One goroutine makes, uses and closes it; a device may lock that
// goroutine to its thread.
type Reader interface {
	// MaxBlock is the largest n that Fetch accepts, MinBlock or more.
	MaxBlock() int
	// Fetch starts to read [off, off+n) of the view, and may return before the read ends.
	Fetch(off int64, n int) error
	// Bytes waits for the bytes of the last Fetch. The caller must not write to them, and
	// must not read them after the next Fetch.
	Bytes() ([]byte, error)
	// Close ends the reader. A second Close does nothing.
	Close() error
}

// Segment is the finished memory of one model, which lives as long as any process has its
// descriptors. It consists of one piece or several of equal size, one descriptor per piece: a
// consumer maps the pieces one after the other as one range.
type Segment struct {
	Pieces []*fd.FD
	Bytes  int64 // size of all pieces together, a multiple of the device's granularity
}

// Whole makes a segment of one piece, which owns f.
func Whole(f *fd.FD, bytes int64) Segment { return Segment{Pieces: []*fd.FD{f}, Bytes: bytes} }

// One is the descriptor of a segment of one piece. It is an error for several pieces.
func (s Segment) One() (*fd.FD, error) {
	if len(s.Pieces) != 1 {
		return nil, fmt.Errorf("use segment: it is in %d pieces, but must be in one here", len(s.Pieces))
	}
	return s.Pieces[0], nil
}

// PieceBytes is the size of each piece. It is an error if the pieces can't be of equal size.
func (s Segment) PieceBytes() (int64, error) {
	n := int64(len(s.Pieces))
	if n == 0 || s.Bytes <= 0 || s.Bytes%n != 0 {
		return 0, fmt.Errorf("use segment: %d bytes in %d pieces", s.Bytes, n)
	}
	return s.Bytes / n, nil
}

// Dup duplicates the segment's descriptors. The caller owns the new segment.
func (s Segment) Dup() (Segment, error) {
	twin := Segment{Bytes: s.Bytes}
	for _, f := range s.Pieces {
		d, err := f.Dup()
		if err != nil {
			return Segment{}, errors.Join(err, twin.Close())
		}
		twin.Pieces = append(twin.Pieces, d)
	}
	return twin, nil
}

// Close closes the descriptors.
func (s Segment) Close() error {
	var errs []error
	for _, f := range s.Pieces {
		errs = append(errs, f.Close())
	}
	return errors.Join(errs...)
}

// NoMemory is the error of an allocation on a device that is full.
type NoMemory struct {
	Want int64 // bytes asked for
	Free int64 // bytes that were free, an estimate
}

func (e *NoMemory) Error() string {
	if e.Free >= e.Want { // another program was faster, or the free memory is in pieces
		//diag loading NUMBER NUMBER
		// Another program was faster, or the free memory is in pieces. Try again; if it stays so,
		// end other programs on the device.
		return fmt.Sprintf("allocate %d bytes: the device has refused, though %d are free", e.Want, e.Free)
	}
	//diag loading NUMBER NUMBER
	// Other programs use the memory, and `memory_wait` is over. End them or evict
	// entries; for a GPU the message names the programs.
	return fmt.Sprintf("allocate %d bytes: only %d are free", e.Want, e.Free)
}
