// SPDX-FileCopyrightText: The wcache authors
// SPDX-License-Identifier: MIT

// Package protocol reads and writes the messages between an engine and its
// weight cache daemon: frames, requests and replies. It follows
// vllm/model_executor/model_loader/weight_cache/{protocol,daemon,ipc_loader}.py
// of vLLM 0.30 to 0.33.
//
// A connection carries one request and one reply, each a frame that holds a
// pickle. Nothing says which release is talking: what a request holds tells.
// How memory is described to an engine depends on the device, and is left to a
// [Form].
package protocol

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"

	"github.com/wcache/wcache/protocol/pickle"
)

// Limits of a message, in bytes.
const (
	// MaxRequest is what a daemon accepts. An engine's longest recorded request
	// has 752.
	MaxRequest = 1 << 20
	// MaxReply is what an engine accepts: MAX_MSG_SIZE of vLLM's protocol.py.
	MaxReply = 1 << 34
)

// A frame's buffer begins no larger than this, whatever the frame announces.
const firstRead = 16 << 10

// FrameSizeError is a frame that is longer than the side that gets it allows.
type FrameSizeError struct {
	Bytes uint64 // as announced
	Limit int64
}

func (e *FrameSizeError) Error() string {
	//diag engine NUMBER NUMBER
	// The first bytes of the connection are not the length of a request, so the client speaks
	// another protocol. Look with `ss -xp` which program connects.
	return fmt.Sprintf("message of %d bytes is over the limit of %d", e.Bytes, e.Limit)
}

// ReadFrame reads one frame and returns what it holds, which the caller owns.
// Memory is taken as bytes arrive, not as they are announced. The error is a
// *[FrameSizeError] before anything of a too long frame is read, io.EOF where
// the other side closes instead of sending, io.ErrUnexpectedEOF where it closes
// in between, and else that of r.
func ReadFrame(r io.Reader, limit int64) ([]byte, error) {
	var header [8]byte
	if _, err := io.ReadFull(r, header[:]); err != nil {
		return nil, fmt.Errorf("read frame: %w", err)
	}
	n := binary.BigEndian.Uint64(header[:])
	if n > uint64(limit) {
		return nil, fmt.Errorf("read frame: %w", &FrameSizeError{n, limit})
	}
	var buf bytes.Buffer
	buf.Grow(int(min(n, firstRead)) + bytes.MinRead) // MinRead: room for the read that finds the end
	if _, err := io.CopyN(&buf, r, int64(n)); err != nil {
		if errors.Is(err, io.EOF) {
			err = io.ErrUnexpectedEOF
		}
		return nil, fmt.Errorf("read frame: %w", err)
	}
	return buf.Bytes(), nil
}

// Message is what a frame holds, in parts, of which some may lie elsewhere until they
// are written.
type Message []pickle.Part

// Whole is the message of these bytes.
func Whole(payload []byte) Message { return Message{{Bytes: payload}} }

// Len is the message's size in bytes.
func (m Message) Len() int64 {
	var n int64
	for i := range m {
		n += m[i].Len()
	}
	return n
}

// WriteFrame writes one frame that holds payload. On a socket it is one call.
func WriteFrame(w io.Writer, payload []byte) error { return WriteMessage(w, Whole(payload), nil) }

// WriteMessage writes one frame that holds m. Last, which may be nil, is called before
// the last part is written: a reader who has the whole frame knows that it has
// returned. What lies elsewhere is written as [pickle.Part.Write] says; of the rest, on
// a socket, each stretch is one call.
func WriteMessage(w io.Writer, m Message, last func()) error {
	n := m.Len()
	if n > MaxReply {
		return fmt.Errorf("write frame: %w", &FrameSizeError{uint64(n), MaxReply})
	}
	made := net.Buffers{binary.BigEndian.AppendUint64(nil, uint64(n))}
	for i := range m {
		if i == len(m)-1 && last != nil {
			last()
		}
		if m[i].From == nil {
			made = append(made, m[i].Bytes)
		}
		_, err := made.WriteTo(w) // which empties it
		if err == nil && m[i].From != nil {
			err = m[i].Write(w)
		}
		if err != nil {
			return fmt.Errorf("write frame: %w", err)
		}
	}
	return nil
}
