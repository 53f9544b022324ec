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

// EncodeLabel gives what is stored beside an entry's segments: the entry's record,
// as the text of a manifest with that one entry, a zero byte, and the encoded table.
// It fails for a record that DecodeLabel would not take.
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

// ErrNoLabel is the error for the file of a table that has no label, as wcache before
// 0.2 stored them.
var ErrNoLabel = errors.New("decode label: there is none")

// DecodeLabel reads what EncodeLabel gave. The table is a part of b.
func DecodeLabel(b []byte) (e Entry, table []byte, err error) {
	end := bytes.IndexByte(b[:min(len(b), MaxLabel+1)], 0) // TOML has no zero bytes
	if end < 0 || b[0] != '#' {                            // as the first line of each begins
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
