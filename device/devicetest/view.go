// SPDX-FileCopyrightText: The wcache authors
// SPDX-License-Identifier: MIT

package devicetest

import (
	"bytes"
	"errors"
	"sync"
	"testing"

	"github.com/wcache/wcache/device"
)

// RunViews tests how a device reads segments back, for a device that can read its own.
func RunViews(t *testing.T, open func() (device.Device, error)) {
	tests := []struct {
		name string
		run  func(*testing.T, device.Device, device.Segment, []byte)
	}{
		{"whole", func(t *testing.T, d device.Device, s device.Segment, want []byte) {
			if got := ReadBack(t, d, s); !bytes.Equal(got, want) {
				t.Error("other bytes than were written")
			}
		}},
		{"many readers", manyReaders},
		{"bad reads", badReads},
		{"closed", closedView},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			d, err := open()
			if err != nil {
				t.Fatal(err)
			}
			s, want := segment(t, d)
			test.run(t, d, s, want)
			_ = s.Close()
			if err := d.Close(); err != nil {
				t.Errorf("close device: %v", err)
			}
		})
	}
}

// segment makes one of random bytes.
func segment(t *testing.T, d device.Device) (device.Segment, []byte) {
	t.Helper()
	b := alloc(t, d, 3<<20+12345)
	want := random(b.Bytes())
	w, err := b.Writer()
	if err != nil {
		t.Fatal(err)
	}
	if err := put(w, 0, want, 1<<20); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	s, err := b.Seal()
	if err != nil {
		t.Fatal(err)
	}
	return s, want
}

// ReadBack reads the contents of a segment by a view.
func ReadBack(t *testing.T, d device.Device, s device.Segment) []byte {
	t.Helper()
	v := view(t, d, s)
	got := make([]byte, v.Bytes())
	if err := errors.Join(get(v, 0, got), v.Close()); err != nil {
		t.Error(err)
	}
	return got
}

func view(t *testing.T, d device.Device, s device.Segment) device.View {
	t.Helper()
	dup, err := s.Dup()
	if err != nil {
		t.Fatal(err)
	}
	v, err := d.View(dup)
	if err := dup.Close(); err != nil {
		t.Error(err)
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := v.Close(); err != nil {
			t.Errorf("close view: %v", err)
		}
	})
	return v
}

// get reads in blocks of odd sizes, so that no alignment helps.
func get(v device.View, off int64, into []byte) error {
	r, err := v.Reader()
	if err != nil {
		return err
	}
	defer func() { _ = r.Close() }()
	for n := 1; len(into) > 0; n = n*3 + 1 {
		n = min(n, len(into), r.MaxBlock())
		// What was asked for and not looked at is nothing to the next.
		if err := r.Fetch(0, 1); err != nil {
			return err
		}
		if err := r.Fetch(off, n); err != nil {
			return err
		}
		b, err := r.Bytes()
		if err != nil {
			return err
		}
		copy(into, b)
		off, into = off+int64(n), into[n:]
	}
	return r.Close()
}

func manyReaders(t *testing.T, d device.Device, s device.Segment, want []byte) {
	const n = 8
	v := view(t, d, s)
	part := (len(want) + n - 1) / n
	var wg sync.WaitGroup
	for i := range n {
		wg.Go(func() {
			lo, hi := i*part, min((i+1)*part, len(want))
			got := make([]byte, hi-lo)
			if err := get(v, int64(lo), got); err != nil || !bytes.Equal(got, want[lo:hi]) {
				t.Errorf("reader %d: other bytes, or %v", i, err)
			}
		})
	}
	wg.Wait()
	if err := v.Close(); err != nil {
		t.Error(err)
	}
}

func badReads(t *testing.T, d device.Device, s device.Segment, want []byte) {
	v := view(t, d, s)
	r, err := v.Reader()
	if err != nil {
		t.Fatal(err)
	}
	if b, err := r.Bytes(); err == nil {
		t.Errorf("%d bytes before anything was asked for", len(b))
	}
	if r.MaxBlock() < device.MinBlock {
		t.Errorf("MaxBlock is %d, want %d or more", r.MaxBlock(), device.MinBlock)
	}
	for _, x := range []struct {
		off int64
		n   int
	}{{0, 0}, {0, -1}, {-1, 1}, {s.Bytes, 1}, {s.Bytes - 1, 2}, {0, r.MaxBlock() + 1}, {1<<63 - 1, 1}} {
		if err := r.Fetch(x.off, x.n); err == nil {
			t.Errorf("Fetch(%d, %d) of %d bytes: no error", x.off, x.n, s.Bytes)
		}
		if b, err := r.Bytes(); err == nil {
			t.Errorf("Fetch(%d, %d): %d bytes after an error", x.off, x.n, len(b))
		}
	}
	if err := r.Fetch(s.Bytes-1, 1); err != nil {
		t.Errorf("a good read after bad ones: %v", err)
	}
	if b, err := r.Bytes(); err != nil || b[0] != want[len(want)-1] {
		t.Errorf("a good read after bad ones: %d, %v", b, err)
	}
	for range 2 {
		if err := r.Close(); err != nil {
			t.Error(err)
		}
	}
	if err := r.Fetch(0, 1); err == nil {
		t.Error("a closed reader reads")
	}
}

func closedView(t *testing.T, d device.Device, s device.Segment, _ []byte) {
	v := view(t, d, s)
	if v.Bytes() != s.Bytes {
		t.Errorf("it has %d bytes, want %d", v.Bytes(), s.Bytes)
	}
	for range 2 {
		if err := v.Close(); err != nil {
			t.Error(err)
		}
	}
	if _, err := v.Reader(); err == nil {
		t.Error("a closed view gives a reader")
	}
}
