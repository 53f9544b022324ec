// SPDX-FileCopyrightText: The wcache authors
// SPDX-License-Identifier: MIT

package protocol

import (
	"bytes"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/wcache/wcache/protocol/pickle"
)

// calls notes what is written to it, call by call.
type calls []string

func (c *calls) Write(b []byte) (int, error) {
	*c = append(*c, string(b))
	return len(b), nil
}

// TestWriteMessage checks that a message's parts go out in their order, and that last
// is called when the last one alone is missing.
func TestWriteMessage(t *testing.T) {
	from := strings.NewReader("0123456789")
	part := func(s string) pickle.Part { return pickle.Part{Bytes: []byte(s)} }
	for _, tt := range []struct {
		name string
		m    Message
		want []string
	}{
		{"one", Message{part("ab")}, []string{"last", "\x00\x00\x00\x00\x00\x00\x00\x02", "ab"}},
		{"range", Message{part("ab"), {From: from, Off: 3, N: 4}, part("c")}, []string{"\x00\x00\x00\x00\x00\x00\x00\x07", "ab", "3456", "last", "c"}},
		{"range at both ends", Message{{From: from, N: 1}, {From: from, Off: 9, N: 1}}, []string{"\x00\x00\x00\x00\x00\x00\x00\x02", "0", "last", "9"}},
	} {
		var got calls
		if err := WriteMessage(&got, tt.m, func() { got = append(got, "last") }); err != nil {
			t.Errorf("%s: %v", tt.name, err)
		}
		if diff := cmp.Diff(tt.want, []string(got)); diff != "" {
			t.Errorf("%s: -want +got:\n%s", tt.name, diff)
		}
	}
	var out bytes.Buffer
	var long *FrameSizeError
	err := WriteMessage(&out, Message{part("a"), {From: from, N: MaxReply}}, nil)
	if !errors.As(err, &long) || out.Len() > 0 {
		t.Errorf("a message that no engine takes: %v, %d bytes written", err, out.Len())
	}
	err = WriteMessage(&out, Message{part("a"), {From: from, Off: 8, N: 4}, part("b")}, func() { t.Error("the last part is written") })
	if want := "write frame: write 4 bytes at 8, of which 2 went: unexpected EOF"; fmt.Sprint(err) != want {
		t.Errorf("got %v, want %s", err, want)
	}
}
