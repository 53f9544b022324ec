// SPDX-FileCopyrightText: The wcache authors
// SPDX-License-Identifier: MIT

package protocol

import (
	"fmt"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/wcache/wcache/protocol/pickle"
)

// The values of a reply's status.
const (
	StatusOK       = "ok"
	StatusError    = "error"
	StatusMismatch = "mismatch"
)

// Error is the answer for a passing error. An engine without fallback asks again, so the answer
// for a lasting error is a [Mismatch].
func Error(message string) []byte {
	return reply(StatusError, pickle.Item{Key: "message", Value: strings.ToValidUTF8(message, "\uFFFD")})
}

// MissingKey is the answer to a get_state without a key.
func MissingKey(req *Request) []byte { return Error("Missing " + req.KeyField) }

//diag engine NAME
// A newer engine sent a command that this daemon does not know. The engine goes on without it; use
// a newer wcache.

// UnknownCommand is the answer to an unknown command.
func UnknownCommand(cmd string) []byte { return Error("Unknown command " + pythonRepr(cmd)) }

// Mismatch is the answer to a key that differs in these fields. An engine takes it as final. It
// prints the list unchanged, so another string in the list can give the reason and advice.
func Mismatch(fields []string) []byte {
	list := new(pickle.List)
	for _, f := range fields {
		list.Items = append(list.Items, strings.ToValidUTF8(f, "\uFFFD"))
	}
	return reply(StatusMismatch, pickle.Item{Key: "fields", Value: list})
}

// Memory is the answer to get_memory: how many bytes, already on the device, the engine will
// map.
func Memory(bytes int64) []byte {
	return reply(StatusOK, pickle.Item{Key: "memory_bytes", Value: bytes})
}

// OK is the answer to release and watch.
func OK() []byte { return reply(StatusOK) }

func reply(status string, items ...pickle.Item) []byte {
	b, err := pickle.Encode(&pickle.Dict{Items: append([]pickle.Item{{Key: "status", Value: status}}, items...)})
	if err != nil { // strings, ints and lists of strings can always be encoded
		panic(fmt.Sprintf("internal error: %v", err))
	}
	return b
}

// pythonRepr quotes a string as Python's repr does: str.__repr__, in
// Objects/unicodeobject.c of CPython.
func pythonRepr(s string) string {
	quote := '\''
	if strings.Contains(s, "'") && !strings.Contains(s, `"`) {
		quote = '"'
	}
	var b strings.Builder
	b.WriteRune(quote)
	for _, r := range s {
		switch {
		case r == quote || r == '\\':
			b.WriteRune('\\')
			b.WriteRune(r)
		case r == '\n':
			b.WriteString(`\n`)
		case r == '\r':
			b.WriteString(`\r`)
		case r == '\t':
			b.WriteString(`\t`)
		case unicode.IsPrint(r):
			b.WriteRune(r)
		case r <= 0xff:
			fmt.Fprintf(&b, `\x%02x`, r)
		case r <= 0xffff:
			fmt.Fprintf(&b, `\u%04x`, r)
		case r <= utf8.MaxRune:
			fmt.Fprintf(&b, `\U%08x`, r)
		}
	}
	b.WriteRune(quote)
	return b.String()
}
