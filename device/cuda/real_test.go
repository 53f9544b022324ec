// SPDX-FileCopyrightText: The wcache authors
// SPDX-License-Identifier: MIT

package cuda_test

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/wcache/wcache/device"
	"github.com/wcache/wcache/device/cuda"
	"github.com/wcache/wcache/device/devicetest"
	"github.com/wcache/wcache/layout"
	"github.com/wcache/wcache/loader/native"
	"github.com/wcache/wcache/stamp"
	"github.com/wcache/wcache/tensor"
)

// The tests and benchmarks of a real GPU, number 0 or WCACHE_TEST_GPU, skip where
// there is none. To carry them to a machine that has one:
//
//	go test -c -o cuda.test ./device/cuda
//	./cuda.test -test.run Real -test.v -test.bench . -test.benchtime 3x

// real is the GPU to test on.
func real() string {
	if name := os.Getenv("WCACHE_TEST_GPU"); name != "" {
		return name
	}
	return "0"
}

func openReal(t testing.TB, o cuda.Options) *cuda.Device {
	t.Helper()
	d, err := cuda.Open(real(), o)
	if errors.As(err, new(*cuda.NoDriver)) {
		t.Skipf("%v; the other tests are about a fake driver", err)
	}
	if err != nil {
		t.Fatal(err)
	}
	return d
}

func TestReal(t *testing.T) {
	d := openReal(t, cuda.Options{})
	defer d.Close() // keeps the context for all of the tests
	t.Logf("GPU %s, granularity %d", d.UUID(), d.Granularity())
	devicetest.Run(t,
		func() (device.Device, error) { return cuda.Open(d.UUID(), cuda.Options{}) },
		func(t *testing.T, s device.Segment) []byte { return read(t, d, s) })
}

// What another process reads of a descriptor whose maker has let the GPU go.
func TestRealOtherProcess(t *testing.T) {
	d := openReal(t, cuda.Options{})
	b, err := d.Alloc(1)
	if err != nil {
		t.Fatal(err)
	}
	want := bytes.Repeat([]byte("weights!"), int(b.Bytes())/8)
	w, err := b.Writer()
	if err != nil {
		t.Fatal(err)
	}
	mem, err := w.Block(0, len(want))
	if err != nil {
		t.Fatal(err)
	}
	copy(mem, want)
	if err := errors.Join(w.Commit(), w.Close()); err != nil {
		t.Fatal(err)
	}
	s, err := b.Seal()
	if err != nil {
		t.Fatal(err)
	}
	if err := d.Close(); err != nil {
		t.Error(err)
	}
	file := os.NewFile(uintptr(s.Pieces[0].Disown()), "segment")
	defer file.Close()
	cmd := child(t, "consumer", "", d.UUID(), fmt.Sprintf("CUDA_TEST_BYTES=%d", s.Bytes))
	cmd.ExtraFiles, cmd.Stderr = []*os.File{file}, os.Stderr
	if got, err := cmd.Output(); err != nil || !bytes.Equal(got, want) {
		t.Errorf("consumer read %d bytes, equal %v, %v", len(got), bytes.Equal(got, want), err)
	}
}

// TestRealTimes says what each step around a copy costs.
func TestRealTimes(t *testing.T) {
	start := time.Now()
	lap := func(what string) {
		t.Logf("%-20s %8.1f ms", what, float64(time.Since(start).Microseconds())/1000)
		start = time.Now()
	}
	d := openReal(t, cuda.Options{})
	defer d.Close()
	lap("open")
	b, err := d.Alloc(4 << 30)
	if err != nil {
		t.Fatal(err)
	}
	lap("allocate 4 GiB")
	for i := range 2 {
		if err := write(b); err != nil {
			t.Fatal(err)
		}
		lap(fmt.Sprintf("writer %d, 8 MiB", i+1))
	}
	s, err := b.Seal()
	if err != nil {
		t.Fatal(err)
	}
	lap("seal")
	m, err := d.Map(s)
	if err != nil {
		t.Fatal(err)
	}
	lap("map")
	if err := errors.Join(m.Close(), s.Close()); err != nil {
		t.Fatal(err)
	}
	lap("free")
	if err := d.Close(); err != nil {
		t.Fatal(err)
	}
	lap("close")
}

// benchBytes is the size of the file to load, WCACHE_BENCH_BYTES or 4 GiB. It lies
// in TMPDIR and is in the page cache when it is read.
func benchBytes(b *testing.B) int64 {
	if s := os.Getenv("WCACHE_BENCH_BYTES"); s != "" {
		n, err := strconv.ParseInt(s, 10, 64)
		if err != nil {
			b.Fatal(err)
		}
		return n >> 25 << 25
	}
	return 4 << 30
}

// BenchmarkPinned copies staging as it is: the most that any loader can reach by
// this way.
func BenchmarkPinned(b *testing.B) {
	for _, o := range benchOptions() {
		for _, workers := range []int{1, 8, 10, 16} {
			bench(b, o, workers, func(buf device.Buffer) error { return copyStaging(buf, workers) })
		}
	}
}

// BenchmarkFill loads a file of tensors of 32 MiB.
func BenchmarkFill(b *testing.B) {
	openReal(b, cuda.Options{}).Close()
	plan := benchPlan(b, benchBytes(b), tensor.U8, tensor.U8)
	for _, o := range benchOptions() {
		for _, workers := range []int{6, 8, 10, 12, 16} {
			bench(b, o, workers, func(buf device.Buffer) error {
				return native.Fill(b.Context(), plan, buf, native.Options{Workers: workers, BlockBytes: o.BlockBytes})
			})
		}
	}
}

// BenchmarkCast loads a file of float32 as bfloat16. Speeds are of the file's bytes.
func BenchmarkCast(b *testing.B) {
	openReal(b, cuda.Options{}).Close()
	plan := benchPlan(b, benchBytes(b), tensor.F32, tensor.BF16)
	for _, workers := range []int{8, 10, 12, 16} {
		bench(b, cuda.Options{}, workers, func(buf device.Buffer) error {
			return native.Fill(b.Context(), plan, buf, native.Options{Workers: workers})
		})
	}
}

func benchOptions() []cuda.Options {
	return []cuda.Options{
		{BlockBytes: 4 << 20, Ring: 2},
		{BlockBytes: 4 << 20, Ring: 3},
		{BlockBytes: 2 << 20, Ring: 3},
	}
}

// bench reports the best speed of filling a new buffer, making staging included.
func bench(b *testing.B, o cuda.Options, workers int, fill func(device.Buffer) error) {
	b.Run(fmt.Sprintf("block=%dMiB/ring=%d/workers=%d", o.BlockBytes>>20, o.Ring, workers), func(b *testing.B) {
		d := openReal(b, o)
		defer d.Close()
		best := time.Hour
		for b.Loop() {
			buf, err := d.Alloc(benchBytes(b))
			if err != nil {
				b.Fatal(err)
			}
			start := time.Now()
			err = fill(buf)
			best = min(best, time.Since(start))
			if err := errors.Join(err, buf.Close()); err != nil {
				b.Fatal(err)
			}
		}
		b.ReportMetric(float64(benchBytes(b))/1e9/best.Seconds(), "GB/s")
		b.ReportMetric(float64(best.Microseconds())/1000, "ms-best")
	})
}

// copyStaging has each worker copy its part, whatever its staging holds.
func copyStaging(buf device.Buffer, workers int) error {
	part := buf.Bytes() / int64(workers)
	errs := make([]error, workers)
	var wg sync.WaitGroup
	for i := range workers {
		wg.Go(func() {
			w, err := buf.Writer()
			if err != nil {
				errs[i] = err
				return
			}
			n := int64(w.MaxBlock())
			for off := int64(i) * part; off+n <= int64(i+1)*part && err == nil; off += n {
				if _, err = w.Block(off, int(n)); err == nil {
					err = w.Commit()
				}
			}
			errs[i] = errors.Join(err, w.Close())
		})
	}
	wg.Wait()
	return errors.Join(errs...)
}

// benchPlan is a model of one file, as package weights and layout describe it.
func benchPlan(b *testing.B, bytes int64, from, to tensor.DType) *layout.Plan {
	b.Helper()
	const tensorBytes = 32 << 20
	outBytes := tensorBytes / int64(from.Size()) * int64(to.Size())
	path := filepath.Join(b.TempDir(), "model")
	f, err := os.Create(path)
	if err != nil {
		b.Fatal(err)
	}
	defer f.Close()
	plan := &layout.Plan{Table: &tensor.Table{Segment: bytes / tensorBytes * outBytes}}
	piece := make([]byte, tensorBytes)
	for i := range piece {
		piece[i] = byte(i * 7)
	}
	for off := int64(0); off < bytes; off += tensorBytes {
		if _, err := f.Write(piece); err != nil {
			b.Fatal(err)
		}
		n := len(plan.Copies)
		plan.Copies = append(plan.Copies, layout.Copy{
			Dst: int64(n) * outBytes, Src: off, Rows: 1, RowBytes: tensorBytes, SrcStride: tensorBytes, From: from, To: to,
		})
		plan.Table.Storages = append(plan.Table.Storages, tensor.Storage{Offset: int64(n) * outBytes, Bytes: outBytes})
		plan.Table.Tensors = append(plan.Table.Tensors, tensor.Tensor{
			Name: strconv.Itoa(n), Kind: tensor.Param, DType: to, Shape: []int64{outBytes / int64(to.Size())}, Stride: []int64{1}, Storage: n,
		})
	}
	info, err := stamp.Of(path)
	if err != nil {
		b.Fatal(err)
	}
	plan.Files = []layout.File{{Path: path, Stamp: info.Stamp}}
	return plan
}
