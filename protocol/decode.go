// SPDX-FileCopyrightText: The wcache authors
// SPDX-License-Identifier: MIT

package protocol

import (
	"errors"
	"fmt"

	"github.com/wcache/wcache/protocol/pickle"
	"github.com/wcache/wcache/tensor"
)

// The most values of a reply that DecodeReply accepts: some 40 per tensor, for the most tensors
// of a table.
const maxReplyItems = 40 * tensor.MaxTensors

// Reply is a daemon's answer as an engine sees it. Status and command determine which fields
// are set.
type Reply struct {
	Status  string   // StatusOK, StatusError or StatusMismatch
	Message string   // text of an error
	Fields  []string // fields of a mismatch
	// MemoryBytes is the answer to get_memory; HasMemory is false for other answers.
	MemoryBytes int64
	HasMemory   bool
	// The answer to get_state. HasAttrs is false for vLLM 0.30.
	Entries  []Entry
	Aliases  []tensor.Alias
	Attrs    []tensor.Attr
	HasAttrs bool
	GPUUUID  string
}

// Entry is one tensor of a reply: a strided view of a storage.
type Entry struct {
	Name   string
	Kind   tensor.Kind
	DType  tensor.DType // 0 if Storage.Saved holds it
	Shape  []int64      // elements per dimension
	Stride []int64      // elements
	Offset int64        // elements from the storage's start
	Storage
}

// Storage says where the bytes of a tensor are. At most one of Path, Data, Saved and Handle is
// set; none for a storage without bytes.
type Storage struct {
	Path   string // a file to map from its beginning
	Data   []byte // the bytes, a part of the decoded message
	Saved  []byte // a torch.save file with the bytes, as vLLM's own daemon sends CPU tensors
	Handle []byte // a handle of CUDA memory, in torch's format
	Bytes  int64  // the storage's size; 0 if Saved holds it
	// HandleOffset is where the storage begins in the handle's memory, in bytes.
	HandleOffset int64
}

// DecodeReply reads a reply of wcache or of vLLM's own daemon, releases 0.30 to
// 0.33. It checks the form of the reply, but not that views lie inside their storages. Slices
// of the result are parts of b.
func DecodeReply(b []byte) (*Reply, error) {
	v, err := pickle.Decode(b, pickle.Options{Allow: replyGlobal, MaxItems: maxReplyItems})
	if err != nil {
		return nil, fmt.Errorf("decode reply: %w", err)
	}
	dict, ok := v.(*pickle.Dict)
	if !ok {
		return nil, errors.New("decode reply: not a dict")
	}
	r := new(Reply)
	for _, item := range dict.Items {
		if err := r.read(item); err != nil {
			return nil, fmt.Errorf("decode reply: %s: %w", item.Key, err)
		}
	}
	switch r.Status {
	case StatusOK, StatusError, StatusMismatch:
		return r, nil
	}
	return nil, fmt.Errorf("decode reply: status %q", r.Status)
}

// read reads one item of a reply. It ignores unknown ones, which later releases may send.
func (r *Reply) read(item pickle.Item) (err error) {
	switch item.Key {
	case "status":
		r.Status, err = as[string](item.Value)
	case "message":
		r.Message, err = as[string](item.Value)
	case "fields":
		r.Fields, err = names(item.Value)
	case "memory_bytes":
		r.HasMemory = true
		r.MemoryBytes, err = as[int64](item.Value)
	case "gpu_uuid":
		if item.Value != nil {
			r.GPUUUID, err = as[string](item.Value)
		}
	case "entries":
		r.Entries, err = each(item.Value, readEntry)
	case "aliases":
		r.Aliases, err = each(item.Value, func(name string, v any) (tensor.Alias, error) {
			target, err := as[string](v)
			return tensor.Alias{Name: name, Target: target}, err
		})
	case "attrs":
		r.HasAttrs = true
		r.Attrs, err = each(item.Value, func(name string, v any) (tensor.Attr, error) {
			value, err := as[bool](v)
			return tensor.Attr{Name: name, Value: value}, err
		})
	}
	return err
}

func readEntry(name string, v any) (Entry, error) {
	e := Entry{Name: name}
	o, err := as[*pickle.Object](v)
	if err != nil {
		return e, err
	}
	state, err := as[*pickle.Dict](o.State)
	if err != nil {
		return e, err
	}
	if o.Class.Name != entryClass {
		return e, fmt.Errorf("instance of %s", o.Class)
	}
	kind, _ := state.Get("kind")
	ipc, _ := state.Get("ipc_args")
	cpu, _ := state.Get("cpu_tensor")
	switch kind {
	case string(tensor.Param), string(tensor.Buffer):
		e.Kind = tensor.Kind(kind.(string))
	default:
		return e, fmt.Errorf("kind is neither %q nor %q", tensor.Param, tensor.Buffer)
	}
	switch {
	case ipc != nil && cpu == nil:
		err = e.readIPC(ipc)
	case cpu != nil && ipc == nil:
		err = e.readCPU(cpu)
	default:
		err = errors.New("neither ipc_args nor cpu_tensor, or both")
	}
	return e, err
}

// each reads the items of a dict in order.
func each[T any](v any, read func(name string, v any) (T, error)) ([]T, error) {
	dict, err := as[*pickle.Dict](v)
	if err != nil {
		return nil, err
	}
	list := make([]T, len(dict.Items))
	for i, item := range dict.Items {
		if list[i], err = read(item.Key, item.Value); err != nil {
			return nil, fmt.Errorf("%q: %w", item.Key, err)
		}
	}
	return list, nil
}

func names(v any) ([]string, error) {
	list, err := as[*pickle.List](v)
	if err != nil {
		return nil, err
	}
	s := make([]string, len(list.Items))
	for i, item := range list.Items {
		if s[i], err = as[string](item); err != nil {
			return nil, err
		}
	}
	return s, nil
}

// as gives v as a T; the error names the type that it has instead.
func as[T any](v any) (T, error) {
	t, ok := v.(T)
	if !ok {
		return t, fmt.Errorf("is a %T, not a %T", v, t)
	}
	return t, nil
}
