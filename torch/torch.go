// SPDX-FileCopyrightText: The wcache authors
// SPDX-License-Identifier: MIT

// Package torch describes memory to PyTorch: it writes the part of a reply's pickle from which
// an engine's plain pickle.loads makes a tensor on existing memory. Each way is a
// [protocol.Form].
//
// A CPU tensor is a call of torch._utils._rebuild_tensor_v2 with a typed storage
// of torch.multiprocessing.reductions.rebuild_typed_storage, which torch 2.14
// reads for every element type; torch's own form by value fails there for 8-bit
// floats and unsigned integers. CUDA memory is described by ipc_args instead.
package torch

import (
	"fmt"
	"io"

	"github.com/wcache/wcache/protocol"
	"github.com/wcache/wcache/protocol/pickle"
	"github.com/wcache/wcache/tensor"
)

var (
	_ protocol.Form = Mapped{}
	_ protocol.Form = ByValue{}
)

// Mapped describes a segment as a file, /proc/PID/fd/N, that an engine maps privately and
// read-only, without a copy. That works for sealed memfds too, and the mapping outlives the
// process PID. Engine and PID must have the same user and pid namespace. The segment is one
// storage, so an engine maps it once.
type Mapped struct {
	PID int
	FD  int
}

// Entry is part of [protocol.Form].
func (m Mapped) Entry(enc *pickle.Encoder, t *tensor.Table, i int) error {
	x, s, err := look(t, i)
	if err != nil {
		return err
	}
	if s.Bytes == 0 {
		encode(enc, x, noBytes)
		return nil
	}
	encode(enc, x, storage{
		id:     wholeID,
		offset: s.Offset/int64(x.DType.Size()) + x.Offset,
		write: func(enc *pickle.Encoder) {
			enc.Global("torch", "UntypedStorage.from_file")
			enc.String(fmt.Sprintf("/proc/%d/fd/%d", m.PID, m.FD))
			enc.Bool(false) // shared: a shared mapping needs a writable file
			enc.Int(t.Segment)
			enc.Tuple(3)
		},
	})
	return nil
}

// wholeID is the id of the storage that is the whole segment.
const wholeID = 0

// look gives a tensor and its storage. It is an error if torch doesn't have the element type.
func look(t *tensor.Table, i int) (*tensor.Tensor, tensor.Storage, error) {
	x := &t.Tensors[i]
	if x.DType.Torch() == "" {
		return nil, tensor.Storage{}, fmt.Errorf("torch has no element type %s", x.DType)
	}
	return x, t.Storages[x.Storage], nil
}

// ByValue describes a segment by its bytes, which the reply contains, each storage once.
type ByValue struct {
	Segment io.ReaderAt
}

// Entry is part of [protocol.Form].
func (b ByValue) Entry(enc *pickle.Encoder, t *tensor.Table, i int) error {
	x, s, err := look(t, i)
	if err != nil {
		return err
	}
	if s.Bytes == 0 {
		encode(enc, x, noBytes)
		return nil
	}
	encode(enc, x, storage{
		id:     x.Storage,
		offset: x.Offset,
		write: func(enc *pickle.Encoder) {
			enc.Global("torch", "UntypedStorage.from_buffer")
			enc.Mark()
			enc.BytesFrom(b.Segment, s.Offset, s.Bytes)
			enc.Name("little")
			enc.Int(s.Bytes) // count of elements
			enc.Int(0)       // offset in the buffer
			enc.Global("torch", tensor.U8.Torch())
			enc.Tuple(5)
		},
	})
	return nil
}

// storage is the torch storage of a tensor.
type storage struct {
	id     int                   // tensors of one id share it
	offset int64                 // elements from its start to the tensor
	write  func(*pickle.Encoder) // the function that makes it, and its arguments
}

// noBytes is the storage of tensors without bytes. They begin at its start, with any offset in
// the table.
var noBytes = storage{
	id: -1,
	write: func(enc *pickle.Encoder) {
		enc.Global("torch", "UntypedStorage")
		enc.EmptyTuple()
	},
}

// encode writes both fields of a TensorEntry.
func encode(enc *pickle.Encoder, x *tensor.Tensor, s storage) {
	enc.Name("ipc_args")
	enc.None()
	enc.Name("cpu_tensor")
	enc.Global("torch._utils", "_rebuild_tensor_v2")
	enc.Mark()
	typed(enc, x.DType, s)
	enc.Int(s.offset)
	enc.Ints(x.Shape)
	enc.Ints(x.Stride)
	enc.Bool(false) // requires_grad
	enc.Global("collections", "OrderedDict")
	enc.EmptyTuple()
	enc.Reduce() // hooks: none, and no two tensors have the same dict for them
	enc.Tuple(6)
	enc.Reduce()
}

// typed writes a storage with elements of type d, on the untyped storage that tensors of other
// types may share.
func typed(enc *pickle.Encoder, d tensor.DType, s storage) {
	untypedID := s.id << 8
	typedID := untypedID | int(d)
	if enc.Recall(typedID) {
		return
	}
	enc.Global("torch.multiprocessing.reductions", "rebuild_typed_storage")
	if !enc.Recall(untypedID) {
		s.write(enc)
		enc.Reduce()
		enc.Remember(untypedID)
	}
	enc.Global("torch", d.Torch())
	enc.Tuple(2)
	enc.Reduce()
	enc.Remember(typedID)
}
