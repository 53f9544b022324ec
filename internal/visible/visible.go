// SPDX-FileCopyrightText: The wcache authors
// SPDX-License-Identifier: MIT

// Package visible makes text that comes from elsewhere fit to be shown: the name of a
// file, a process or a key may hold control characters, with which a terminal moves,
// changes what it has shown, or answers as if somebody typed.
package visible

import (
	"bytes"
	"fmt"
	"strconv"
	"strings"
	"unicode/utf16"
	"unicode/utf8"
)

// Text gives s with all that isn't printable escaped as in a string of Go: control
// characters (\x1b, \n), marks that turn the direction of writing (\u202e), and bytes
// that are no UTF-8 (\xff). Printable is what strconv.IsPrint says. Text that has an
// escape already, as after %q, stays as it is.
func Text(s string) string {
	if Printable(s) {
		return s
	}
	var b strings.Builder
	for len(s) > 0 {
		r, n := utf8.DecodeRuneInString(s)
		switch {
		case r == utf8.RuneError && n == 1:
			fmt.Fprintf(&b, `\x%02x`, s[0])
		case strconv.IsPrint(r):
			b.WriteRune(r)
		default:
			q := strconv.QuoteRune(r)
			b.WriteString(q[1 : len(q)-1])
		}
		s = s[n:]
	}
	return b.String()
}

// Line is Text of a message that may have several lines, as joined errors have. They
// come one after the other.
func Line(s string) string {
	return Text(strings.ReplaceAll(strings.TrimRight(s, "\n"), "\n", "; "))
}

// Printable reports whether Text would change nothing.
func Printable(s string) bool {
	return utf8.ValidString(s) && !strings.ContainsFunc(s, func(r rune) bool { return !strconv.IsPrint(r) })
}

// JSON gives text in JSON with all that isn't printable in its strings escaped as JSON
// does. encoding/json leaves some of it: DEL, the control characters above it, which
// terminals obey as well, and marks of direction. Line breaks between values stay.
func JSON(text []byte) []byte {
	var b bytes.Buffer
	for len(text) > 0 {
		r, n := utf8.DecodeRune(text)
		if r == '\n' || strconv.IsPrint(r) {
			b.Write(text[:n])
		} else if high, low := utf16.EncodeRune(r); high != utf8.RuneError {
			fmt.Fprintf(&b, `\u%04x\u%04x`, high, low)
		} else {
			fmt.Fprintf(&b, `\u%04x`, r)
		}
		text = text[n:]
	}
	return b.Bytes()
}
