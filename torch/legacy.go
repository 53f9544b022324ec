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

// Legacy describes a segment of GPU memory by a handle of cudaIpcGetMemHandle, or of HIP's
// hipIpcGetMemHandle. An engine opens it once, and finds tensors in it by their offsets. The
// process that exported the handle must live while engines open it or use the memory.
type Legacy struct {
	Handle [64]byte // of the first byte
	// Header is the format that the engine's torch reads. 0: handles without a header, as in
	// torch before expandable segments; newer versions read them too.
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
