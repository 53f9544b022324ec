// SPDX-FileCopyrightText: The wcache authors
// SPDX-License-Identifier: MIT

// Package native carries a [layout.Plan] out: it reads the ranges of checkpoint files that a
// rank needs and writes them to the memory of a device, where the plan says. It fuses, cuts
// and casts shards on the way, and reads and writes each byte once.
package native

import (
	"context"
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"

	"github.com/wcache/wcache/device"
	"github.com/wcache/wcache/layout"
	"github.com/wcache/wcache/tensor"
	"github.com/wcache/wcache/tensor/cast"
)

const (
	// defaultBlock is large enough for a system call's cost not to matter, and was
	// best for copies from pinned memory to a GPU.
	defaultBlock = 4 << 20
	// minBlock is a block that holds whole elements of every type.
	minBlock = 4 << 10
	// scratchBytes is how much a worker reads at once of bytes that it has to pick or cast.
	// It fits into a core's second level cache.
	scratchBytes = 256 << 10
	// minWorkers keep a disk busy, and maxWorkers a PCIe link or a socket's memory;
	// between them one worker per CPU is best.
	minWorkers, maxWorkers = 4, 16
)

// Options say how to fill. The zero value is right for host memory.
type Options struct {
	Workers    int  // goroutines that read in parallel, one device writer each; 0: by the number of CPUs
	BlockBytes int  // most bytes of one read; 0: 4 MiB
	Direct     bool // files that aren't in the page cache are read past it, if the file system can
	// Progress is called by all workers, concurrently, with the number of bytes that each
	// just wrote. It may be nil.
	Progress func(n int64)
	// Digests are computed meanwhile, of the plan's files or others. Then all files go
	// through the page cache, Direct or not, so that the disk reads each byte once.
	Digests Hashing
}

// Fill carries plan out in buf, which has to have the bytes of the plan's segment.
// It may leave buf half filled when it fails, with a [*stamp.Changed] or an [*Unreadable] for a
// file that it can't use. When ctx is done it ends after the blocks that are in
// flight.
func Fill(ctx context.Context, plan *layout.Plan, buf device.Buffer, o Options) error {
	if err := check(plan, buf.Bytes()); err != nil {
		return err
	}
	sources, err := o.sources(plan)
	if err != nil {
		return err
	}
	defer closeSources(sources)
	return fillFrom(ctx, sources, plan, buf, o)
}

// sources opens a plan's files for reading as the options say. The caller closes them.
func (o *Options) sources(plan *layout.Plan) ([]*source, error) {
	return openSources(plan.Files, o.Direct && len(o.Digests.Files) == 0)
}

// fillFrom is Fill for a checked plan whose files are open.
func fillFrom(ctx context.Context, sources []*source, plan *layout.Plan, buf device.Buffer, o Options) error {
	workers, blockBytes, progress := o.Workers, o.BlockBytes, o.Progress
	if workers <= 0 {
		workers = defaultWorkers()
	}
	if blockBytes <= 0 {
		blockBytes = defaultBlock
	}
	blockBytes = max(blockBytes, minBlock) / minBlock * minBlock
	if progress == nil {
		progress = func(int64) {}
	}
	tasks, casts := cut(plan, int64(blockBytes)), castsOf(plan.Copies)
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var next atomic.Int64
	var wg sync.WaitGroup
	if len(o.Digests.Files) > 0 {
		wg.Go(func() {
			if err := Hash(ctx, o.Digests); err != nil {
				cancel(err)
			}
		})
	}
	for range min(workers, len(tasks)) {
		wg.Go(func() {
			w := &worker{ctx: ctx, sources: sources, casts: casts, block: blockBytes, progress: progress}
			if err := w.do(tasks, buf, &next); err != nil {
				cancel(err)
			}
		})
	}
	wg.Wait()
	if err := context.Cause(ctx); err != nil {
		return err
	}
	// If a file was written while it was read, the contents are neither the old nor the new
	// ones.
	for _, s := range sources {
		if err := s.check(); err != nil {
			return err
		}
	}
	return nil
}

func defaultWorkers() int { return min(max(runtime.GOMAXPROCS(0), minWorkers), maxWorkers) }

// worker is one goroutine of Fill.
type worker struct {
	ctx      context.Context
	sources  []*source
	casts    casts
	block    int // bytes
	progress func(int64)
	out      device.Writer
	scratch  []byte
	aligned  aligned
}

func (w *worker) do(tasks []task, buf device.Buffer, next *atomic.Int64) error {
	out, err := buf.Writer()
	if err != nil {
		return err
	}
	w.out = out
	w.block = min(w.block, out.MaxBlock()/minBlock*minBlock)
	w.scratch = make([]byte, scratchBytes)
	defer w.aligned.free()
	for err == nil {
		i := int(next.Add(1)) - 1
		if i >= len(tasks) {
			break
		}
		if err = w.ctx.Err(); err == nil {
			err = tasks[i](w)
		}
	}
	if e := out.Close(); err == nil && e != nil {
		err = e
	}
	return err
}

// write has fill write n bytes at dst, and commits them.
func (w *worker) write(dst int64, n int, fill func([]byte) error) error {
	b, err := w.out.Block(dst, n)
	if err != nil {
		return err
	}
	if err := fill(b); err != nil {
		return err
	}
	if err := w.out.Commit(); err != nil {
		return fmt.Errorf("write %d bytes of the segment: %w", n, err)
	}
	w.progress(int64(n))
	return nil
}

// casts are the conversions that a plan's copies need, made once for all.
type casts map[[2]tensor.DType]cast.Func

func castsOf(copies []layout.Copy) casts {
	m := make(casts)
	for i := range copies {
		pair := [2]tensor.DType{copies[i].From, copies[i].To}
		if _, ok := m[pair]; !ok && pair[0] != pair[1] {
			m[pair] = cast.Between(pair[0], pair[1])
		}
	}
	return m
}

// of is nil for a copy that casts nothing.
func (m casts) of(c *layout.Copy) cast.Func { return m[[2]tensor.DType{c.From, c.To}] }
