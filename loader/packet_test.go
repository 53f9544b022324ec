// SPDX-FileCopyrightText: The wcache authors
// SPDX-License-Identifier: MIT

package loader

import (
	"encoding/json"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"
)

// FuzzPacket: whatever a child sends, a packet has the descriptors that are its kind's.
func FuzzPacket(f *testing.F) {
	for _, m := range []packet{
		{Says: saysJob},
		{Says: saysProgress, Allocated: 1, Done: 2, Total: 3, Waiting: "memory"},
		{Says: saysSegment, Bytes: 4096},
		{Says: saysDone},
		{Says: saysError, Error: &Error{Kind: KindNoMemory, Message: "x", Want: 2, Free: 1}},
	} {
		b, err := json.Marshal(m)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(b, 0, 1)
	}
	f.Fuzz(func(t *testing.T, b []byte, flags, fds int) {
		m, err := parse(b, flags, fds)
		if (m == nil) != (err != nil) {
			t.Fatalf("got %v and %v", m, err)
		}
		if err != nil {
			return
		}
		if len(b) > maxPacket || flags&(unix.MSG_TRUNC|unix.MSG_CTRUNC) != 0 || m.takesFD() != (fds == 1) {
			t.Fatalf("%+v was taken with %d descriptors", m, fds)
		}
		text, err := json.Marshal(m)
		if err != nil {
			t.Fatal(err)
		}
		again := new(packet)
		if err := json.Unmarshal(text, again); err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(m, again); diff != "" {
			t.Error(diff)
		}
	})
}
