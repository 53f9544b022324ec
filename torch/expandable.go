// SPDX-FileCopyrightText: The wcache authors
// SPDX-License-Identifier: MIT

package torch

import (
	"encoding/binary"
	"fmt"
	"strconv"
	"strings"

	"github.com/wcache/wcache/protocol"
	"github.com/wcache/wcache/protocol/pickle"
	"github.com/wcache/wcache/release"
	"github.com/wcache/wcache/tensor"
)

var _ protocol.Form = Expandable{}

// Expandable describes a segment of GPU memory by descriptors of process PID, in the form of
// torch's expandable segments: an engine fetches each descriptor (pidfd_getfd(2)), imports it,
// and maps all as one range, once. Engine and PID must have the same user and pid namespace, and
// PID must be dumpable; if Yama restricts ptrace(2), PID must have allowed it.
//
// PID needs no GPU, and mapped memory outlives it.
type Expandable struct {
	PID    int
	FDs    []int // numbers of the descriptors of the segment's pieces, which have equal size
	Header Header
}

// Header is a format of the header before the descriptor's number in a handle of an expandable
// segment: ShareHeader in c10/cuda/CUDACachingAllocator.cpp. A torch can't read a newer format
// than its own.
type Header byte

// Formats of a Header, by the first byte of the handle.
const (
	Header24 Header = 2 // 24 bytes: torch up to 2.12
	Header32 Header = 3 // 32 bytes, with a kind of descriptor: torch 2.13 and later
)

// HeaderFor returns the format that the torch of a vLLM release reads; false for a release whose
// torch isn't known.
func HeaderFor(vllmVersion string) (Header, bool) {
	r, ok := release.Like(vllmVersion)
	if !ok {
		return 0, false
	}
	return HeaderForTorch(r.Torch)
}

// HeaderForTorch returns the format that a torch reads, by its version, such as "2.14.0+cu130";
// false for an unknown version.
func HeaderForTorch(version string) (Header, bool) {
	major, rest, _ := strings.Cut(version, ".")
	minor, _, _ := strings.Cut(rest, ".")
	x, err := strconv.ParseUint(major, 10, 16)
	y, err2 := strconv.ParseUint(minor, 10, 16)
	switch {
	case err != nil || err2 != nil || x < 2:
		return 0, false
	case x == 2 && y <= 12:
		return Header24, true
	}
	return Header32, true
}

// posixFD is the kind of descriptor in a Header32.
const posixFD = 1

// handle makes the handle of a segment: the header, then the descriptor of each piece.
func (e Expandable) handle(bytes int64) []byte {
	le := binary.LittleEndian
	pieces := len(e.FDs)
	b := append(make([]byte, 0, 34+4*pieces), byte(e.Header), 'e')
	b = le.AppendUint64(b, uint64(uint32(e.PID)))       // 4 bytes, and 4 of padding
	b = le.AppendUint64(b, uint64(bytes/int64(pieces))) // size of a piece
	b = le.AppendUint64(b, uint64(pieces))
	if e.Header == Header32 {
		b = le.AppendUint64(b, posixFD) // as the PID
	}
	for _, fd := range e.FDs {
		b = le.AppendUint32(b, uint32(fd))
	}
	return b
}

// Entry is part of [protocol.Form].
func (e Expandable) Entry(enc *pickle.Encoder, t *tensor.Table, i int) error {
	x, s, err := look(t, i)
	if err != nil {
		return err
	}
	if !e.Header.known() {
		return fmt.Errorf("torch has no header of version %d", e.Header)
	}
	if n := int64(len(e.FDs)); n == 0 || t.Segment%n != 0 {
		return fmt.Errorf("a segment of %d bytes has %d pieces", t.Segment, n)
	}
	arguments(enc, x, s, func() []byte { return e.handle(t.Segment) })
	return nil
}

func (h Header) known() bool { return h == Header24 || h == Header32 }
