// SPDX-FileCopyrightText: The wcache authors
// SPDX-License-Identifier: MIT

package protocol

import (
	"fmt"

	"github.com/wcache/wcache/protocol/pickle"
	"github.com/wcache/wcache/tensor"
)

// Form says how an engine is told about memory. It is called for each tensor of
// a table in turn, with one encoder: what it [pickle.Encoder.Remember]s for one
// tensor it may recall for the next.
type Form interface {
	// Entry writes two items of a dict, ipc_args and cpu_tensor with their values:
	// the fields of vLLM's TensorEntry for tensor i of a valid table. Its error
	// says why the tensor can't be described.
	Entry(enc *pickle.Encoder, t *tensor.Table, i int) error
}

// State is the answer to get_state: all tensors of a rank.
type State struct {
	// Module is that of the request's key.
	Module string
	Table  *tensor.Table
	// Attrs says whether the model's attributes are sent: since vLLM 0.31.
	Attrs bool
	// GPUUUID is the device's, for the engine to compare with its own. Empty: it
	// is not sent, and then an engine of any release compares nothing.
	GPUUUID string
}

// Bytes of a reply for each entry, measured: what an encoder begins with.
const entryBytes = 112

// EncodedBytes is about how much memory the message of [EncodeState] takes: all but
// the ranges of its form.
func (s *State) EncodedBytes() int64 {
	return 1024 + entryBytes*int64(len(s.Table.Tensors)+len(s.Table.Aliases))
}

// EncodeState makes the answer to get_state. An engine takes a wrong table without a
// word, so one that isn't valid is an error, and so is any tensor that the form can't
// describe. The error is a *[FrameSizeError] where an engine would not take so many
// bytes. What the message has ranges of must stay as it is until it is written.
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

// An engine's unpickler keeps the items of a dict on its stack until they are
// set: a thousand at a time, as Python's pickler does.
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
