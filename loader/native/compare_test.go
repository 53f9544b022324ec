// SPDX-FileCopyrightText: The wcache authors
// SPDX-License-Identifier: MIT

package native

import (
	"bytes"
	"errors"
	"math/rand/v2"
	"os"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/wcache/wcache/device"
	"github.com/wcache/wcache/device/devicetest"
	"github.com/wcache/wcache/device/host"
	"github.com/wcache/wcache/internal/fd"
	"github.com/wcache/wcache/layout"
	"github.com/wcache/wcache/stamp"
	"github.com/wcache/wcache/tensor"
)

// viewOf is a view of host memory with the given bytes.
func viewOf(t testing.TB, d device.Device, b []byte) device.View {
	t.Helper()
	f, err := fd.Sealed("segment", b)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	v, err := d.View(device.Whole(f, int64(len(b))))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = v.Close() })
	return v
}

// differs is Compare's answer by the plainest way.
func differs(table *tensor.Table, memory, file []byte) *Difference {
	var d *Difference
	for i, s := range table.Storages { // which tableOf has by place
		wrong := false
		if bytes.Equal(memory[s.Offset:s.Offset+s.Bytes], file[s.Offset:s.Offset+s.Bytes]) {
			continue
		}
		for at := s.Offset; at < s.Offset+s.Bytes; at++ {
			if memory[at] == file[at] {
				continue
			}
			if d == nil {
				d = &Difference{Tensor: table.Tensors[i].Name, Offset: at - s.Offset, Memory: memory[at], File: file[at]}
			}
			d.Bytes++
			wrong = true
		}
		if wrong {
			d.Tensors++
		}
	}
	return d
}

// Any byte of any kind of step that differs is found and named, however blocks and
// staging cut it: one, a few here and there, whole tensors. What lies between storages
// doesn't count.
func TestCompare(t *testing.T) {
	files := []layout.File{randomFile(t, "a", 1_500_001), randomFile(t, "bb", 70_000)}
	plan := randomPlan(rand.New(rand.NewPCG(1, 2)), files)
	page := host.Open().Granularity()
	want := make([]byte, (plan.Table.Segment+page-1)/page*page)
	carryOut(t, plan, want)
	r := rand.New(rand.NewPCG(3, 4))
	for round := range 16 {
		memory := append([]byte(nil), want...)
		switch {
		case round == 0:
		case round == 1:
			between := int64(0)
			for _, s := range plan.Table.Storages {
				for ; between < s.Offset; between++ {
					memory[between] ^= 0xff
				}
				between = s.Offset + s.Bytes
			}
		case round < 11:
			for range 1 + r.IntN(3) {
				memory[r.IntN(len(memory))] ^= byte(1 + r.IntN(255))
			}
		default:
			s := plan.Table.Storages[r.IntN(len(plan.Table.Storages))]
			for at := s.Offset; at < s.Offset+s.Bytes; at++ {
				memory[at] ^= byte(1 << r.IntN(8))
			}
		}
		d := device.Device(host.Open())
		if round%2 == 1 {
			d = devicetest.Staged(d)
		}
		o := Options{Workers: 1 + round%5, BlockBytes: []int{0, minBlock, 100_000}[round%3], Direct: true}
		got, err := Compare(t.Context(), plan, viewOf(t, d, memory), o)
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(differs(plan.Table, memory, want), got); diff != "" {
			t.Errorf("round %d, %+v (-want +got):\n%s", round, o, diff)
		}
	}
}

// Of tensors that share a storage the one is named that has the byte.
func TestCompareNames(t *testing.T) {
	f := randomFile(t, "a", 1000)
	plan := wholePlan(f)
	plan.Table.Tensors = []tensor.Tensor{
		{Name: "k", Kind: tensor.Param, DType: tensor.U8, Shape: []int64{600}, Stride: []int64{1}},
		{Name: "v", Kind: tensor.Param, DType: tensor.BF16, Shape: []int64{200}, Stride: []int64{1}, Offset: 300},
	}
	memory := make([]byte, 4096)
	carryOut(t, plan, memory)
	for at, want := range map[int]Difference{599: {Tensor: "k", Offset: 599}, 600: {Tensor: "v"}, 999: {Tensor: "v", Offset: 399}} {
		b := append([]byte(nil), memory...)
		b[at] ^= 1
		want.Memory, want.File, want.Bytes, want.Tensors = b[at], memory[at], 1, 1
		got, err := Compare(t.Context(), plan, viewOf(t, host.Open(), b), Options{})
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(&want, got); diff != "" {
			t.Errorf("byte %d (-want +got):\n%s", at, diff)
		}
	}
}

// A byte of a file that was changed behind its times differs; a file that changes
// meanwhile is an error, and so is a plan for more memory than there is.
func TestCompareFiles(t *testing.T) {
	f := randomFile(t, "a", 1_000_000)
	memory := make([]byte, 1_003_520)
	carryOut(t, wholePlan(f), memory)
	flip := func(at int64) error {
		file, err := os.OpenFile(f.Path, os.O_RDWR, 0)
		if err != nil {
			return err
		}
		then := time.Unix(0, f.Stamp.MTime)
		_, err = file.WriteAt([]byte{^memory[at]}, at)
		return errors.Join(err, file.Close(), os.Chtimes(f.Path, then, then))
	}
	if err := flip(777_777); err != nil {
		t.Fatal(err)
	}
	plan := wholePlan(fileOf(t, f.Path))
	got, err := Compare(t.Context(), plan, viewOf(t, host.Open(), memory), Options{})
	if err != nil {
		t.Fatal(err)
	}
	want := &Difference{Tensor: "0", Offset: 777_777, Memory: memory[777_777], File: ^memory[777_777], Bytes: 1, Tensors: 1}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}

	v := &hookedView{viewOf(t, host.Open(), memory), func() error { return flip(5) }}
	_, err = Compare(t.Context(), plan, v, Options{BlockBytes: minBlock})
	var bad *stamp.Changed
	if !errors.As(err, &bad) || bad.Path != f.Path {
		t.Errorf("error %v, want Changed", err)
	}
	broken := errors.New("fell off the bus")
	v.open = func() error { return broken }
	if _, err := Compare(t.Context(), wholePlan(fileOf(t, f.Path)), v, Options{}); !errors.Is(err, broken) {
		t.Errorf("error %v, want the device's", err)
	}
	if _, err := Compare(t.Context(), plan, viewOf(t, host.Open(), memory[:4096]), Options{}); err == nil || err.Error() != "check plan: a segment of 1000000 bytes for memory of 4096" {
		t.Errorf("error %v", err)
	}
	if _, err := Compare(t.Context(), nil, v, Options{}); err == nil {
		t.Error("no plan is no error")
	}
}

type hookedView struct {
	device.View
	open func() error
}

func (v *hookedView) Reader() (device.Reader, error) {
	if err := v.open(); err != nil {
		return nil, err
	}
	return v.View.Reader()
}
