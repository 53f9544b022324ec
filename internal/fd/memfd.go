// SPDX-FileCopyrightText: The wcache authors
// SPDX-License-Identifier: MIT

package fd

import (
	"fmt"
	"io"
	"runtime"

	"golang.org/x/sys/unix"
)

// Seals make a memory file final: after them no process can change its bytes, its size or the
// seals (fcntl(2), "File Sealing").
const Seals = unix.F_SEAL_SHRINK | unix.F_SEAL_GROW | unix.F_SEAL_WRITE | unix.F_SEAL_SEAL

// Memory makes an empty memory file, close-on-exec, that can be sealed. The name appears in
// /proc/PID/fd. The caller owns the descriptor.
func Memory(name string) (*FD, error) {
	n, err := unix.MemfdCreate(name, unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING|unix.MFD_NOEXEC_SEAL)
	if err == unix.EINVAL { // MFD_NOEXEC_SEAL came with Linux 6.3
		n, err = unix.MemfdCreate(name, unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	}
	if err != nil {
		return nil, fmt.Errorf("make memory file %q: %w", name, err)
	}
	return New(n)
}

// Seal makes a memory file final. It fails while the file is mapped writable.
func (f *FD) Seal() error {
	_, err := unix.FcntlInt(uintptr(f.Int()), unix.F_ADD_SEALS, Seals)
	runtime.KeepAlive(f)
	if err != nil {
		return fmt.Errorf("seal memory file: %w", err)
	}
	return nil
}

// Sealed makes a sealed memory file with the contents b. The caller owns it.
func Sealed(name string, b []byte) (*FD, error) {
	f, err := Memory(name)
	if err != nil {
		return nil, err
	}
	for done := 0; done < len(b); {
		n, err := unix.Pwrite(f.Int(), b[done:], int64(done))
		if err == unix.EINTR {
			continue
		}
		if err != nil {
			_ = f.Close()
			return nil, fmt.Errorf("write memory file %q: %w", name, err)
		}
		done += n
	}
	if err := f.Seal(); err != nil {
		_ = f.Close()
		return nil, err
	}
	return f, nil
}

// ReadSealed reads a whole memory file that another process made with Sealed. It refuses a file
// that isn't sealed, or is larger than limit bytes.
func (f *FD) ReadSealed(limit int64) ([]byte, error) {
	defer runtime.KeepAlive(f)
	seals, err := unix.FcntlInt(uintptr(f.Int()), unix.F_GET_SEALS, 0)
	if err != nil {
		return nil, fmt.Errorf("read memory file: not a memory file: %w", err)
	}
	if seals&Seals != Seals {
		return nil, fmt.Errorf("read memory file: seals %#x, want %#x", seals, Seals)
	}
	var st unix.Stat_t
	if err := unix.Fstat(f.Int(), &st); err != nil {
		return nil, fmt.Errorf("read memory file: %w", err)
	}
	if st.Size > limit {
		return nil, fmt.Errorf("read memory file: %d bytes are over the limit of %d", st.Size, limit)
	}
	b := make([]byte, st.Size)
	for done := 0; done < len(b); {
		n, err := unix.Pread(f.Int(), b[done:], int64(done))
		if err == unix.EINTR {
			continue
		}
		if err == nil && n == 0 {
			err = io.ErrUnexpectedEOF
		}
		if err != nil {
			return nil, fmt.Errorf("read memory file: %w", err)
		}
		done += n
	}
	return b, nil
}
