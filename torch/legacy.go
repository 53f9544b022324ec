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

// Legacy describes a segment of GPU memory by a handle of cudaIpcGetMemHandle, or of
// HIP's hipIpcGetMemHandle: an engine opens it once, and says where in it a tensor
// begins. The process that exported a handle must live whenever an engine opens it,
// and for as long as one uses the memory.
type Legacy struct {
	Handle [64]byte // of the first byte
	// Header says which torch is to read them. With 0 the handles are bare, as torch
	// had them before it knew expandable segments and still takes them.
	Header Header
}

// handle is the handle as torch parses it: CUDACachingAllocator.cpp calls
// the kind SHAREABLE_CUDA_MALLOC.
func (l Legacy) handle() []byte {
	h := l.Handle[:]
	if l.Header == 0 {
		return h
	}
	return append([]byte{byte(l.Header), 'c'}, h...)
}

// Entry is part of [protocol.Form].
func (l Legacy) Entry(enc *pickle.Encoder, t *tensor.Table, i int) error {
	x, s, err := look(t, i)
	if err != nil {
		return err
	}
	if l.Header != 0 && !l.Header.known() {
		return fmt.Errorf("torch has no header of version %d", l.Header)
	}
	arguments(enc, x, s, l.handle)
	return nil
}
