// SPDX-FileCopyrightText: The wcache authors
// SPDX-License-Identifier: MIT

package protocol

import (
	"errors"
	"fmt"
	"strings"

	"github.com/wcache/wcache/fingerprint"
	"github.com/wcache/wcache/protocol/pickle"
)

// The commands of vLLM 0.30 to 0.33.
const (
	GetState  = "get_state"
	GetMemory = "get_memory" // since 0.32
	Release   = "release"
	Watch     = "watch" // since 0.33
)

// DefaultModule is the Python module of the messages' classes in vLLM 0.30 to 0.33.
const DefaultModule = "vllm.model_executor.model_loader.weight_cache.protocol"

// The only class that a request may name, in any module.
const keyClass = "WeightCacheKey"

const maxModule = 256 // bytes of a module's name

// Request is an engine's request. Only get_state has other fields than Cmd.
type Request struct {
	Cmd string
	// Key has the fields as the engine sent them; no field is required, and unknown ones are
	// kept.
	Key fingerprint.Key
	// HasKey is false if the request has no key, or another value in its place; then the
	// answer is [MissingKey].
	HasKey bool
	// KeyField is the key's name in the request: "cache_config" in vLLM 0.30 to 0.32,
	// "cache_key" from 0.33 on.
	KeyField string
	// Module is the Python module of the key's class, empty without a key. The reply's classes
	// have to be in the same module.
	Module string
	// IsReload says that the engine has mapped these weights before.
	IsReload bool
}

// DecodeRequest reads a request. It ignores what it doesn't know, except in the key: it accepts
// each field of the key, or refuses it by name. The error's text can be sent to the engine.
func DecodeRequest(b []byte) (*Request, error) {
	if len(b) > MaxRequest {
		return nil, fmt.Errorf("decode request: %w", &FrameSizeError{uint64(len(b)), MaxRequest})
	}
	v, err := pickle.Decode(b, pickle.Options{Allow: func(module, name string) bool {
		return name == keyClass && isModule(module) || pickle.Global{Module: module, Name: name} == resolvedRevision
	}})
	if err != nil {
		return nil, fmt.Errorf("decode request: %w", err)
	}
	dict, ok := v.(*pickle.Dict)
	if !ok {
		return nil, errors.New("decode request: not a dict")
	}
	req := new(Request)
	cmd, _ := dict.Get("cmd")
	if req.Cmd, ok = cmd.(string); !ok {
		return nil, errors.New("decode request: it has no command")
	}
	if req.Cmd != GetState {
		return req, nil
	}
	if err := req.state(dict); err != nil {
		return nil, fmt.Errorf("decode request: %w", err)
	}
	return req, nil
}

// state reads the parts of get_state. Only their names distinguish a request of 0.33 from an
// older one.
func (req *Request) state(dict *pickle.Dict) error {
	key, newer := dict.Get("cache_key")
	reload, hasReload := dict.Get("is_reload")
	if hasReload {
		var ok bool
		if req.IsReload, ok = reload.(bool); !ok {
			return errors.New("is_reload is not a bool")
		}
	}
	req.KeyField = "cache_key"
	if !newer && !hasReload {
		req.KeyField = "cache_config"
		key, _ = dict.Get("cache_config")
	}
	object, ok := key.(*pickle.Object)
	if !ok {
		return nil
	}
	fields, err := keyFields(object)
	if err != nil {
		return err
	}
	if req.Key, err = fingerprint.NewKey(fields); err != nil {
		return err
	}
	req.HasKey, req.Module = true, object.Class.Module
	return nil
}

func keyFields(o *pickle.Object) ([]fingerprint.Field, error) {
	state, ok := o.State.(*pickle.Dict)
	if !ok || len(o.Args) > 0 {
		return nil, fmt.Errorf("%s has no named fields", keyClass)
	}
	fields := make([]fingerprint.Field, len(state.Items))
	for i, item := range state.Items {
		v, err := plain(item.Value)
		if err != nil {
			return nil, fmt.Errorf("field %q of %s: %w", item.Key, keyClass, err)
		}
		fields[i] = fingerprint.Field{Name: item.Key, Value: v}
	}
	return fields, nil
}

// plain turns a pickled value into the value of a key. It makes a tuple of a list: no release
// sends both in the same field, so the comparison with other keys has the same result.
func plain(v any) (any, error) {
	var items []any
	switch v := v.(type) {
	case nil, bool, int64, float64, string:
		return v, nil
	case pickle.Tuple:
		items = v
	case *pickle.List:
		items = v.Items
	case *pickle.Call:
		return revision(v)
	default:
		return nil, fmt.Errorf("value of a type that keys don't have: %T", v)
	}
	t := make(fingerprint.Tuple, len(items))
	for i := range items {
		var err error
		if t[i], err = plain(items[i]); err != nil {
			return nil, err
		}
	}
	return t, nil
}

// resolvedRevision is a string type of huggingface_hub since 2.3 (_revision.py), which vLLM
// sends for a model id that it has looked up at the hub. It is made from the commit and,
// optionally, the revision as the user gave it, the repository and its type.
var resolvedRevision = pickle.Global{Module: "huggingface_hub._revision", Name: "ResolvedRevision"}

// revision turns such a string into the tuple that [fingerprint.Key.Revision] reads.
func revision(c *pickle.Call) (any, error) {
	if c.Func != resolvedRevision {
		return nil, fmt.Errorf("call of %s, which keys don't have", c.Func)
	}
	t := make(fingerprint.Tuple, fingerprint.RevisionParts)
	if len(c.Args) == 0 || len(c.Args) > len(t) {
		return nil, fmt.Errorf("%s of %d values", c.Func, len(c.Args))
	}
	for i, v := range c.Args {
		switch v.(type) {
		case nil, string:
			t[i] = v
		default:
			return nil, fmt.Errorf("%s of a %T", c.Func, v)
		}
	}
	return t, nil
}

// isRevision reports whether a tuple is what revision makes of such a string.
func isRevision(t pickle.Tuple) bool {
	for _, v := range t {
		switch v.(type) {
		case nil, string:
		default:
			return false
		}
	}
	return len(t) == fingerprint.RevisionParts
}

// EncodeRequest writes a request as an engine would. A get_state with KeyField
// "cache_config" is of vLLM 0.30 to 0.32, which know no is_reload; without a
// Module the key's class is in [DefaultModule].
func EncodeRequest(req *Request) ([]byte, error) {
	dict := &pickle.Dict{Items: []pickle.Item{{Key: "cmd", Value: req.Cmd}}}
	if req.HasKey {
		class := pickle.Global{Module: DefaultModule, Name: keyClass}
		if req.Module != "" {
			class.Module = req.Module
		}
		state := new(pickle.Dict)
		for _, f := range req.Key.Fields() {
			value := pickled(f.Value)
			if t, ok := value.(pickle.Tuple); ok && f.Name == "revision" && isRevision(t) {
				value = &pickle.Call{Func: resolvedRevision, Args: t}
			}
			state.Items = append(state.Items, pickle.Item{Key: f.Name, Value: value})
		}
		key := &pickle.Object{Class: class, Args: pickle.Tuple{}, State: state}
		dict.Items = append(dict.Items, pickle.Item{Key: req.KeyField, Value: key})
	}
	if req.KeyField == "cache_key" {
		dict.Items = append(dict.Items, pickle.Item{Key: "is_reload", Value: req.IsReload})
	}
	b, err := pickle.Encode(dict)
	if err != nil {
		return nil, fmt.Errorf("encode request: %w", err)
	}
	return b, nil
}

func pickled(v any) any {
	t, ok := v.(fingerprint.Tuple)
	if !ok {
		return v
	}
	items := make(pickle.Tuple, len(t))
	for i := range t {
		items[i] = pickled(t[i])
	}
	return items
}

// isModule reports whether s is a dotted path of identifiers. Other names are refused, since the
// name goes into replies and logs.
func isModule(s string) bool {
	if len(s) > maxModule {
		return false
	}
	for part := range strings.SplitSeq(s, ".") {
		for i, c := range []byte(part) {
			letter := c == '_' || 'a' <= c|0x20 && c|0x20 <= 'z'
			if !letter && (i == 0 || c < '0' || c > '9') {
				return false
			}
		}
		if part == "" {
			return false
		}
	}
	return true
}
