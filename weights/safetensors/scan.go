// SPDX-FileCopyrightText: The wcache authors
// SPDX-License-Identifier: MIT

package safetensors

import (
	"fmt"
	"math"
	"unicode/utf16"
	"unicode/utf8"
)

// scanner reads JSON strictly, as serde_json does, in one pass: encoding/json
// hides duplicate names and repairs broken text. The text must be valid UTF-8.
//
// The first fault stays in err, and every method after it does nothing.
type scanner struct {
	text string
	pos  int
	err  error
}

func (s *scanner) fail(format string, args ...any) {
	if s.err == nil {
		s.err = fmt.Errorf(format+" (at byte %d)", append(args, s.pos)...)
		s.pos = len(s.text)
	}
}

// peek is the next byte after any space, 0 at the end.
func (s *scanner) peek() byte {
	for ; s.pos < len(s.text); s.pos++ {
		switch c := s.text[s.pos]; c {
		case ' ', '\t', '\n', '\r':
		default:
			return c
		}
	}
	return 0
}

func (s *scanner) accept(c byte) bool {
	if s.err != nil || s.peek() != c {
		return false
	}
	s.pos++
	return true
}

func (s *scanner) expect(c byte) {
	if s.accept(c) || s.err != nil {
		return
	}
	if s.pos == len(s.text) {
		s.fail("JSON ends where %q should be", c)
		return
	}
	s.fail("JSON has %q where %q should be", s.text[s.pos], c)
}

// end checks that only space is left.
func (s *scanner) end() {
	if s.peek(); s.err == nil && s.pos < len(s.text) {
		s.fail("JSON is followed by %q", s.text[s.pos])
	}
}

// word takes a literal name such as null if it is next.
func (s *scanner) word(w string) bool {
	s.peek()
	if s.err != nil || len(s.text)-s.pos < len(w) || s.text[s.pos:s.pos+len(w)] != w {
		return false
	}
	s.pos += len(w)
	return true
}

// object calls field with each key; field reads the value.
func (s *scanner) object(field func(key string)) {
	s.expect('{')
	if s.accept('}') {
		return
	}
	for s.err == nil {
		key := s.str()
		s.expect(':')
		if s.err != nil {
			return
		}
		field(key)
		if s.accept('}') {
			return
		}
		s.expect(',')
	}
}

// array calls item before each item; item reads it.
func (s *scanner) array(item func()) {
	s.expect('[')
	if s.accept(']') {
		return
	}
	for s.err == nil {
		item()
		if s.accept(']') {
			return
		}
		s.expect(',')
	}
}

// integer reads a whole number of 0 to 2^63-1, written without sign, fraction or
// exponent.
func (s *scanner) integer() int64 {
	c := s.peek()
	if s.err != nil {
		return 0
	}
	if c < '0' || c > '9' {
		s.fail("JSON has no number of 0 or more where one should be")
		return 0
	}
	start, n := s.pos, int64(0)
	for ; s.pos < len(s.text); s.pos++ {
		d := int64(s.text[s.pos] - '0')
		if d < 0 || d > 9 {
			break
		}
		if n > (math.MaxInt64-d)/10 {
			s.fail("number is over %d", int64(math.MaxInt64))
			return 0
		}
		n = 10*n + d
	}
	if s.text[start] == '0' && s.pos > start+1 {
		s.fail("number starts with 0")
	}
	if s.pos < len(s.text) {
		switch s.text[s.pos] {
		case '.', 'e', 'E':
			s.fail("number is not an integer")
		}
	}
	return n
}

// str reads a string. Without escapes it is a part of the text.
func (s *scanner) str() string {
	s.expect('"')
	start := s.pos
	for ; s.pos < len(s.text); s.pos++ {
		switch c := s.text[s.pos]; {
		case c == '"':
			s.pos++
			return s.text[start : s.pos-1]
		case c == '\\':
			return string(s.escaped([]byte(s.text[start:s.pos])))
		case c < ' ':
			s.fail("string holds the control character %q", c)
		}
	}
	s.fail("string does not end")
	return ""
}

// escaped reads the rest of a string from its first backslash on.
func (s *scanner) escaped(b []byte) []byte {
	for s.pos < len(s.text) {
		c := s.text[s.pos]
		s.pos++
		switch {
		case c == '"':
			return b
		case c == '\\':
			b = s.escape(b)
		case c < ' ':
			s.fail("string holds the control character %q", c)
		default:
			b = append(b, c)
		}
	}
	s.fail("string does not end")
	return nil
}

func (s *scanner) escape(b []byte) []byte {
	if s.pos == len(s.text) {
		return b
	}
	c := s.text[s.pos]
	s.pos++
	switch c {
	case '"', '\\', '/':
		return append(b, c)
	case 'b':
		return append(b, '\b')
	case 'f':
		return append(b, '\f')
	case 'n':
		return append(b, '\n')
	case 'r':
		return append(b, '\r')
	case 't':
		return append(b, '\t')
	case 'u':
		return utf8.AppendRune(b, s.unicode())
	}
	s.fail("string holds the unknown escape \\%c", c)
	return nil
}

// unicode reads the digits of a \u escape, and of a second one if the first is half
// of a pair.
func (s *scanner) unicode() rune {
	r := s.hex()
	if !utf16.IsSurrogate(r) {
		return r
	}
	if s.pos+2 <= len(s.text) && s.text[s.pos:s.pos+2] == `\u` {
		s.pos += 2
		if r = utf16.DecodeRune(r, s.hex()); r != utf8.RuneError {
			return r
		}
	}
	s.fail("string holds half of a surrogate pair")
	return utf8.RuneError
}

func (s *scanner) hex() rune {
	if len(s.text)-s.pos < 4 {
		s.fail("string ends in an escape")
		return 0
	}
	var r rune
	for _, c := range []byte(s.text[s.pos : s.pos+4]) {
		switch {
		case '0' <= c && c <= '9':
			c -= '0'
		case 'a' <= c && c <= 'f':
			c -= 'a' - 10
		case 'A' <= c && c <= 'F':
			c -= 'A' - 10
		default:
			s.fail("string holds an escape with %q for a digit", c)
			return 0
		}
		r = r<<4 | rune(c)
	}
	s.pos += 4
	return r
}

// skip reads a value of any kind that nests at most depth deep.
func (s *scanner) skip(depth int) {
	if depth == 0 {
		s.fail("JSON nests deeper than %d", maxDepth)
		return
	}
	switch c := s.peek(); {
	case s.err != nil:
	case c == '{':
		s.object(func(string) { s.skip(depth - 1) })
	case c == '[':
		s.array(func() { s.skip(depth - 1) })
	case c == '"':
		s.str()
	case c == '-' || '0' <= c && c <= '9':
		s.number()
	case s.word("true"), s.word("false"), s.word("null"):
	default:
		s.fail("JSON has no value where one should be")
	}
}

// number skips a number of any form.
func (s *scanner) number() {
	if s.text[s.pos] == '-' {
		s.pos++
	}
	start := s.pos
	if n := s.digits(); n > 1 && s.text[start] == '0' {
		s.fail("number starts with 0")
	}
	if s.pos < len(s.text) && s.text[s.pos] == '.' {
		s.pos++
		s.digits()
	}
	if s.pos < len(s.text) && s.text[s.pos]|0x20 == 'e' {
		s.pos++
		if s.pos < len(s.text) && (s.text[s.pos] == '+' || s.text[s.pos] == '-') {
			s.pos++
		}
		s.digits()
	}
}

// digits skips one digit or more and counts them.
func (s *scanner) digits() int {
	start := s.pos
	for s.pos < len(s.text) && '0' <= s.text[s.pos] && s.text[s.pos] <= '9' {
		s.pos++
	}
	if s.pos == start {
		s.fail("number lacks a digit")
	}
	return s.pos - start
}
