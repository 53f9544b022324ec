// SPDX-FileCopyrightText: The wcache authors
// SPDX-License-Identifier: MIT

// Package pickle reads and writes the part of Python's pickle format that vLLM's weight cache
// messages use, as specified in CPython's Lib/pickletools.py: protocols 4 and 5, without
// persistent ids, extension codes and out-of-band buffers.
//
// # Decoding
//
// [Decode] runs nothing. It gives the name of a class or function as a [Global], the making of
// an object as an [Object], and the call of a function as a [Call], all of them data. It accepts
// only names that the caller allows and a fixed list of opcodes, and limits depth and number of
// values. The result is a finite tree: no value contains itself.
//
// # Encoding
//
// [Encode] writes a tree exactly as CPython's pickle.dumps does, unless two equal strings are
// one object in Python. An [Encoder] writes opcode by opcode, for large messages.
package pickle

import "fmt"

// Limits of [Decode].
const (
	// MaxDepth is how deep values and marks may be nested. vLLM's replies nest
	// ten deep.
	MaxDepth = 32
	// DefaultItems is how many values a pickle may contain if Options doesn't say. A request
	// of vLLM 0.33 has about 60.
	DefaultItems = 1 << 14
)

// The values of a pickle are nil, bool, int64, float64, string, []byte, [Tuple],
// *[List], *[Dict], [Global], *[Object] and *[Call].
type (
	// Tuple is a Python tuple.
	Tuple []any

	// List is a Python list.
	List struct{ Items []any }

	// Dict is a Python dict with string keys, in the order of the pickle. It keeps duplicate
	// keys.
	Dict struct{ Items []Item }

	// Item is one key of a Dict with its value.
	Item struct {
		Key   string
		Value any
	}

	// Global is the name of a class, a function or another attribute of a module.
	// Name may be dotted: "UntypedStorage.from_file".
	Global struct{ Module, Name string }

	// Object is an instance of Class that __new__ makes from Args, with the given state.
	// State is nil if there is none.
	Object struct {
		Class Global
		Args  Tuple
		State any
	}

	// Call is the result of Func for Args.
	Call struct {
		Func Global
		Args Tuple
	}
)

// Get is the value of a key; of duplicate keys the last, as in Python.
func (d *Dict) Get(key string) (any, bool) {
	for i := len(d.Items) - 1; i >= 0; i-- {
		if d.Items[i].Key == key {
			return d.Items[i].Value, true
		}
	}
	return nil, false
}

// String is the dotted path, such as "torch.Size".
func (g Global) String() string { return g.Module + "." + g.Name }

// SyntaxError is the error for a malformed pickle, or one with parts that this package doesn't
// read.
type SyntaxError struct {
	Offset int // bytes from the pickle's start, of the opcode
	Reason string
}

func (e *SyntaxError) Error() string {
	//diag engine NUMBER REASON
	// The request was cut short or has another format. Repeat it with an unmodified engine; if that
	// fails, report it with the engine's release.
	return fmt.Sprintf("decode pickle: byte %d: %s", e.Offset, e.Reason)
}

// GlobalError is the error for a pickle that names a class or function that isn't allowed.
type GlobalError struct{ Module, Name string }

func (e *GlobalError) Error() string {
	//diag engine NAME NAME
	// The request names a Python class other than that of the engine's key. The daemon did not run
	// it, as it runs nothing that arrives; see which program sent it.
	return fmt.Sprintf("decode pickle: global %q of module %q is not allowed", e.Name, e.Module)
}

// LimitError is the error for a pickle that is too deep or has too many values.
type LimitError struct {
	What string // the exceeded limit
	Max  int
}

func (e *LimitError) Error() string {
	//diag engine NUMBER THINGS
	// The request is deeper or has more parts than an engine's. See which program sent it.
	return fmt.Sprintf("decode pickle: over %d %s", e.Max, e.What)
}

// The opcodes, named as in CPython's Lib/pickle.py.
const (
	opMark            = '('
	opStop            = '.'
	opBinInt          = 'J'
	opBinInt1         = 'K'
	opBinInt2         = 'M'
	opNone            = 'N'
	opReduce          = 'R'
	opBinUnicode      = 'X'
	opAppend          = 'a'
	opBuild           = 'b'
	opEmptyDict       = '}'
	opAppends         = 'e'
	opBinGet          = 'h'
	opLongBinGet      = 'j'
	opEmptyList       = ']'
	opSetItem         = 's'
	opTuple           = 't'
	opEmptyTuple      = ')'
	opSetItems        = 'u'
	opBinFloat        = 'G'
	opProto           = 0x80
	opNewObj          = 0x81
	opTuple1          = 0x85
	opTuple2          = 0x86
	opTuple3          = 0x87
	opNewTrue         = 0x88
	opNewFalse        = 0x89
	opLong1           = 0x8a
	opBinBytes        = 'B'
	opShortBinBytes   = 'C'
	opShortBinUnicode = 0x8c
	opBinBytes8       = 0x8e
	opStackGlobal     = 0x93
	opMemoize         = 0x94
	opFrame           = 0x95
)

// Python writes protocol 5 and reads all below. Protocols under 4 have no
// STACK_GLOBAL and need opcodes that are not on the list above.
const (
	minProtocol = 4
	maxProtocol = 5
)
