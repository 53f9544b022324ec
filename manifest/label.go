// SPDX-FileCopyrightText: The wcache authors
// SPDX-License-Identifier: MIT

package manifest

import (
	"bytes"
	"errors"
	"fmt"
)

// MaxLabel is the limit of a label's text in bytes.
const MaxLabel = 4 << 20

// EncodeLabel encodes a table with its label, for the fd store: the entry's record, as the text
// of a manifest with this one entry, a zero byte, and the encoded table. It fails for a record
// that DecodeLabel would refuse.
func EncodeLabel(e Entry, table []byte) ([]byte, error) {
	text, err := (&Manifest{Entries: []Entry{e}}).Encode()
	if err != nil {
		return nil, err
	}
	b := make([]byte, 0, len(text)+1+len(table))
	b = append(append(append(b, text...), 0), table...)
	if _, _, err := DecodeLabel(b); err != nil {
		return nil, fmt.Errorf("encode label: %w", err)
	}
	return b, nil
}

// ErrNoLabel is the error for a table without a label, as wcache before 0.2 stored them.
var ErrNoLabel = errors.New("decode label: no label")

// DecodeLabel decodes the result of EncodeLabel. The table is a part of b. The error is
// [ErrNoLabel] if b doesn't begin with a label.
func DecodeLabel(b []byte) (e Entry, table []byte, err error) {
	end := bytes.IndexByte(b[:min(len(b), MaxLabel+1)], 0) // TOML has no zero bytes
	if end < 0 || b[0] != '#' {                            // a label begins with a comment
		return Entry{}, nil, ErrNoLabel
	}
	m, err := Decode(b[:end])
	switch {
	case err != nil:
		return Entry{}, nil, fmt.Errorf("decode label: %w", err)
	case len(m.Faults) > 0:
		return Entry{}, nil, fmt.Errorf("decode label: %w", m.Faults[0])
	case len(m.Entries) != 1:
		return Entry{}, nil, fmt.Errorf("decode label: it is of %d entries", len(m.Entries))
	}
	return m.Entries[0], b[end+1:], nil
}
