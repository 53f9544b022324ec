// SPDX-FileCopyrightText: The wcache authors
// SPDX-License-Identifier: MIT

// Package fingerprint holds the key by which an engine names the weights that it
// wants: vLLM's WeightCacheKey, an ordered set of named values whose names change
// from release to release. It compares two keys, computes the key that a release would
// send for a model directory, and explains how an engine's key differs from it.
//
// It follows vllm/model_executor/model_loader/weight_cache/protocol.py of vLLM
// 0.30 to 0.33.
package fingerprint

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"maps"
	"math"
	"slices"
	"unicode/utf8"
)

// Limits of a key. vLLM 0.33's has 22 fields; a tuple of layer names is its
// longest value.
const (
	maxFields = 256
	maxName   = 256     // bytes
	maxValue  = 1 << 20 // bytes of all strings together
	maxDepth  = 4       // tuples in tuples
)

// Tuple is a list of values, as Python's tuple.
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
	at     map[string]int
}

// NewKey makes a key from fields in the order of the engine's class. It copies them; an
// int becomes an int64 and a []any a [Tuple].
func NewKey(fields []Field) (Key, error) {
	if len(fields) > maxFields {
		return Key{}, fmt.Errorf("make key: %d fields are over the limit of %d", len(fields), maxFields)
	}
	k := Key{fields: make([]Field, 0, len(fields)), at: make(map[string]int, len(fields))}
	size := 0
	for _, f := range fields {
		if f.Name == "" || len(f.Name) > maxName || !utf8.ValidString(f.Name) {
			return Key{}, fmt.Errorf("make key: field name %.40q is empty, over %d bytes, or not UTF-8", f.Name, maxName)
		}
		if _, ok := k.at[f.Name]; ok {
			return Key{}, fmt.Errorf("make key: field %q twice", f.Name)
		}
		v, err := copyValue(f.Value, 0, &size)
		if err != nil {
			return Key{}, fmt.Errorf("make key: field %q: %w", f.Name, err)
		}
		k.at[f.Name] = len(k.fields)
		k.fields = append(k.fields, Field{f.Name, v})
	}
	return k, nil
}

// copyValue copies a value and adds its size to size.
func copyValue(v any, depth int, size *int) (any, error) {
	*size++
	switch x := v.(type) {
	case nil, bool, int64:
	case int:
		v = int64(x)
	case float64:
		if math.IsNaN(x) || math.IsInf(x, 0) {
			return nil, fmt.Errorf("%v can't be compared", x)
		}
	case string:
		if !utf8.ValidString(x) {
			return nil, fmt.Errorf("string %.40q is not UTF-8", x)
		}
		*size += len(x)
	case []any:
		return copyValue(Tuple(x), depth, size)
	case Tuple:
		if depth == maxDepth {
			return nil, fmt.Errorf("more than %d tuples in each other", maxDepth)
		}
		t := make(Tuple, len(x))
		for i := range x {
			var err error
			if t[i], err = copyValue(x[i], depth+1, size); err != nil {
				return nil, err
			}
		}
		return t, nil
	default:
		return nil, fmt.Errorf("a %T can't be a value of a key", v)
	}
	if *size > maxValue {
		return nil, fmt.Errorf("values take more than %d bytes", maxValue)
	}
	return v, nil
}

// Fields gives the fields in order. The slice is the caller's; the tuples in it must not
// be changed.
func (k Key) Fields() []Field { return slices.Clone(k.fields) }

// Get is the value of a field, false if the key lacks it.
func (k Key) Get(name string) (any, bool) {
	i, ok := k.at[name]
	if !ok {
		return nil, false
	}
	return k.fields[i].Value, true
}

// Str is the value of a string field, "" if the key lacks it or it isn't a string.
func (k Key) Str(name string) string {
	v, _ := k.Get(name)
	s, _ := v.(string)
	return s
}

// Int is the value of an integer field, missing if the key lacks it or it isn't an
// integer.
func (k Key) Int(name string, missing int64) int64 {
	v, _ := k.Get(name)
	if n, ok := v.(int64); ok {
		return n
	}
	return missing
}

// Bool is the value of a bool field, false if the key lacks it or it isn't a bool.
func (k Key) Bool(name string) bool {
	v, _ := k.Get(name)
	b, _ := v.(bool)
	return b
}

// RevisionParts is the number of values of a revision that is a [Tuple]: the commit, the
// revision as given, the repository's id and its type, each a string or nil.
const RevisionParts = 4

// Revision is what a key says about the revision of a model id.
type Revision struct {
	Name   string // a branch, a tag or a commit as given, "" for none
	Commit string // the commit to which the engine resolved it, "" if the key doesn't say
	Repo   string // its repository, as owner/name; "" if the key doesn't say
}

// Revision reads the field of that name, which is text or, if the engine has asked the
// hub, a tuple of [RevisionParts].
func (k Key) Revision() Revision {
	v, _ := k.Get("revision")
	t, ok := v.(Tuple)
	if !ok || len(t) != RevisionParts {
		return Revision{Name: k.Str("revision")}
	}
	text := func(i int) string { s, _ := t[i].(string); return s }
	return Revision{Name: text(1), Commit: text(0), Repo: text(2)}
}

// Exact is the commit, or else the revision as given.
func (r Revision) Exact() string {
	if r.Commit != "" {
		return r.Commit
	}
	return r.Name
}

// ID is 64 hexadecimal digits that are the same for equal keys and differ for others: a
// sha256 over names and values, sorted by name.
func (k Key) ID() string {
	names := slices.Sorted(maps.Keys(k.at))
	b := binary.AppendUvarint(nil, uint64(len(names)))
	for _, name := range names {
		b = appendValue(b, name)
		b = appendValue(b, k.fields[k.at[name]].Value)
	}
	sum := sha256.Sum256(b)
	return hex.EncodeToString(sum[:])
}

// appendValue writes a value so that different values give different bytes: a letter
// for the type, and a length if the size varies.
func appendValue(b []byte, v any) []byte {
	switch v := v.(type) {
	case bool:
		if v {
			return append(b, 't')
		}
		return append(b, 'f')
	case int64:
		return binary.BigEndian.AppendUint64(append(b, 'i'), uint64(v))
	case float64:
		return binary.BigEndian.AppendUint64(append(b, 'd'), math.Float64bits(v+0)) // -0 is 0
	case string:
		return append(binary.AppendUvarint(append(b, 's'), uint64(len(v))), v...)
	case Tuple:
		b = binary.AppendUvarint(append(b, '('), uint64(len(v)))
		for _, x := range v {
			b = appendValue(b, x)
		}
		return b
	}
	return append(b, 'n')
}

// Equal reports whether both keys have the same fields with the same values, in any
// order.
func (k Key) Equal(o Key) bool { return len(Compare(k, o)) == 0 }

// Compare names the fields that differ: first those of the engine's key, in its order,
// then those that only the cached key has. A field that one side lacks differs, whatever
// its value is. Equal keys give nil.
func Compare(engine, cached Key) []string {
	var names []string
	for _, f := range engine.fields {
		if v, ok := cached.Get(f.Name); !ok || !same(f.Value, v) {
			names = append(names, f.Name)
		}
	}
	for _, f := range cached.fields {
		if _, ok := engine.at[f.Name]; !ok {
			names = append(names, f.Name)
		}
	}
	return names
}

func same(a, b any) bool {
	x, ok := a.(Tuple)
	if !ok {
		if _, ok := b.(Tuple); ok {
			return false
		}
		return a == b
	}
	y, ok := b.(Tuple)
	return ok && slices.EqualFunc(x, y, same)
}
