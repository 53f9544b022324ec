// SPDX-FileCopyrightText: The wcache authors
// SPDX-License-Identifier: MIT

// Package visible makes foreign text safe to show: the name of a file, a process or a key may
// contain control characters, by which a terminal moves the cursor, changes what it has shown,
// or sends input as if the user typed.
package visible

import (
	"bytes"
	"fmt"
	"strconv"
	"strings"
	"unicode/utf16"
	"unicode/utf8"
)

// Text gives s with all unprintable characters escaped as in a Go string: control characters
// (\x1b, \n), marks that change the direction of writing (\u202e), and bytes that aren't UTF-8
// (\xff). A character is printable if strconv.IsPrint says so. Existing escapes, such as from
// %q, stay as they are.
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

// Line is Text of a message of several lines, such as joined errors, as one line: "; " separates
// them.
func Line(s string) string {
	return Text(strings.ReplaceAll(strings.TrimRight(s, "\n"), "\n", "; "))
}

// Printable reports whether Text would change nothing.
func Printable(s string) bool {
	return utf8.ValidString(s) && !strings.ContainsFunc(s, func(r rune) bool { return !strconv.IsPrint(r) })
}

// JSON gives JSON text with all unprintable characters in its strings escaped as in JSON.
// encoding/json doesn't escape some of them: DEL, the control characters above it, which
// terminals obey too, and marks of direction. Line breaks between values stay.
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
