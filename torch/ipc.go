// SPDX-FileCopyrightText: The wcache authors
// SPDX-License-Identifier: MIT

package torch

import (
	"github.com/wcache/wcache/protocol/pickle"
	"github.com/wcache/wcache/tensor"
)

var (
	// A consumer counts down in a file of /dev/shm when it is done, and removes the
	// file. shm_open(3) takes no name with a slash inside, so there is none.
	noCounter = []byte("/wcache/none")
	// A consumer waits for no event that it is told not to wait for.
	noEvent = make([]byte, 64)
)

// What Entry remembers in an encoder.
const (
	handleID  = 0
	counterID = -1
	eventID   = -2
)

// arguments writes both fields of a TensorEntry of GPU memory: the arguments of
// rebuild_cuda_tensor in torch/multiprocessing/reductions.py. Handle is that of the
// segment.
func arguments(enc *pickle.Encoder, x *tensor.Tensor, s tensor.Storage, handle func() []byte) {
	offset := x.Offset
	if s.Bytes == 0 {
		offset = 0 // torch makes an empty storage of its own
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
	enc.Int(0) // the device, for which an engine puts its own
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

// remembered writes bytes once, and a reference to them from then on.
func remembered(enc *pickle.Encoder, id int, b func() []byte) {
	if !enc.Recall(id) {
		enc.Bytes(b())
		enc.Remember(id)
	}
}
