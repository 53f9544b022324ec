// SPDX-FileCopyrightText: The wcache authors
// SPDX-License-Identifier: MIT

// Package protocol reads and writes the messages between an engine and its
// weight cache daemon: frames, requests and replies. It follows
// vllm/model_executor/model_loader/weight_cache/{protocol,daemon,ipc_loader}.py
// of vLLM 0.30 to 0.33.
//
// A connection carries one request and one reply, each a frame with a pickle. The protocol has
// no version number: the contents of a request show the engine's release. How a reply describes
// memory depends on the device, and is the task of a [Form].
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
	// MaxRequest is the longest request that a daemon accepts. An engine's longest recorded
	// request has 752 bytes.
	MaxRequest = 1 << 20
	// MaxReply is the longest reply that an engine accepts: MAX_MSG_SIZE of vLLM's protocol.py.
	MaxReply = 1 << 34
)

// The largest initial buffer for a frame, whatever length the frame announces.
const firstRead = 16 << 10

// FrameSizeError is the error for a frame that is longer than its receiver accepts.
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

// ReadFrame reads one frame and returns its contents, which the caller owns. It allocates memory
// as bytes arrive, not as the frame announces them. The error is a *[FrameSizeError] if the
// frame is too long, of which it then reads nothing; io.EOF if the other side closes before it
// sends anything; io.ErrUnexpectedEOF if it closes within the frame; or the error of r.
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

// Message is the contents of a frame, in parts. Some parts are ranges that are read only when
// they are written.
type Message []pickle.Part

// Whole makes a message from bytes.
func Whole(payload []byte) Message { return Message{{Bytes: payload}} }

// Len is the message's size in bytes.
func (m Message) Len() int64 {
	var n int64
	for i := range m {
		n += m[i].Len()
	}
	return n
}

// WriteFrame writes one frame with the given payload, on a socket with one system call.
func WriteFrame(w io.Writer, payload []byte) error { return WriteMessage(w, Whole(payload), nil) }

// WriteMessage writes one frame with the message m. It calls last, which may be nil, before it
// writes the last part: when the reader has the whole frame, last has returned. Ranges are
// written as [pickle.Part.Write] says; on a socket, bytes between ranges take one call.
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
		_, err := made.WriteTo(w) // this empties made
		if err == nil && m[i].From != nil {
			err = m[i].Write(w)
		}
		if err != nil {
			return fmt.Errorf("write frame: %w", err)
		}
	}
	return nil
}
