// SPDX-FileCopyrightText: The wcache authors
// SPDX-License-Identifier: MIT

package protocol

import (
	"errors"
	"fmt"

	"github.com/wcache/wcache/protocol/pickle"
	"github.com/wcache/wcache/tensor"
)

// The functions and classes that make a reply's tensors: torch/_utils.py,
// torch/storage.py and torch/multiprocessing/reductions.py of torch 2.11 to 2.14.
var (
	rebuildTensor  = pickle.Global{Module: "torch._utils", Name: "_rebuild_tensor_v2"}
	rebuildStorage = pickle.Global{Module: "torch.multiprocessing.reductions", Name: "rebuild_typed_storage"}
	untyped        = pickle.Global{Module: "torch", Name: "UntypedStorage"}
	fromFile       = pickle.Global{Module: "torch", Name: "UntypedStorage.from_file"}
	fromBuffer     = pickle.Global{Module: "torch", Name: "UntypedStorage.from_buffer"}
	typedStorage   = pickle.Global{Module: "torch.storage", Name: "TypedStorage"}
	loadFromBytes  = pickle.Global{Module: "torch.storage", Name: "_load_from_bytes"}
	tensorClass    = pickle.Global{Module: "torch", Name: "Tensor"}
	sizeClass      = pickle.Global{Module: "torch", Name: "Size"}
	orderedDict    = pickle.Global{Module: "collections", Name: "OrderedDict"}
)

// replyGlobal reports whether a reply may name an attribute. TensorEntry is in the module of the
// request's key.
func replyGlobal(module, name string) bool {
	switch g := (pickle.Global{Module: module, Name: name}); g {
	case rebuildTensor, rebuildStorage, untyped, fromFile, fromBuffer, typedStorage, loadFromBytes, tensorClass, sizeClass, orderedDict:
		return true
	default:
		_, err := dtype(g)
		return err == nil || name == entryClass && isModule(module)
	}
}

// readCPU reads the call that makes a CPU tensor:
// _rebuild_tensor_v2(storage, offset, size, stride, requires_grad, hooks).
func (e *Entry) readCPU(v any) error {
	args, err := call(v, rebuildTensor, 6)
	if err != nil {
		return err
	}
	if e.Offset, err = as[int64](args[1]); err != nil {
		return fmt.Errorf("offset: %w", err)
	}
	if e.Shape, err = ints(args[2]); err != nil {
		return fmt.Errorf("shape: %w", err)
	}
	if e.Stride, err = ints(args[3]); err != nil {
		return fmt.Errorf("stride: %w", err)
	}
	if err := e.readStorage(args[0]); err != nil {
		return fmt.Errorf("storage: %w", err)
	}
	return nil
}

func (e *Entry) readStorage(v any) error {
	if args, err := call(v, loadFromBytes, 1); err == nil {
		e.Saved, err = as[[]byte](args[0])
		return err
	}
	args, err := call(v, rebuildStorage, 2)
	if err != nil {
		return err
	}
	if e.DType, err = dtype(args[1]); err != nil {
		return err
	}
	c, err := as[*pickle.Call](args[0])
	if err != nil {
		return err
	}
	switch {
	case c.Func == untyped && len(c.Args) == 0:
		return nil
	case c.Func == fromFile && len(c.Args) == 3 && c.Args[1] == false: // true would map it shared
		if e.Path, err = as[string](c.Args[0]); err != nil {
			return err
		}
		e.Bytes, err = as[int64](c.Args[2])
		return err
	case c.Func == fromBuffer && len(c.Args) == 5:
		if e.Data, err = as[[]byte](c.Args[0]); err != nil {
			return err
		}
		if e.Bytes = int64(len(e.Data)); c.Args[2] != e.Bytes || c.Args[3] != int64(0) {
			return fmt.Errorf("count %v and offset %v of %d bytes", c.Args[2], c.Args[3], e.Bytes)
		}
		return nil
	}
	return fmt.Errorf("made by %s with %d arguments", c.Func, len(c.Args))
}

// readIPC reads the arguments of rebuild_cuda_tensor in
// torch/multiprocessing/reductions.py; the numbers are their positions.
func (e *Entry) readIPC(v any) error {
	args, err := as[pickle.Tuple](v)
	if err != nil {
		return err
	}
	if len(args) != 15 || args[0] != tensorClass || args[4] != typedStorage {
		return fmt.Errorf("%d ipc_args, or not of a tensor", len(args))
	}
	if e.Shape, err = size(args[1]); err != nil {
		return fmt.Errorf("shape: %w", err)
	}
	if e.Stride, err = ints(args[2]); err != nil {
		return fmt.Errorf("stride: %w", err)
	}
	if e.Offset, err = as[int64](args[3]); err != nil {
		return fmt.Errorf("offset: %w", err)
	}
	if e.DType, err = dtype(args[5]); err != nil {
		return err
	}
	if e.Handle, err = as[[]byte](args[7]); err != nil {
		return fmt.Errorf("handle: %w", err)
	}
	if e.Bytes, err = as[int64](args[8]); err != nil {
		return fmt.Errorf("size of the storage: %w", err)
	}
	if e.HandleOffset, err = as[int64](args[9]); err != nil {
		return fmt.Errorf("offset in the handle: %w", err)
	}
	return nil
}

// call gives the arguments of a call of f with n arguments.
func call(v any, f pickle.Global, n int) (pickle.Tuple, error) {
	c, ok := v.(*pickle.Call)
	if !ok || c.Func != f || len(c.Args) != n {
		return nil, fmt.Errorf("no call of %s with %d arguments", f, n)
	}
	return c.Args, nil
}

func dtype(v any) (tensor.DType, error) {
	g, ok := v.(pickle.Global)
	if !ok {
		return 0, errors.New("element type is not a name")
	}
	return tensor.ParseTorch(g.String())
}

// size reads a torch.Size.
func size(v any) ([]int64, error) {
	args, err := call(v, sizeClass, 1)
	if err != nil {
		return nil, err
	}
	return ints(args[0])
}

func ints(v any) ([]int64, error) {
	t, err := as[pickle.Tuple](v)
	if err != nil {
		return nil, err
	}
	if len(t) > tensor.MaxDims {
		return nil, fmt.Errorf("%d dimensions", len(t))
	}
	n := make([]int64, len(t))
	for i := range t {
		if n[i], err = as[int64](t[i]); err != nil {
			return nil, err
		}
	}
	return n, nil
}
