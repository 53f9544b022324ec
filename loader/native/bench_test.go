// SPDX-FileCopyrightText: The wcache authors
// SPDX-License-Identifier: MIT

package native

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/wcache/wcache/device/host"
	"github.com/wcache/wcache/internal/fd"
	"github.com/wcache/wcache/layout"
	"github.com/wcache/wcache/tensor"
)

// The benchmarks fill fresh memory from a file in the page cache, and next to it,
// in turns, do a plain parallel pread of as many bytes, by as many workers, into a
// fresh mapping of a memory file: the best that reads can do on the machine. Both
// include the making of the memory. Reported is the best of each, as GB/s of
// memory, and what share of the plain speed Fill has:
//
//	go test -run '^$' -bench . -benchtime 10x ./loader/native
const benchBytes = 1 << 30 // of the file

// BenchmarkFill is a plan of whole tensors, large and small, as a model has them.
func BenchmarkFill(b *testing.B) {
	p := newBenchPlan(b, benchBytes)
	for at := int64(0); at < benchBytes; {
		for _, n := range []int64{4 << 10, 4 << 10, 8 << 20, 32 << 20, 32 << 20, 32 << 20} {
			if n = min(n, benchBytes-at); n > 0 {
				p.add(layout.Copy{Src: at, Rows: 1, RowBytes: n, SrcStride: n})
			}
			at += n
		}
	}
	p.run(b)
}

// BenchmarkRows is what a row-parallel weight of one rank is made of: of each row
// of the checkpoint a tpth part.
func BenchmarkRows(b *testing.B) {
	for _, tp := range []int64{2, 8} {
		for _, row := range []int64{1 << 10, 2 << 10, 4 << 10} {
			p := newBenchPlan(b, benchBytes)
			const rows = 8 << 10
			for at := int64(0); at < benchBytes; at += rows * row * tp {
				n := min(rows, (benchBytes-at)/(row*tp))
				p.add(layout.Copy{Src: at + row, Rows: n, RowBytes: row, SrcStride: row * tp})
			}
			b.Run(fmt.Sprintf("tp=%d/row=%d", tp, row), p.run)
		}
	}
}

// BenchmarkCast is a float32 checkpoint for a model of half the size.
func BenchmarkCast(b *testing.B) {
	for _, to := range []tensor.DType{tensor.BF16, tensor.F16} {
		p := newBenchPlan(b, benchBytes)
		for at := int64(0); at < benchBytes; at += 32 << 20 {
			p.add(layout.Copy{Src: at, Rows: 1, RowBytes: 32 << 20, SrcStride: 32 << 20, From: tensor.F32, To: to})
		}
		b.Run("F32-"+to.String(), p.run)
	}
}

type benchPlan struct {
	plan layout.Plan
	end  int64 // bytes of memory
	read int64 // bytes of the file that become memory
}

func newBenchPlan(b *testing.B, bytes int64) *benchPlan {
	b.Helper()
	path := filepath.Join(b.TempDir(), "data")
	if err := writePattern(path, bytes); err != nil {
		b.Fatal(err)
	}
	return &benchPlan{plan: layout.Plan{Files: []layout.File{fileOf(b, path)}}}
}

// writePattern makes a file that is in the page cache. Its floats are such as
// weights are, since the cost of a cast hangs on them.
func writePattern(path string, bytes int64) error {
	f, err := os.Create(path)
	if err != nil {
		return err
	}
	defer f.Close()
	piece := make([]byte, 1<<20)
	random := rand.New(rand.NewPCG(1, 2))
	for i := 0; i < len(piece); i += 4 {
		binary.LittleEndian.PutUint32(piece[i:], math.Float32bits(float32(random.NormFloat64()*0.02)))
	}
	for range bytes >> 20 {
		if _, err := f.Write(piece); err != nil {
			return err
		}
	}
	return f.Sync()
}

func (p *benchPlan) add(c layout.Copy) {
	if c.From == 0 {
		c.From, c.To = tensor.BF16, tensor.BF16
	}
	c.Dst = p.end
	p.plan.Copies = append(p.plan.Copies, c)
	p.end += c.Written(c.Rows * c.RowBytes)
	p.read += c.Rows * c.RowBytes
}

func (p *benchPlan) run(b *testing.B) {
	p.plan.Table = tableOf([]int64{p.end})
	plain, fill := time.Hour, time.Hour
	for b.Loop() {
		start := time.Now()
		if err := plainRead(p.plan.Files[0].Path, p.end); err != nil {
			b.Fatal(err)
		}
		plain = min(plain, time.Since(start))

		start = time.Now()
		buf, err := host.Open().Alloc(p.end)
		if err != nil {
			b.Fatal(err)
		}
		if err := Fill(b.Context(), &p.plan, buf, Options{}); err != nil {
			b.Fatal(err)
		}
		fill = min(fill, time.Since(start))
		_ = buf.Close()
	}
	b.ReportMetric(0, "ns/op")
	b.ReportMetric(float64(p.end)/1e9/plain.Seconds(), "GB/s-plain")
	b.ReportMetric(float64(p.end)/1e9/fill.Seconds(), "GB/s-fill")
	b.ReportMetric(float64(p.read)/1e9/fill.Seconds(), "GB/s-wanted-of-file")
	b.ReportMetric(100*plain.Seconds()/fill.Seconds(), "%-of-plain")
}

// plainRead reads the first bytes of a file in blocks into a fresh memory file.
func plainRead(path string, bytes int64) error {
	in, err := os.Open(path)
	if err != nil {
		return err
	}
	defer in.Close()
	f, err := fd.Memory("plain")
	if err != nil {
		return err
	}
	defer f.Close()
	if err := unix.Ftruncate(f.Int(), bytes); err != nil {
		return err
	}
	mem, err := unix.Mmap(f.Int(), 0, int(bytes), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		return err
	}
	defer unix.Munmap(mem)
	var next atomic.Int64
	var wg sync.WaitGroup
	errs := make([]error, defaultWorkers())
	for i := range errs {
		wg.Go(func() {
			for errs[i] == nil {
				off := next.Add(defaultBlock) - defaultBlock
				if off >= bytes {
					return
				}
				_, errs[i] = in.ReadAt(mem[off:min(off+defaultBlock, bytes)], off)
			}
		})
	}
	wg.Wait()
	return errors.Join(errs...)
}
