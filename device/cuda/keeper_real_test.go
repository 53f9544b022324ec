// SPDX-FileCopyrightText: The wcache authors
// SPDX-License-Identifier: MIT

package cuda_test

import (
	"bytes"
	"errors"
	"testing"
	"time"

	"github.com/wcache/wcache/device"
	"github.com/wcache/wcache/device/cuda"
	"github.com/wcache/wcache/device/devicetest"
)

// TestRealKeeper is the contract of devices and what TestKeeperEnds asks of a fake,
// of a real GPU.
func TestRealKeeper(t *testing.T) {
	d := openReal(t, cuda.Options{})
	defer d.Close()
	k := kind{"cuda", "", d.UUID()}
	devicetest.Run(t,
		func() (device.Device, error) { return cuda.OpenKeeper(d.UUID(), cuda.Options{}) },
		func(t *testing.T, s device.Segment) []byte { return readKept(t, k, s) })

	consumer, err := cuda.OpenKeeper(d.UUID(), cuda.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer consumer.Close()
	for _, kill := range []bool{false, true} {
		before, err := d.Free()
		if err != nil {
			t.Fatal(err)
		}
		cmd, s := startKeeper(t, k)
		free, err := d.Free()
		if err != nil {
			t.Fatal(err)
		}
		t.Logf("a keeper of %d MiB takes %d MiB", s.Bytes>>20, (before-free)>>20)
		start := time.Now()
		m, err := consumer.Map(s)
		if err != nil {
			t.Fatal(err)
		}
		t.Logf("opened after %v", time.Since(start))
		want := bytes.Repeat([]byte("weights!"), int(s.Bytes)/8)
		read := func(when string) {
			got := make([]byte, s.Bytes)
			_, err := m.ReadAt(got, 0)
			t.Logf("%s: the same bytes %v, error %v", when, bytes.Equal(got, want), err)
			if when == "opened" && (err != nil || !bytes.Equal(got, want)) {
				t.Error("other bytes than the keeper wrote")
			}
		}
		read("opened")
		if kill {
			_ = cmd.Process.Kill()
		} else {
			_ = s.Close()
		}
		_ = cmd.Wait()
		read("the keeper has ended") // CUDA promises nothing here
		t.Logf("close: %v", m.Close())
		if kill {
			if err := s.Gone(); err == nil {
				t.Error("the segment is not gone")
			}
			var e *cuda.Error
			_, err := consumer.Map(s)
			t.Logf("open what is gone: %v", err)
			if !errors.As(err, &e) {
				t.Error("no error of the driver's")
			}
		}
	}
}
