// SPDX-FileCopyrightText: The wcache authors
// SPDX-License-Identifier: MIT

package torch

import (
	"fmt"

	"github.com/wcache/wcache/protocol"
	"github.com/wcache/wcache/protocol/pickle"
	"github.com/wcache/wcache/tensor"
)

var _ protocol.Form = Legacy{}

// Legacy describes segments of GPU memory by handles of cudaIpcGetMemHandle, or of
// HIP's hipIpcGetMemHandle: an engine opens each once, and says where in it a tensor
// begins. The process that exported a handle must live whenever an engine opens it,
// and for as long as one uses the memory.
type Legacy struct {
	Handles [][64]byte // of each segment, for its first byte
	// Header says which torch is to read them. With 0 the handles are bare, as torch
	// had them before it knew expandable segments and still takes them.
	Header Header
}

// handle is the one of a segment as torch parses it: CUDACachingAllocator.cpp calls
// the kind SHAREABLE_CUDA_MALLOC.
func (l Legacy) handle(segment int) []byte {
	h := l.Handles[segment][:]
	if l.Header == 0 {
		return h
	}
	return append([]byte{byte(l.Header), 'c'}, h...)
}

// Entry is part of [protocol.Form].
func (l Legacy) Entry(enc *pickle.Encoder, t *tensor.Table, i int) error {
	x, s, err := look(t, i, len(l.Handles), "handles")
	if err != nil {
		return err
	}
	if l.Header != 0 && !l.Header.known() {
		return fmt.Errorf("torch has no header of version %d", l.Header)
	}
	arguments(enc, x, s, func() []byte { return l.handle(s.Segment) })
	return nil
}
