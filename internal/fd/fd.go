// SPDX-FileCopyrightText: The wcache authors
// SPDX-License-Identifier: MIT

// Package fd gives a file descriptor an owner, and reads and writes the sealed memory files
// (memfd_create(2)) by which wcache's processes exchange data.
package fd

import (
	"fmt"
	"runtime"
	"sync/atomic"

	"golang.org/x/sys/unix"
)

// FD owns a descriptor of any kind until Close or Disown. The garbage collector closes an FD
// that is lost without either; tests fail on that, see [Open].
//
// Int, Close, Disown and Dup are safe for concurrent use. As with any
// descriptor, a number got from Int must not be used after Close.
type FD struct {
	n       atomic.Int64 // -1 once closed or disowned
	closing func(n int)
	cleanup runtime.Cleanup
}

// New takes ownership of descriptor n, which it neither duplicates nor checks.
func New(n int) (*FD, error) {
	if n < 0 {
		return nil, fmt.Errorf("own descriptor: %d is none", n)
	}
	f := new(FD)
	f.n.Store(int64(n))
	f.cleanup = runtime.AddCleanup(f, func(n int) {
		lose(n)
		_ = unix.Close(n) // no caller is left for an error
	}, n)
	remember(n)
	return f, nil
}

// Int is the descriptor's number, -1 after Close or Disown.
func (f *FD) Int() int { return int(f.n.Load()) }

// OnClose makes Close call do with the descriptor's number just before it closes the
// descriptor. Call OnClose before other goroutines have f.
func (f *FD) OnClose(do func(n int)) { f.closing = do }

// Close closes the descriptor. A second Close, or one after Disown, does nothing.
func (f *FD) Close() error {
	n := f.Disown()
	if n < 0 {
		return nil
	}
	if f.closing != nil {
		f.closing(n)
	}
	if err := unix.Close(n); err != nil {
		return fmt.Errorf("close descriptor %d: %w", n, err)
	}
	return nil
}

// Disown gives the descriptor to the caller, who has to close it; -1 after Close or Disown.
func (f *FD) Disown() int {
	n := int(f.n.Swap(-1))
	if n >= 0 {
		f.cleanup.Stop()
		forget(n)
	}
	return n
}

// Dup makes a second descriptor, close-on-exec, of the same open file. The
// caller owns it.
func (f *FD) Dup() (*FD, error) {
	n, err := unix.FcntlInt(uintptr(f.Int()), unix.F_DUPFD_CLOEXEC, 0)
	runtime.KeepAlive(f)
	if err != nil {
		return nil, fmt.Errorf("duplicate descriptor: %w", err)
	}
	return New(n)
}

// File identifies the file of a descriptor by fstat(2): two descriptors that are open at the
// same time with equal texts have the same file. For exported GPU memory it only identifies
// the driver's device.
func (f *FD) File() (string, error) {
	var st unix.Stat_t
	err := unix.Fstat(f.Int(), &st)
	runtime.KeepAlive(f)
	if err != nil {
		return "", fmt.Errorf("look at descriptor: %w", err)
	}
	return fmt.Sprintf("%o %x:%d %x", st.Mode&unix.S_IFMT, st.Dev, st.Ino, st.Rdev), nil
}
