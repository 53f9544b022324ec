// SPDX-FileCopyrightText: The wcache authors
// SPDX-License-Identifier: MIT

// Package devicetest tests the contract of package device: each device runs it in its own
// tests.
package devicetest

import (
	"bytes"
	"errors"
	"math/rand/v2"
	"sync"
	"testing"

	"github.com/wcache/wcache/device"
)

// Run tests the device that open opens, anew for each test. Read returns the contents of a
// segment as a consumer sees them.
func Run(t *testing.T, open func() (device.Device, error), read func(*testing.T, device.Segment) []byte) {
	tests := []struct {
		name string
		run  func(*testing.T, device.Device)
	}{
		{"sizes", sizes},
		{"too large", tooLarge},
		{"blocks", func(t *testing.T, d device.Device) { blocks(t, d, read) }},
		{"many blocks in flight", func(t *testing.T, d device.Device) { inFlight(t, d, read) }},
		{"many writers", func(t *testing.T, d device.Device) { writers(t, d, read) }},
		{"close is flush", func(t *testing.T, d device.Device) { closeIsFlush(t, d, read) }},
		{"bad blocks", badBlocks},
		{"seal waits for no writer", sealWithWriter},
		{"spent", spent},
		{"segment outlives all", func(t *testing.T, d device.Device) { outlives(t, d, read) }},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			d, err := open()
			if err != nil {
				t.Fatal(err)
			}
			test.run(t, d)
			if err := d.Close(); err != nil {
				t.Errorf("close device: %v", err)
			}
		})
	}
}

func alloc(t *testing.T, d device.Device, bytes int64) device.Buffer {
	t.Helper()
	b, err := d.Alloc(bytes)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := b.Close(); err != nil {
			t.Errorf("close buffer: %v", err)
		}
	})
	return b
}

// put writes data at off in blocks of at most n bytes.
func put(w device.Writer, off int64, data []byte, n int) error {
	for len(data) > 0 {
		b, err := w.Block(off, min(n, len(data), w.MaxBlock()))
		if err != nil {
			return err
		}
		copy(b, data)
		if err := w.Commit(); err != nil {
			return err
		}
		off, data = off+int64(len(b)), data[len(b):]
	}
	return nil
}

func random(n int64) []byte {
	b := make([]byte, n)
	_, _ = rand.NewChaCha8([32]byte{byte(n)}).Read(b)
	return b
}

func check(t *testing.T, b device.Buffer, want []byte, read func(*testing.T, device.Segment) []byte) {
	t.Helper()
	s, err := b.Seal()
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	got := read(t, s)
	if int64(len(got)) != s.Bytes {
		t.Fatalf("segment of %d bytes reads as %d", s.Bytes, len(got))
	}
	if got = got[:len(want)]; !bytes.Equal(got, want) {
		for i := range got {
			if got[i] != want[i] {
				t.Fatalf("contents differ from byte %d on", i)
			}
		}
	}
}

func sizes(t *testing.T, d device.Device) {
	g := d.Granularity()
	if g <= 0 {
		t.Fatalf("granularity %d", g)
	}
	free, err := d.Free()
	if err != nil || free <= 0 {
		t.Fatalf("free memory %d, %v", free, err)
	}
	for _, bytes := range []int64{1, g - 1, g, g + 1, 3*g - 1} {
		if want, got := (max(bytes, 1)+g-1)/g*g, alloc(t, d, max(bytes, 1)).Bytes(); got != want {
			t.Errorf("Alloc(%d) has %d bytes, want %d", bytes, got, want)
		}
	}
	for _, bytes := range []int64{0, -1, -1 << 63} {
		b, err := d.Alloc(bytes)
		if err == nil {
			t.Errorf("Alloc(%d) = %v, want an error", bytes, b)
		}
		var short *device.NoMemory
		if errors.As(err, &short) {
			t.Errorf("Alloc(%d): %v, want another error than NoMemory", bytes, err)
		}
	}
}

func tooLarge(t *testing.T, d device.Device) {
	for _, bytes := range []int64{1 << 50, 1<<63 - 1} {
		b, err := d.Alloc(bytes)
		var short *device.NoMemory
		if !errors.As(err, &short) {
			t.Fatalf("Alloc(%d) = %v, %v; want NoMemory", bytes, b, err)
		}
		if short.Want < bytes || short.Free <= 0 || short.Free >= short.Want {
			t.Errorf("Alloc(%d): %+v", bytes, *short)
		}
	}
	alloc(t, d, 1) // the device is as good as before
}

func blocks(t *testing.T, d device.Device, read func(*testing.T, device.Segment) []byte) {
	b := alloc(t, d, 3<<20+12345)
	want := random(b.Bytes())
	w, err := b.Writer()
	if err != nil {
		t.Fatal(err)
	}
	// Later pieces before earlier ones, of sizes that no alignment favours.
	end := int64(len(want))
	for _, n := range []int64{1, 7, 255, 4096, 65537, 1 << 20, 1 << 40} {
		start := max(end-n, 0)
		if err := put(w, start, want[start:end], 1<<30); err != nil {
			t.Fatal(err)
		}
		end = start
	}
	if err := w.Flush(); err != nil {
		t.Fatal(err)
	}
	if err := put(w, 3, want[3:4], 1); err != nil { // a writer goes on after Flush
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	check(t, b, want, read)
}

func inFlight(t *testing.T, d device.Device, read func(*testing.T, device.Segment) []byte) {
	b := alloc(t, d, 1<<20)
	want := random(b.Bytes())
	w, err := b.Writer()
	if err != nil {
		t.Fatal(err)
	}
	if err := put(w, 0, want, 1<<10); err != nil {
		t.Fatal(err)
	}
	if err := w.Flush(); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	check(t, b, want, read)
}

func writers(t *testing.T, d device.Device, read func(*testing.T, device.Segment) []byte) {
	const n = 8
	b := alloc(t, d, n*300_000)
	want := random(b.Bytes())
	part := (len(want) + n - 1) / n
	var wg sync.WaitGroup
	for i := range n {
		wg.Go(func() {
			w, err := b.Writer()
			if err != nil {
				t.Error(err)
				return
			}
			lo, hi := min(i*part, len(want)), min((i+1)*part, len(want))
			if err := put(w, int64(lo), want[lo:hi], 10_000+i); err != nil {
				t.Error(err)
			}
			if err := w.Close(); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	check(t, b, want, read)
}

func closeIsFlush(t *testing.T, d device.Device, read func(*testing.T, device.Segment) []byte) {
	b := alloc(t, d, 2<<20)
	want := random(b.Bytes())
	w, err := b.Writer()
	if err != nil {
		t.Fatal(err)
	}
	if err := put(w, 0, want, 1<<30); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if err := w.Close(); err != nil {
			t.Fatal(err)
		}
	}
	check(t, b, want, read)
}

func badBlocks(t *testing.T, d device.Device) {
	b := alloc(t, d, 1)
	w, err := b.Writer()
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	size, most := b.Bytes(), w.MaxBlock()
	if most < device.MinBlock {
		t.Errorf("MaxBlock is %d, want %d or more", most, device.MinBlock)
	}
	for _, x := range []struct {
		off int64
		n   int
	}{{0, 0}, {0, -1}, {-1, 1}, {size, 1}, {size - 1, 2}, {0, most + 1}, {1<<63 - 1, 2}, {0, 1<<63 - 1}} {
		if got, err := w.Block(x.off, x.n); err == nil {
			t.Errorf("Block(%d, %d) gave %d bytes of a buffer of %d, want an error", x.off, x.n, len(got), size)
		}
	}
	if err := put(w, size-1, []byte{1}, 1); err != nil {
		t.Errorf("a good block after bad ones: %v", err)
	}
}

func sealWithWriter(t *testing.T, d device.Device) {
	b := alloc(t, d, 1)
	w, err := b.Writer()
	if err != nil {
		t.Fatal(err)
	}
	if s, err := b.Seal(); err == nil {
		t.Errorf("Seal with an open writer = %v, want an error", s)
	}
	if err := put(w, 0, []byte{1}, 1); err != nil {
		t.Errorf("write after a Seal that was refused: %v", err)
	}
	if err := w.Close(); err != nil {
		t.Error(err)
	}
	s, err := b.Seal()
	if err != nil {
		t.Fatal(err)
	}
	_ = s.Close()
}

func spent(t *testing.T, d device.Device) {
	sealed, closed := alloc(t, d, 1), alloc(t, d, 1)
	s, err := sealed.Seal()
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	if err := closed.Close(); err != nil {
		t.Fatal(err)
	}
	for name, b := range map[string]device.Buffer{"sealed": sealed, "closed": closed} {
		if _, err := b.Writer(); err == nil {
			t.Errorf("%s buffer gives a writer", name)
		}
		if _, err := b.Seal(); err == nil {
			t.Errorf("%s buffer is sealed again", name)
		}
		if err := b.Close(); err != nil {
			t.Errorf("%s buffer: Close: %v", name, err)
		}
	}
	if s.Pieces[0].Int() < 0 {
		t.Error("Close of a sealed buffer took the segment along")
	}
}

func outlives(t *testing.T, d device.Device, read func(*testing.T, device.Segment) []byte) {
	b, err := d.Alloc(100_000)
	if err != nil {
		t.Fatal(err)
	}
	w, err := b.Writer()
	if err != nil {
		t.Fatal(err)
	}
	want := random(100_000)
	if err := put(w, 0, want, 1<<30); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	s, err := b.Seal()
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	if err := b.Close(); err != nil {
		t.Error(err)
	}
	if err := d.Close(); err != nil {
		t.Error(err)
	}
	second, err := s.Dup()
	if err != nil {
		t.Fatal(err)
	}
	defer second.Close()
	_ = s.Close()
	got := read(t, second)
	if !bytes.Equal(got[:len(want)], want) {
		t.Error("contents went with the buffer and the device")
	}
}
