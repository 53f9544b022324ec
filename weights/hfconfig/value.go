// SPDX-FileCopyrightText: The wcache authors
// SPDX-License-Identifier: MIT

package hfconfig

import (
	"fmt"
	"maps"
	"math"
	"math/big"
	"slices"
	"strconv"
	"strings"
)

// Part is a part of a configuration. Each part is readable or not, independently of the
// others, see [Config.Check].
type Part int

// The parts.
const (
	Architecture   Part = iota // architectures and model_type
	ElementType                // dtype and torch_dtype
	Quantization               // quantization_config and hf_quant_config.json
	RopeParameters             // rope_parameters, its older forms, and max_position_embeddings
	Shapes                     // sizes, numbers of heads and layers, biases, and whether embeddings are tied

	parts = int(Shapes) + 1
)

// Invalid is the error for a value of another type than transformers documents for its
// key, if it isn't certain what Python makes of it: Python takes 0, "" and null for
// false, 1 for true and true for 1, and each place in transformers and vLLM that reads a
// value decides by itself.
type Invalid struct {
	Key   string // as config.json spells it
	Value string // as [Show] writes it
	Want  string // what it should be, such as "true or false"
}

//diag unsupported KEY VALUE TYPE
// The value in `config.json` has another type than documented for its key, so it is not certain
// how the engine reads it. Correct the file, or let the engine load from disk.

func (e *Invalid) Error() string { return fmt.Sprintf("%s is %s, not %s", e.Key, e.Value, e.Want) }

func invalid(key string, v any, want string) error {
	return &Invalid{Key: key, Value: Show(v), Want: want}
}

// reader takes values of documented types out of an object and keeps the first error,
// an [*Invalid].
type reader struct {
	m   map[string]any
	err error
}

func (r *reader) fail(key string, v any, want string) {
	if r.err == nil {
		r.err = invalid(key, v, want)
	}
}

// size is an integer from 1 to maxSize, or missing if the key is absent. After an
// error it is 0.
func (r *reader) size(key string, missing int64) int64 {
	v, given := r.m[key]
	if !given {
		return missing
	}
	n, ok := v.(int64)
	if !ok || n <= 0 || n > maxSize {
		r.fail(key, v, fmt.Sprintf("an integer from 1 to %d", maxSize))
		return 0
	}
	return n
}

// integer is an integer of any sign.
func (r *reader) integer(key string, missing int64) int64 {
	v, given := r.m[key]
	if !given {
		return missing
	}
	n, ok := v.(int64)
	if !ok {
		r.fail(key, v, "an integer")
	}
	return n
}

// flag is a bool, false if the key is absent.
func (r *reader) flag(key string) bool {
	v, given := r.m[key]
	if !given {
		return false
	}
	b, ok := v.(bool)
	if !ok {
		r.fail(key, v, "true or false")
	}
	return b
}

// bias is a flag for which None counts as False: vLLM passes it to a layer, which only
// asks "if bias".
func (r *reader) bias(key string) bool {
	if v, given := r.m[key]; given && v == nil {
		return false
	}
	return r.flag(key)
}

// shown is how many bytes of a value [Show] writes at least.
const shown = 40

// Show writes a value of a configuration for people: as JSON, with NaN and the
// infinities as Python writes them. It cuts long values.
func Show(v any) string {
	var b strings.Builder
	show(&b, v)
	text := b.String()
	if len(text) <= shown {
		return text
	}
	cut := shown
	for cut > 0 && text[cut]&0xc0 == 0x80 { // don't cut inside a character
		cut--
	}
	return text[:cut] + "…"
}

// show stops when enough is written.
func show(b *strings.Builder, v any) {
	switch v := v.(type) {
	case nil:
		b.WriteString("null")
	case bool:
		b.WriteString(strconv.FormatBool(v))
	case int64:
		b.WriteString(strconv.FormatInt(v, 10))
	case *big.Int:
		b.WriteString(v.String()) // 4300 digits at most
	case float64:
		b.WriteString(showFloat(v))
	case string:
		b.WriteString(strconv.Quote(v[:min(len(v), 4*shown)]))
	case []any:
		list(b, '[', ']', len(v), func(i int) { show(b, v[i]) })
	case map[string]any:
		keys := slices.Sorted(maps.Keys(v))
		list(b, '{', '}', len(keys), func(i int) {
			show(b, keys[i])
			b.WriteString(": ")
			show(b, v[keys[i]])
		})
	default:
		fmt.Fprintf(b, "%v", v)
	}
}

func list(b *strings.Builder, open, end byte, n int, item func(int)) {
	b.WriteByte(open)
	for i := range n {
		if b.Len() > shown {
			return
		}
		if i > 0 {
			b.WriteString(", ")
		}
		item(i)
	}
	b.WriteByte(end)
}

// showFloat keeps the point, so that 32.0 doesn't look like an integer.
func showFloat(f float64) string {
	switch {
	case math.IsNaN(f):
		return "NaN"
	case math.IsInf(f, 0):
		return strings.TrimPrefix(strconv.FormatFloat(f, 'g', -1, 64), "+") + "inity"
	}
	text := strconv.FormatFloat(f, 'g', -1, 64)
	if !strings.ContainsAny(text, ".e") {
		text += ".0"
	}
	return text
}

// truthy is Python's bool().
func truthy(v any) bool {
	switch v := v.(type) {
	case nil:
		return false
	case bool:
		return v
	case int64:
		return v != 0
	case float64:
		return v != 0
	case string:
		return v != ""
	case []any:
		return len(v) > 0
	case map[string]any:
		return len(v) > 0
	}
	return true
}
