// SPDX-FileCopyrightText: The wcache authors
// SPDX-License-Identifier: MIT

package torch

import (
	"github.com/wcache/wcache/protocol/pickle"
	"github.com/wcache/wcache/tensor"
)

var (
	// At its end a consumer decrements a counter in a file of /dev/shm, and removes the
	// file. A name with a slash inside is invalid for shm_open(3), so there is no such file.
	noCounter = []byte("/wcache/none")
	// A consumer ignores the event, since event_sync_required is false.
	noEvent = make([]byte, 64)
)

// Values that Entry remembers in an encoder.
const (
	handleID  = 0
	counterID = -1
	eventID   = -2
)

// arguments writes both fields of a TensorEntry of GPU memory: the arguments of
// rebuild_cuda_tensor in torch/multiprocessing/reductions.py. Handle gives the handle of the
// segment.
func arguments(enc *pickle.Encoder, x *tensor.Tensor, s tensor.Storage, handle func() []byte) {
	offset := x.Offset
	if s.Bytes == 0 {
		offset = 0 // torch makes its own empty storage
	}
	enc.Name("ipc_args")
	enc.Mark()
	enc.Global("torch", "Tensor")
	enc.Global("torch", "Size")
	enc.Ints(x.Shape)
	enc.Tuple(1)
	enc.Reduce()
	enc.Ints(x.Stride)
	enc.Int(offset)
	enc.Global("torch.storage", "TypedStorage")
	enc.Global("torch", x.DType.Torch())
	enc.Int(0) // the device, which an engine replaces by its own
	remembered(enc, handleID, handle)
	enc.Int(s.Bytes)
	enc.Int(s.Offset)
	enc.Bool(false) // requires_grad
	remembered(enc, counterID, func() []byte { return noCounter })
	enc.Int(0) // offset of the counter
	remembered(enc, eventID, func() []byte { return noEvent })
	enc.Bool(false) // to wait for the event
	enc.Tuple(15)
	enc.Name("cpu_tensor")
	enc.None()
}

// remembered writes bytes the first time, and then references to them.
func remembered(enc *pickle.Encoder, id int, b func() []byte) {
	if !enc.Recall(id) {
		enc.Bytes(b())
		enc.Remember(id)
	}
}
