// SPDX-FileCopyrightText: The wcache authors
// SPDX-License-Identifier: MIT

package index

import (
	"encoding/binary"
	"maps"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"
)

// encodeEvent is an event as the kernel gives it.
func encodeEvent(e event, room int) []byte {
	b := binary.NativeEndian.AppendUint32(nil, uint32(e.watch))
	b = binary.NativeEndian.AppendUint32(b, e.mask)
	b = binary.NativeEndian.AppendUint32(b, 0)
	b = binary.NativeEndian.AppendUint32(b, uint32(room))
	return append(b, append([]byte(e.name), make([]byte, room-len(e.name))...)...)
}

func TestParseEvents(t *testing.T) {
	want := []event{{7, unix.IN_CREATE, "model.safetensors"}, {-1, unix.IN_Q_OVERFLOW, ""}, {8, unix.IN_MODIFY, ""}}
	b := slices.Concat(encodeEvent(want[0], 32), encodeEvent(want[1], 0), encodeEvent(want[2], 0))
	var got []event
	parseEvents(b, func(e event) { got = append(got, e) })
	if diff := cmp.Diff(want, got, cmp.AllowUnexported(event{})); diff != "" {
		t.Error(diff)
	}
}

func FuzzEvents(f *testing.F) {
	f.Add(encodeEvent(event{1, unix.IN_DELETE, "a"}, 16))
	f.Add(encodeEvent(event{1, unix.IN_DELETE, "a"}, 16)[:20])
	f.Fuzz(func(t *testing.T, b []byte) {
		total := 0
		parseEvents(b, func(e event) { total += unix.SizeofInotifyEvent + len(e.name) })
		if total > len(b) {
			t.Errorf("%d bytes of events in %d", total, len(b))
		}
	})
}

func TestMounts(t *testing.T) {
	before := parseMounts("22 1 254:0 / / rw - ext4 /dev/vda rw\n30 22 0:21 /sub /mnt/a\\040b rw - tmpfs tmpfs rw\n31 22 0:5 / /mnt/c rw - tmpfs none rw\nbad line\n")
	want := mounts{"22": {"/", "254:0 /"}, "30": {"/mnt/a b", "0:21 /sub"}, "31": {"/mnt/c", "0:5 /"}}
	if diff := cmp.Diff(want, before, cmp.AllowUnexported(mount{})); diff != "" {
		t.Error(diff)
	}
	after := maps.Clone(before)
	delete(after, "31")
	after["30"] = mount{"/mnt/a b", "0:21 /other"}
	after["40"] = mount{"/mnt/d", "0:6 /"}
	got := before.changed(after)
	slices.Sort(got)
	if diff := cmp.Diff([]string{"/mnt/a b", "/mnt/a b", "/mnt/c", "/mnt/d"}, got); diff != "" {
		t.Error(diff)
	}
	for _, c := range []struct {
		a, b string
		want bool
	}{{"/a", "/a", true}, {"/a", "/a/b", true}, {"/a/b", "/a", true}, {"/", "/a", true}, {"/a", "/ab", false}, {"/a/b", "/a/c", false}} {
		if touches(c.a, c.b) != c.want {
			t.Errorf("%s and %s: not %v", c.a, c.b, c.want)
		}
	}
}

func FuzzMounts(f *testing.F) {
	f.Add("30 22 0:21 /sub /mnt/a\\040b\\134 rw - tmpfs tmpfs rw\n")
	f.Add("30 22 0:21 /sub /mnt/a\\9\\")
	f.Fuzz(func(t *testing.T, text string) {
		m := parseMounts(text)
		if points := m.changed(m); len(points) > 0 {
			t.Errorf("changed without a change: %q", points)
		}
	})
}
