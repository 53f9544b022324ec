// SPDX-FileCopyrightText: The wcache authors
// SPDX-License-Identifier: MIT

// Package fingerprint holds the key by which an engine names the weights that it
// wants: vLLM's WeightCacheKey, an ordered set of named values whose names
// change from release to release. It compares two keys, computes the one that a
// release would make of a model directory, and explains how an engine's key
// differs from it.
//
// It follows vllm/model_executor/model_loader/weight_cache/protocol.py of vLLM
// 0.30 to 0.33.
package fingerprint

import "errors"

// Tuple is a value made of values, as Python's tuple.
type Tuple []any

// Field is one named value of a key: nil, bool, int64, float64, string or
// [Tuple] of these.
type Field struct {
	Name  string
	Value any
}

// Key is an ordered set of fields. It is immutable and safe for concurrent use.
// The zero Key has no fields.
type Key struct {
	fields []Field
}

// NewKey makes a key of fields in the engine class's order. It copies them.
func NewKey(fields []Field) (Key, error) { return Key{}, errors.New("make key: not built yet") }

// Fields is a copy of the fields, in order.
func (k Key) Fields() []Field { return nil }

// Len is the number of fields.
func (k Key) Len() int { return len(k.fields) }

// Get is the value of a field, false if the key lacks it.
func (k Key) Get(name string) (any, bool) { return nil, false }

// Str is the value of a string field, "" if the key lacks it or it is no string.
func (k Key) Str(name string) string { return "" }

// Int is the value of an integer field, missing if the key lacks it or it is no integer.
func (k Key) Int(name string, missing int64) int64 { return missing }

// Bool is the value of a bool field, false if the key lacks it or it is no bool.
func (k Key) Bool(name string) bool { return false }

// ID is 64 hexadecimal digits of a sha256 over every field.
func (k Key) ID() string { return "" }

// Equal reports whether both keys have the same fields with the same values.
func (k Key) Equal(o Key) bool { return false }

// MarshalJSON writes an object with the fields in order.
func (k Key) MarshalJSON() ([]byte, error) { return nil, errors.New("encode key: not built yet") }

// UnmarshalJSON reads such an object.
func (k *Key) UnmarshalJSON(b []byte) error { return errors.New("decode key: not built yet") }

// Compare names the fields that differ, in the engine's order; fields that only
// cached has come last. A field on one side only differs.
func Compare(engine, cached Key) []string { return nil }
