// SPDX-FileCopyrightText: The wcache authors
// SPDX-License-Identifier: MIT

package device

import (
	"bytes"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/wcache/wcache/internal/fd"
	"github.com/wcache/wcache/internal/testmain"
)

func TestMain(m *testing.M) { testmain.Run(m) }

// A kept segment is held by any of its descriptors, and each of them gives the
// handle, as often as it is asked.
func TestKeep(t *testing.T) {
	want := [HandleBytes]byte(bytes.Repeat([]byte("handle.."), 8))
	s, released, err := Keep(want, 4096)
	if err != nil {
		t.Fatal(err)
	}
	second, err := s.Pieces[0].Dup()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range []*fd.FD{s.Pieces[0], second, s.Pieces[0]} {
		x := Whole(f, s.Bytes)
		got, kept, err := x.Handle()
		if got != want || !kept || err != nil {
			t.Errorf("handle %q, kept %v, %v", got, kept, err)
		}
		if err := x.Gone(); err != nil {
			t.Errorf("gone: %v", err)
		}
	}
	_ = s.Close()
	select {
	case <-released:
		t.Error("released while there is a descriptor")
	default:
	}
	// What a holder says is no end.
	if err := unix.Send(second.Int(), []byte("?"), unix.MSG_DONTWAIT); err != nil {
		t.Fatal(err)
	}
	if err := Whole(second, 0).Gone(); err != nil {
		t.Errorf("gone: %v", err)
	}
	_ = second.Close()
	<-released
}

// What is no segment with a keeper, or one whose keeper has ended.
func TestGone(t *testing.T) {
	memory, err := fd.Memory("segment")
	if err != nil {
		t.Fatal(err)
	}
	defer memory.Close()
	if _, kept, err := Whole(memory, 0).Handle(); kept || err != nil {
		t.Errorf("memory: kept %v, %v", kept, err)
	}
	if err := Whole(memory, 0).Gone(); err != nil {
		t.Errorf("memory: %v", err)
	}
	for _, tt := range []struct {
		name string
		says []byte
		ends bool
		want string
	}{
		{"keeper ended", make([]byte, HandleBytes), true, "the process that kept it has ended"},
		{"short handle", []byte("x"), false, "read segment's handle: it has 1 bytes, want 64"},
		{"long handle", make([]byte, 100), false, "read segment's handle: it has 65 bytes, want 64"},
		{"no handle", nil, false, "read segment's handle: resource temporarily unavailable"},
		{"ended before it said anything", nil, true, "read segment's handle: it has 0 bytes, want 64"},
	} {
		pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			t.Fatal(err)
		}
		theirs, err := fd.New(pair[0])
		if err != nil {
			t.Fatal(err)
		}
		ours, err := fd.New(pair[1])
		if err != nil {
			t.Fatal(err)
		}
		if len(tt.says) > 0 {
			if _, err := unix.Write(theirs.Int(), tt.says); err != nil {
				t.Fatal(err)
			}
		}
		if tt.ends {
			_ = theirs.Close()
		}
		if err := Whole(ours, 0).Gone(); err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%s: %v, want %s", tt.name, err, tt.want)
		}
		_, _ = ours.Close(), theirs.Close()
	}
}
