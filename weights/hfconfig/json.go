// SPDX-FileCopyrightText: The wcache authors
// SPDX-License-Identifier: MIT

package hfconfig

import (
	"fmt"
	"math"
	"math/big"
	"strconv"
	"strings"
	"unicode/utf16"
	"unicode/utf8"
)

// Limits of a config.json. The largest published files have some 200 KB, a few levels
// deep.
const (
	MaxSize  = 2 << 20 // bytes
	maxDepth = 100
	maxInt   = 4300 // digits, CPython's own limit
)

// Cost is the most memory that a file takes, in bytes per byte of the file, measured with
// objects of one key, which have seven bytes of text.
const Cost = 64

// decode parses JSON as Python's json module does, which reads and writes config.json
// files: NaN and the infinities are numbers, integers have no size limit, and of two
// equal keys the last one counts. encoding/json refuses the first and loses the
// difference between 1 and 1.0.
func decode(b []byte) (any, error) {
	if len(b) > MaxSize {
		return nil, fmt.Errorf("%d bytes are over the limit of %d", len(b), MaxSize)
	}
	if !utf8.Valid(b) {
		return nil, fmt.Errorf("not UTF-8")
	}
	d := decoder{s: string(b)}
	v, err := d.value(0)
	if err != nil {
		return nil, err
	}
	if d.space(); d.i != len(d.s) {
		return nil, d.errorf("text after the end")
	}
	return v, nil
}

type decoder struct {
	s string
	i int
}

func (d *decoder) errorf(format string, args ...any) error {
	return fmt.Errorf("byte %d: "+format, append([]any{d.i}, args...)...)
}

func (d *decoder) space() {
	for d.i < len(d.s) && strings.IndexByte(" \t\n\r", d.s[d.i]) >= 0 {
		d.i++
	}
}

// skip consumes c, after spaces, if it comes next.
func (d *decoder) skip(c byte) bool {
	d.space()
	if d.i < len(d.s) && d.s[d.i] == c {
		d.i++
		return true
	}
	return false
}

func (d *decoder) value(depth int) (any, error) {
	d.space()
	switch {
	case depth > maxDepth:
		return nil, d.errorf("more than %d levels", maxDepth)
	case d.i == len(d.s):
		return nil, d.errorf("text ends early")
	case d.s[d.i] == '{':
		return d.object(depth)
	case d.s[d.i] == '[':
		return d.array(depth)
	case d.s[d.i] == '"':
		return d.text()
	}
	for _, word := range words {
		if strings.HasPrefix(d.s[d.i:], word.name) {
			d.i += len(word.name)
			return word.value, nil
		}
	}
	return d.number()
}

var words = []struct {
	name  string
	value any
}{
	{"null", nil}, {"true", true}, {"false", false},
	{"NaN", math.NaN()}, {"Infinity", math.Inf(1)}, {"-Infinity", math.Inf(-1)},
}

func (d *decoder) object(depth int) (any, error) {
	d.i++
	m := make(map[string]any)
	if d.skip('}') {
		return m, nil
	}
	for {
		if d.space(); d.i == len(d.s) || d.s[d.i] != '"' {
			return nil, d.errorf("no key")
		}
		key, err := d.text()
		if err != nil {
			return nil, err
		}
		if !d.skip(':') {
			return nil, d.errorf("no colon after %q", key)
		}
		v, err := d.value(depth + 1)
		if err != nil {
			return nil, err
		}
		m[key] = v
		if d.skip('}') {
			return special(m), nil
		}
		if !d.skip(',') {
			return nil, d.errorf("no comma after the value of %q", key)
		}
	}
}

// special decodes transformers' form of numbers that JSON lacks, see
// _encode_special_floats of its configuration_utils.py.
func special(m map[string]any) any {
	if name, ok := m["__float__"].(string); ok && len(m) == 1 {
		switch name {
		case "NaN":
			return math.NaN()
		case "Infinity":
			return math.Inf(1)
		case "-Infinity":
			return math.Inf(-1)
		}
	}
	return m
}

func (d *decoder) array(depth int) (any, error) {
	d.i++
	list := []any{}
	if d.skip(']') {
		return list, nil
	}
	for {
		v, err := d.value(depth + 1)
		if err != nil {
			return nil, err
		}
		list = append(list, v)
		if d.skip(']') {
			return list, nil
		}
		if !d.skip(',') {
			return nil, d.errorf("no comma in a list")
		}
	}
}

func (d *decoder) text() (string, error) {
	d.i++
	var out strings.Builder
	for start := d.i; d.i < len(d.s); {
		switch c := d.s[d.i]; {
		case c == '"':
			out.WriteString(d.s[start:d.i])
			d.i++
			return out.String(), nil
		case c < ' ':
			return "", d.errorf("control character in a string")
		case c == '\\':
			out.WriteString(d.s[start:d.i])
			r, err := d.escape()
			if err != nil {
				return "", err
			}
			out.WriteRune(r)
			start = d.i
		default:
			d.i++
		}
	}
	return "", d.errorf("string without an end")
}

const (
	escapes = `"\/bfnrt`
	meant   = "\"\\/\b\f\n\r\t"
)

func (d *decoder) escape() (rune, error) {
	rest := d.s[d.i+1:]
	if rest != "" && rest[0] != 'u' {
		k := strings.IndexByte(escapes, rest[0])
		if k < 0 {
			return 0, d.errorf("unknown escape %q", rest[:1])
		}
		d.i += 2
		return rune(meant[k]), nil
	}
	r, ok := d.hex()
	if ok && utf16.IsSurrogate(r) {
		// Python keeps half of a pair; a Go string can't.
		low, paired := d.hex()
		r = utf16.DecodeRune(r, low)
		ok = paired && r != utf8.RuneError
	}
	if !ok {
		return 0, d.errorf("bad \\u escape")
	}
	return r, nil
}

// hex reads \uXXXX.
func (d *decoder) hex() (rune, bool) {
	rest := d.s[d.i:]
	if len(rest) < 6 || rest[:2] != `\u` {
		return 0, false
	}
	n, err := strconv.ParseUint(rest[2:6], 16, 16)
	if err != nil {
		return 0, false
	}
	d.i += 6
	return rune(n), true
}

func (d *decoder) number() (any, error) {
	start := d.i
	if d.i < len(d.s) && d.s[d.i] == '-' {
		d.i++
	}
	whole := d.digits()
	if whole == 0 {
		return nil, d.errorf("no value")
	}
	if first := d.i - whole; d.s[first] == '0' && whole > 1 {
		return nil, d.errorf("number with a leading zero")
	}
	integer := true
	if strings.HasPrefix(d.s[d.i:], ".") {
		integer = false
		if d.i++; d.digits() == 0 {
			return nil, d.errorf("no digits after the point")
		}
	}
	if d.i < len(d.s) && d.s[d.i]|0x20 == 'e' {
		integer = false
		if d.i++; d.i < len(d.s) && (d.s[d.i] == '-' || d.s[d.i] == '+') {
			d.i++
		}
		if d.digits() == 0 {
			return nil, d.errorf("no digits in the exponent")
		}
	}
	text := d.s[start:d.i]
	if !integer {
		f, _ := strconv.ParseFloat(text, 64) // out of range gives an infinity, as in Python
		return f, nil
	}
	if n, err := strconv.ParseInt(text, 10, 64); err == nil {
		return n, nil
	}
	if whole > maxInt {
		return nil, d.errorf("integer of more than %d digits", maxInt)
	}
	n, _ := new(big.Int).SetString(text, 10) // only digits are left
	return n, nil
}

// digits reads decimal digits and counts them.
func (d *decoder) digits() int {
	start := d.i
	for d.i < len(d.s) && d.s[d.i] >= '0' && d.s[d.i] <= '9' {
		d.i++
	}
	return d.i - start
}
