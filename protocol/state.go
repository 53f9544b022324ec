// SPDX-FileCopyrightText: The wcache authors
// SPDX-License-Identifier: MIT

package protocol

import (
	"fmt"

	"github.com/wcache/wcache/protocol/pickle"
	"github.com/wcache/wcache/tensor"
)

// Form describes memory to an engine. EncodeState calls it for each tensor of a table in turn,
// with one encoder: a value that it remembers ([pickle.Encoder.Remember]) for one tensor it can
// recall for the next.
type Form interface {
	// Entry writes two items of a dict, ipc_args and cpu_tensor with their values: fields of
	// vLLM's TensorEntry, for tensor i of a valid table. The error says why it can't
	// describe the tensor.
	Entry(enc *pickle.Encoder, t *tensor.Table, i int) error
}

// State is the answer to get_state: all tensors of a rank.
type State struct {
	// Module is the Python module of the request's key.
	Module string
	Table  *tensor.Table
	// Attrs says whether to send the model's attributes: from vLLM 0.31 on.
	Attrs bool
	// GPUUUID is the device's uuid, which the engine compares with its own. Empty: it is not
	// sent, and engines of all releases skip the comparison.
	GPUUUID string
}

// Bytes of a reply per entry, as measured: the initial buffer of the encoder.
const entryBytes = 112

// EncodedBytes is roughly how much memory the message of [EncodeState] takes, without the ranges
// of its form.
func (s *State) EncodedBytes() int64 {
	return 1024 + entryBytes*int64(len(s.Table.Tensors)+len(s.Table.Aliases))
}

// EncodeState makes the answer to get_state. An engine doesn't check the table, so an invalid
// table is an error, and so is a tensor that the form can't describe. The error is a
// *[FrameSizeError] if the message is longer than an engine accepts. The ranges of the message
// must not change until it is written.
func EncodeState(s State, f Form) (Message, error) {
	if err := s.Table.Validate(); err != nil {
		return nil, fmt.Errorf("encode reply: %w", err)
	}
	if !isModule(s.Module) {
		return nil, fmt.Errorf("encode reply: no module %q", s.Module)
	}
	enc := pickle.NewEncoder(int(s.EncodedBytes()))
	enc.EmptyDict()
	enc.Mark()
	enc.String("status")
	enc.String(StatusOK)
	enc.String("entries")
	err := dict(enc, len(s.Table.Tensors), func(i int) error { return s.entry(enc, f, i) })
	if err != nil {
		return nil, fmt.Errorf("encode reply: %w", err)
	}
	enc.String("aliases")
	_ = dict(enc, len(s.Table.Aliases), func(i int) error {
		enc.String(s.Table.Aliases[i].Name)
		enc.Name(s.Table.Aliases[i].Target)
		return nil
	})
	if s.Attrs {
		enc.String("attrs")
		_ = dict(enc, len(s.Table.Attrs), func(i int) error {
			enc.String(s.Table.Attrs[i].Name)
			enc.Bool(s.Table.Attrs[i].Value)
			return nil
		})
	}
	if s.GPUUUID != "" {
		enc.String("gpu_uuid")
		enc.String(s.GPUUUID)
	}
	enc.SetItems()
	var m Message
	if m, err = enc.Parts(); err == nil && m.Len() > MaxReply {
		err = &FrameSizeError{uint64(m.Len()), MaxReply}
	}
	if err != nil {
		return nil, fmt.Errorf("encode reply: %w", err)
	}
	return m, nil
}

func (s *State) entry(enc *pickle.Encoder, f Form, i int) error {
	x := &s.Table.Tensors[i]
	enc.String(x.Name)
	enc.Global(s.Module, entryClass)
	enc.EmptyTuple()
	enc.NewObj()
	enc.EmptyDict()
	enc.Mark()
	enc.Name("kind")
	enc.Name(string(x.Kind))
	if err := f.Entry(enc, s.Table, i); err != nil {
		return fmt.Errorf("tensor %q: %w", x.Name, err)
	}
	enc.SetItems()
	enc.Build()
	return nil
}

// The class of a reply's tensors.
const entryClass = "TensorEntry"

// An engine's unpickler keeps the items of a dict on its stack until SETITEMS: a thousand at a
// time, as Python's pickler writes them.
const batchSize = 1000

// dict writes a dict of n items.
func dict(enc *pickle.Encoder, n int, item func(i int) error) error {
	enc.EmptyDict()
	for i := range n {
		if i%batchSize == 0 {
			if i > 0 {
				enc.SetItems()
			}
			enc.Mark()
		}
		if err := item(i); err != nil {
			return err
		}
	}
	if n > 0 {
		enc.SetItems()
	}
	return nil
}
