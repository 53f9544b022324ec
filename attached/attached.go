// SPDX-FileCopyrightText: The wcache authors
// SPDX-License-Identifier: MIT

// Package attached records which process was given which entry, in a memory file that the
// service manager keeps: if the daemon crashes just after it has answered an engine, the next
// daemon still knows that the engine has the entry. A write is a copy in memory, which waits
// for no disk and no other process.
package attached

import (
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"hash/crc32"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/wcache/wcache/internal/fd"
)

// Process is a process that may map an entry.
type Process struct {
	PID   int
	Name  string // /proc/PID/comm; the file keeps 16 bytes, as the kernel does
	Start uint64 // field 22 of /proc/PID/stat, which tells apart processes with the same pid
	Since time.Time
}

// Row is one process and one entry.
type Row struct {
	Entry string // manifest.ID: 64 hexadecimal digits
	Process
}

// A row takes size bytes of the file, all of them zero where it is free:
// the entry's id (32 bytes), pid (8), start (8), since in nanoseconds since 1970 (8),
// name (16, padded with zeros), CRC-32C of all that (4), padding. One system call writes a
// row; the checksum detects files that this package didn't write.
const (
	size    = 80
	summed  = 72
	nameLen = 16
	maxRows = 1 << 16
)

// File is the memory file. It is safe for concurrent use.
type File struct {
	fd *fd.FD

	mu   sync.Mutex
	rows []Row // by place in the file; in a free place Entry is ""
}

// New makes an empty file. The caller closes it.
func New() (*File, error) {
	f, err := fd.Memory("wcache-attached")
	if err != nil {
		return nil, fmt.Errorf("remember engines: %w", err)
	}
	return &File{fd: f}, nil
}

// Open opens a file that New made, in this process or an earlier one. It owns the descriptor
// from here on, unless there is an error. It treats rows that it can't read as free.
func Open(f *fd.FD) (*File, error) {
	var st unix.Stat_t
	if err := unix.Fstat(f.Int(), &st); err != nil {
		return nil, fmt.Errorf("read engines: %w", err)
	}
	if st.Mode&unix.S_IFMT != unix.S_IFREG || st.Size > maxRows*size {
		return nil, errors.New("read engines: the descriptor is not of their file")
	}
	b := make([]byte, st.Size)
	for n := 0; n < len(b); {
		m, err := unix.Pread(f.Int(), b[n:], int64(n))
		switch {
		case errors.Is(err, unix.EINTR):
		case err != nil:
			return nil, fmt.Errorf("read engines: %w", err)
		case m == 0:
			return nil, errors.New("read engines: the file is shorter than it was")
		default:
			n += m
		}
	}
	return &File{fd: f, rows: decode(b)}, nil
}

// FD is the file's descriptor, for the fd store. The File owns it.
func (f *File) FD() *fd.FD { return f.fd }

// Close closes the file.
func (f *File) Close() error { return f.fd.Close() }

// Rows lists all rows.
func (f *File) Rows() []Row {
	f.mu.Lock()
	defer f.mu.Unlock()
	var list []Row
	for _, r := range f.rows {
		if r.Entry != "" {
			list = append(list, r)
		}
	}
	return list
}

// Add records a process of an entry. It replaces an earlier row of the same process and
// entry.
func (f *File) Add(r Row) error {
	b, err := encode(r)
	if err != nil {
		return err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	free := -1
	for i, have := range f.rows {
		if have.Entry == r.Entry && have.PID == r.PID {
			free = i
			break
		}
		if free < 0 && have.Entry == "" {
			free = i
		}
	}
	if free < 0 {
		if len(f.rows) == maxRows {
			return fmt.Errorf("remember engine %d: there are %d already", r.PID, maxRows)
		}
		f.rows = append(f.rows, Row{})
		free = len(f.rows) - 1
	}
	if err := f.write(free, b); err != nil {
		return fmt.Errorf("remember engine %d: %w", r.PID, err)
	}
	f.rows[free] = r
	return nil
}

// Remove removes the rows for which gone is true.
func (f *File) Remove(gone func(Row) bool) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	var errs []error
	for i, r := range f.rows {
		if r.Entry == "" || !gone(r) {
			continue
		}
		if err := f.write(i, make([]byte, size)); err != nil {
			errs = append(errs, fmt.Errorf("forget engine %d: %w", r.PID, err))
			continue
		}
		f.rows[i] = Row{}
	}
	return errors.Join(errs...)
}

// write writes a place of the file. Precondition: mu is held.
func (f *File) write(place int, b []byte) error {
	for {
		n, err := unix.Pwrite(f.fd.Int(), b, int64(place)*size)
		switch {
		case errors.Is(err, unix.EINTR):
		case err != nil:
			return err
		case n != len(b):
			return fmt.Errorf("only %d of %d bytes were written", n, len(b))
		default:
			return nil
		}
	}
}

func encode(r Row) ([]byte, error) {
	id, err := hex.DecodeString(r.Entry)
	if err != nil || len(id) != 32 {
		return nil, fmt.Errorf("remember engine %d: %q is not the id of an entry", r.PID, r.Entry)
	}
	b := append(make([]byte, 0, size), id...)
	b = binary.LittleEndian.AppendUint64(b, uint64(r.PID))
	b = binary.LittleEndian.AppendUint64(b, r.Start)
	b = binary.LittleEndian.AppendUint64(b, uint64(r.Since.UnixNano()))
	var name [nameLen]byte
	copy(name[:], r.Name)
	b = append(b, name[:]...)
	b = binary.LittleEndian.AppendUint32(b, sum(b))
	return b[:size], nil
}

// decode reads the rows of a file. It treats invalid rows as free.
func decode(b []byte) []Row {
	rows := make([]Row, len(b)/size)
	for i := range rows {
		r := b[i*size:][:size]
		pid := binary.LittleEndian.Uint64(r[32:])
		if binary.LittleEndian.Uint32(r[summed:]) != sum(r[:summed]) || pid == 0 || pid > 1<<22 {
			continue
		}
		rows[i] = Row{Entry: hex.EncodeToString(r[:32]), Process: Process{
			PID: int(pid), Start: binary.LittleEndian.Uint64(r[40:]),
			Since: time.Unix(0, int64(binary.LittleEndian.Uint64(r[48:]))),
			Name:  strings.TrimRight(string(r[56:][:nameLen]), "\x00"),
		}}
	}
	return rows
}

func sum(b []byte) uint32 { return crc32.Checksum(b, crc32.MakeTable(crc32.Castagnoli)) }
