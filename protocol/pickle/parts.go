// SPDX-FileCopyrightText: The wcache authors
// SPDX-License-Identifier: MIT

package pickle

import (
	"fmt"
	"io"
)

// minRange is the smallest range, in bytes, that BytesFrom doesn't copy. A copy of fewer costs
// no more than a Part.
const minRange = 1 << 10

// Part is one piece of a pickle.
type Part struct {
	Bytes []byte // what was encoded, if From is nil
	// From has the N bytes at Off, which are read when the part is written.
	From   io.ReaderAt
	Off, N int64
}

// span is a range, and the number of encoded bytes before it.
type span struct {
	at   int
	part Part
}

// Parts ends the pickle, when its value is the only one on the stack, and gives its parts in
// order: encoded bytes, and between them the ranges of BytesFrom. The first and the last part
// are encoded bytes. The caller owns them, and must not use the encoder again.
func (e *Encoder) Parts() ([]Part, error) {
	e.op(opStop)
	e.closeFrame()
	if e.err != nil {
		return nil, e.err
	}
	parts := make([]Part, 0, 2*len(e.ranges)+1)
	done := 0
	for _, r := range e.ranges {
		parts = append(parts, Part{Bytes: e.buf[done:r.at]}, r.part)
		done = r.at
	}
	return append(parts, Part{Bytes: e.buf[done:]}), nil
}

// Len is the number of the part's bytes.
func (p *Part) Len() int64 {
	if p.From != nil {
		return p.N
	}
	return int64(len(p.Bytes))
}

// Write writes the part to w. A range is written as [io.Copy] writes an
// [io.SectionReader]: in pieces, or by w itself if it is an [io.ReaderFrom].
func (p *Part) Write(w io.Writer) error {
	if p.From == nil {
		_, err := w.Write(p.Bytes)
		return err
	}
	n, err := io.Copy(w, io.NewSectionReader(p.From, p.Off, p.N))
	if err == nil && n < p.N {
		err = io.ErrUnexpectedEOF
	}
	if err != nil {
		return fmt.Errorf("write %d bytes at %d, of which %d went: %w", p.N, p.Off, n, err)
	}
	return nil
}
