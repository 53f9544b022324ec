// SPDX-FileCopyrightText: The wcache authors
// SPDX-License-Identifier: MIT

package device

import (
	"errors"
	"fmt"
	"os"
	"runtime"

	"golang.org/x/sys/unix"

	"github.com/wcache/wcache/internal/fd"
)

// HandleBytes is the size of a legacy handle: cudaIpcMemHandle_t of CUDA,
// hipIpcMemHandle_t of HIP.
const HandleBytes = 64

// Keeper is a device whose memory can't be exported as a descriptor: the memory belongs to
// this process, the keeper, and is gone when it ends. The descriptor of such a segment is one
// end of a socket pair, and the keeper has the other end. So the memory stays until no process
// has the descriptor any more, as with every segment. The socket contains the handle by which
// other processes open the memory, so a process needs only the descriptor.
type Keeper interface {
	Device
	// Wait returns when no process has a descriptor of the sealed segments any more. Then
	// their memory is freed, at the latest when the process ends.
	Wait()
}

// Keep makes a segment for memory that this process keeps. The caller owns its descriptor. When
// no process has a descriptor any more, released is closed, and the caller frees the memory.
func Keep(handle [HandleBytes]byte, bytes int64) (s Segment, released <-chan struct{}, err error) {
	// Non-blocking, so that Go's poller waits, and not a thread.
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return Segment{}, nil, fmt.Errorf("keep segment: make socketpair: %w", err)
	}
	own := os.NewFile(uintptr(pair[0]), "segment")
	f, err := fd.New(pair[1])
	if err != nil {
		_ = own.Close()
		return Segment{}, nil, err
	}
	if _, err := own.Write(handle[:]); err != nil {
		_, _ = own.Close(), f.Close()
		return Segment{}, nil, fmt.Errorf("keep segment: %w", err)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		defer func() { _ = own.Close() }()
		for n := 1; n > 0; { // no process should write to the socket; what comes is ignored
			n, _ = own.Read(make([]byte, 1))
		}
	}()
	return Whole(f, bytes), done, nil
}

// Handle is the legacy handle of a segment with a keeper; kept is false for a segment whose
// descriptors are the memory itself.
func (s Segment) Handle() (handle [HandleBytes]byte, kept bool, err error) {
	if len(s.Pieces) != 1 {
		return handle, false, nil // kept segments have one piece
	}
	var b [HandleBytes + 1]byte
	n, _, err := unix.Recvfrom(s.Pieces[0].Int(), b[:], unix.MSG_PEEK|unix.MSG_DONTWAIT)
	runtime.KeepAlive(s.Pieces[0])
	switch {
	case errors.Is(err, unix.ENOTSOCK):
		return handle, false, nil
	case err != nil:
		return handle, true, fmt.Errorf("read segment's handle: %w", err)
	case n != HandleBytes:
		return handle, true, fmt.Errorf("read segment's handle: it has %d bytes, want %d", n, HandleBytes)
	}
	copy(handle[:], b[:])
	return handle, true, nil
}

// errNoKeeper is why a kept segment is gone.
var errNoKeeper = errors.New("the process that kept it has ended")

// Gone reports why a segment's memory is gone; nil while it exists. Memory without a keeper
// exists as long as its descriptors.
func (s Segment) Gone() error {
	if _, kept, err := s.Handle(); !kept || err != nil {
		return err
	}
	set := []unix.PollFd{{Fd: int32(s.Pieces[0].Int())}} // poll always reports a hang-up
	for {
		_, err := unix.Poll(set, 0)
		runtime.KeepAlive(s.Pieces[0])
		switch {
		case errors.Is(err, unix.EINTR):
			continue
		case err != nil:
			return fmt.Errorf("look for segment's keeper: %w", err)
		case set[0].Revents != 0:
			return errNoKeeper
		}
		return nil
	}
}
