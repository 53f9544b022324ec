// SPDX-FileCopyrightText: The wcache authors
// SPDX-License-Identifier: MIT

package main

import (
	"context"
	"errors"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/wcache/wcache/internal/fd"
	"github.com/wcache/wcache/weights"
)

// loading compares loads with plain reads of the same files, alternately.
func (b *bench) loading(ctx context.Context) (err error) {
	s, err := b.start(false, b.model)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.stop()) }()
	dir, err := weights.Open(b.model)
	if err != nil {
		return err
	}
	var read, load, seen, speed, work sample
	for i := range 9 {
		if err := ctx.Err(); err != nil {
			return err
		}
		cpu := cpuTime()
		plain, bytes, err := plainRead(dir)
		if err != nil {
			return err
		}
		cpu = cpuTime() - cpu
		p, err := s.load(ctx, b.model)
		if err != nil {
			return err
		}
		if i == 0 {
			continue // the first round touches the memory for the first time
		}
		gb := float64(bytes) / 1e9
		read.add(gb / plain.Seconds())
		load.add(gb / p.took)
		seen.add(gb / p.seen)
		speed.add(100 * plain.Seconds() / p.took)
		work.add(100 * p.cpu / cpu.Seconds())
	}
	b.add("plain parallel read of 2 GiB into fresh memory", read.spread("%.2f", "GB/s"), "", true)
	b.add("load of 2 GiB, from the child's start to its last word", load.spread("%.2f", "GB/s"), "", true)
	b.add("the same, as who asks sees it", seen.spread("%.2f", "GB/s"), "", true)
	b.add("speed of a load against the plain read before it", speed.spread("%.0f", "%%"), "at least 90 %", speed.median() >= 90)
	b.add("CPU time of a load against the plain read's", work.spread("%.0f", "%%"), "", true)
	return nil
}

// loaded is what a load took, in seconds.
type loaded struct{ took, seen, cpu float64 }

// load loads the model and frees it again.
func (s *service) load(ctx context.Context, model string) (loaded, error) {
	before, err := s.childCPU()
	if err != nil {
		return loaded{}, err
	}
	begin := time.Now()
	e, err := s.warm(ctx, model)
	if err != nil {
		return loaded{}, err
	}
	l := loaded{took: e.LoadSeconds, seen: time.Since(begin).Seconds()}
	after, err := s.childCPU()
	l.cpu = after - before
	return l, errors.Join(err, s.evict(ctx))
}

// cpuTime is the CPU time of this process.
func cpuTime() time.Duration {
	var r unix.Rusage
	_ = unix.Getrusage(unix.RUSAGE_SELF, &r) // fails only for another than itself
	return time.Duration(r.Utime.Nano() + r.Stime.Nano())
}

// plainRead reads the data of a model's files in parallel, in blocks, into a
// fresh memory file, with as many readers and as large blocks as a load has.
func plainRead(d *weights.Dir) (time.Duration, int64, error) {
	const readers, block = 4, 4 << 20
	var total int64
	for _, f := range d.Load {
		total += f.Size - f.Header.Data
	}
	begin := time.Now()
	memory, err := fd.Memory("plain")
	if err != nil {
		return 0, 0, err
	}
	defer memory.Close()
	if err := unix.Ftruncate(memory.Int(), total); err != nil {
		return 0, 0, err
	}
	mem, err := unix.Mmap(memory.Int(), 0, int(total), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		return 0, 0, err
	}
	all := mem
	defer unix.Munmap(all)
	for _, f := range d.Load {
		size := f.Size - f.Header.Data
		if err := readFile(f.Path, f.Header.Data, mem[:size], readers, block); err != nil {
			return 0, 0, err
		}
		mem = mem[size:]
	}
	return time.Since(begin), total, nil
}

func readFile(path string, from int64, mem []byte, readers, block int) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	var next atomic.Int64
	var wg sync.WaitGroup
	errs := make([]error, readers)
	for i := range errs {
		wg.Go(func() {
			for errs[i] == nil {
				off := next.Add(int64(block)) - int64(block)
				if off >= int64(len(mem)) {
					return
				}
				_, errs[i] = f.ReadAt(mem[off:min(off+int64(block), int64(len(mem)))], from+off)
			}
		})
	}
	wg.Wait()
	return errors.Join(errs...)
}
