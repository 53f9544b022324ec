// SPDX-FileCopyrightText: The wcache authors
// SPDX-License-Identifier: MIT

// Package device is what wcache needs of the memory that engines map: make some,
// fill it, and turn it into a descriptor that keeps it alive without the process
// that made it. Host memory is in device/host; device/devicetest is the suite
// that every device passes.
package device

import (
	"errors"
	"fmt"

	"github.com/wcache/wcache/internal/fd"
)

// MinBlock is a size in bytes that every writer takes as one block.
const MinBlock = 1 << 20

// Device is one GPU, or the host. Its methods are safe for concurrent use.
type Device interface {
	// Alloc makes memory of at least the given bytes, more than 0, rounded up to
	// Granularity. What Alloc returned can be filled to its last byte: a device
	// that is short of memory says so here, as a *NoMemory, and not in mid-fill.
	Alloc(bytes int64) (Buffer, error)
	// Free is an estimate of the bytes that Alloc could still give.
	Free() (int64, error)
	// Granularity is the size in bytes that allocations are a multiple of.
	Granularity() int64
	// View opens a segment of this device for reading, which another process may have
	// made. Its descriptor stays the caller's, and may be closed before the view is.
	View(s Segment) (View, error)
	// Close lets the device go. Segments live on; no Buffer or View may be in use.
	Close() error
}

// Buffer is memory that is being filled. Its methods are safe for concurrent use.
// Bytes that were never written are undefined.
type Buffer interface {
	// Bytes is the size that it really has, which is what it uses of the device.
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

// Writer is one goroutine's hands in a buffer: it is made, used and closed by
// the same goroutine, which a device may tie to its thread.
type Writer interface {
	// MaxBlock is the largest n that Block takes, MinBlock or more.
	MaxBlock() int
	// Block returns the bytes that become [off, off+n) of the buffer, to be filled
	// and then handed over by Commit, before the next Block. They are the memory
	// itself or staging, of undefined contents, and not to be touched after Commit.
	// Block waits while all staging is in flight.
	Block(off int64, n int) ([]byte, error)
	// Commit starts the way of the last block into the buffer, and may return
	// before it is there.
	Commit() error
	// Flush waits until all that was committed is in the buffer.
	Flush() error
	// Close flushes and lets the writer go. A second Close does nothing.
	Close() error
}

// View is a segment's memory, to be read back. Its methods are safe for concurrent
// use.
type View interface {
	// Bytes is the segment's size.
	Bytes() int64
	// Reader makes one more reader.
	Reader() (Reader, error)
	// Close lets the memory go; the segment lives on. It does nothing after Close. No
	// reader may be in use.
	Close() error
}

// Reader is one goroutine's eyes in a view: it is made, used and closed by the same
// goroutine, which a device may tie to its thread.
type Reader interface {
	// MaxBlock is the largest n that Fetch takes, MinBlock or more.
	MaxBlock() int
	// Fetch starts to read [off, off+n) of the view, and may return before it is there.
	Fetch(off int64, n int) error
	// Bytes waits for what the last Fetch asked for. It is not to be written to, and to
	// be read no more after the next Fetch.
	Bytes() ([]byte, error)
	// Close lets the reader go. A second Close does nothing.
	Close() error
}

// Segment is the finished memory of one model, which lives as long as anyone holds its
// descriptors. It has one, or several of equal size, each of which is the memory behind
// that of the one before: a consumer maps them as one range.
type Segment struct {
	Pieces []*fd.FD
	Bytes  int64 // of all together, a multiple of the device's granularity
}

// Whole is a segment of one piece.
func Whole(f *fd.FD, bytes int64) Segment { return Segment{Pieces: []*fd.FD{f}, Bytes: bytes} }

// One is the descriptor of a segment that must not be in pieces.
func (s Segment) One() (*fd.FD, error) {
	if len(s.Pieces) != 1 {
		return nil, fmt.Errorf("use segment: it is in %d pieces, and only one can be used here", len(s.Pieces))
	}
	return s.Pieces[0], nil
}

// PieceBytes is the size of each piece. The error is for pieces that can't be of one size.
func (s Segment) PieceBytes() (int64, error) {
	n := int64(len(s.Pieces))
	if n == 0 || s.Bytes <= 0 || s.Bytes%n != 0 {
		return 0, fmt.Errorf("use segment: %d bytes in %d pieces", s.Bytes, n)
	}
	return s.Bytes / n, nil
}

// Dup gives the segment once more, with descriptors of its own, which the caller owns.
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

// NoMemory is the error of an allocation that the device has no room for.
type NoMemory struct {
	Want int64 // bytes asked for
	Free int64 // bytes that were free, an estimate
}

func (e *NoMemory) Error() string {
	if e.Free >= e.Want { // somebody was faster, or it is in pieces
		//diag loading NUMBER NUMBER
		// Another program was faster, or the free memory is in pieces. Try again; if it stays so,
		// end other programs on the device.
		return fmt.Sprintf("allocate %d bytes: the device has refused, though %d are free", e.Want, e.Free)
	}
	//diag loading NUMBER NUMBER
	// Other programs use the memory, and did so as long as `memory_wait` says. End them or evict
	// entries; for a GPU the message names the programs.
	return fmt.Sprintf("allocate %d bytes: only %d are free", e.Want, e.Free)
}
