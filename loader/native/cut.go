// SPDX-FileCopyrightText: The wcache authors
// SPDX-License-Identifier: MIT

package native

import (
	"github.com/wcache/wcache/layout"
	"github.com/wcache/wcache/tensor/cast"
)

const (
	// Rows that lie no further apart are read with what lies between them, which
	// costs less than a system call for each; see BenchmarkRows.
	gapBytes = 3 << 10
	// Neighbours of at most this size may share a read.
	smallBytes = 32 << 10
)

// task is a part of a plan that one worker does independently of the others.
type task func(*worker) error

// cut makes tasks of about block bytes each. Ropes come first, because they keep CPUs busy
// while other workers wait for a disk.
func cut(plan *layout.Plan, block int64) []task {
	var tasks []task
	for i := range plan.Ropes {
		r := &plan.Ropes[i]
		step := max(scratchBytes/r.RowBytes(), 1)
		for row := int64(0); row < r.Rows; row += step {
			n := min(step, r.Rows-row)
			tasks = append(tasks, func(w *worker) error { return w.rope(r, row, n) })
		}
	}
	for _, z := range plan.Zeros {
		for off := int64(0); off < z.Bytes; off += block {
			n := min(block, z.Bytes-off)
			tasks = append(tasks, func(w *worker) error { return w.zero(z.Dst+off, n) })
		}
	}
	if len(plan.Literals) > 0 {
		tasks = append(tasks, func(w *worker) error { return w.literals(plan.Literals) })
	}
	for i := 0; i < len(plan.Copies); {
		n := neighbours(plan.Copies[i:])
		if n > 1 {
			batch := plan.Copies[i : i+n]
			tasks = append(tasks, func(w *worker) error { return w.batch(batch) })
		} else {
			tasks = cutCopy(tasks, &plan.Copies[i], block)
		}
		i += n
	}
	return tasks
}

func cutCopy(tasks []task, c *layout.Copy, block int64) []task {
	rows, rowBytes := c.Rows, c.RowBytes
	if c.SrcStride == rowBytes {
		rows, rowBytes = 1, rows*rowBytes
	}
	if rows > 1 && rowBytes <= scratchBytes {
		step := max(block/rowBytes, 1)
		for row := int64(0); row < rows; row += step {
			n := min(step, rows-row)
			tasks = append(tasks, func(w *worker) error { return w.rows(c, row, n) })
		}
		return tasks
	}
	for row := range rows {
		for off := int64(0); off < rowBytes; off += block {
			n := min(block, rowBytes-off)
			src, dst := c.Src+row*c.SrcStride+off, c.Dst+c.Written(row*rowBytes+off)
			tasks = append(tasks, func(w *worker) error { return w.run(c, dst, src, n) })
		}
	}
	return tasks
}

// neighbours counts the copies from the first on that are worth one read for all:
// small ones that follow each other closely in a file. It is at least 1.
func neighbours(copies []layout.Copy) int {
	n := 0
	for end := copies[0].Src; n < len(copies); n++ {
		c := &copies[n]
		if c.Rows != 1 || c.RowBytes > smallBytes || c.File != copies[0].File ||
			c.Src < end || c.Src > end+gapBytes || c.Src+c.RowBytes-copies[0].Src > scratchBytes {
			break
		}
		end = c.Src + c.RowBytes
	}
	return max(n, 1)
}

// run copies n contiguous bytes of a file.
func (w *worker) run(c *layout.Copy, dst, src, n int64) error {
	for n > 0 {
		part := min(n, int64(w.block))
		if c.From != c.To { // no more than a block holds after the cast
			part = min(part, int64(w.block)/int64(c.To.Size())*int64(c.From.Size()))
		}
		out := c.Written(part)
		err := w.write(dst, int(out), func(b []byte) error {
			if c.From == c.To {
				return w.readBlock(w.sources[c.File], b, src)
			}
			return w.cast(b, c, src, part)
		})
		if err != nil {
			return err
		}
		if err := w.ctx.Err(); err != nil {
			return err
		}
		dst, src, n = dst+out, src+part, n-part
	}
	return nil
}

// cast reads n bytes at src and puts them into b as elements of another type.
func (w *worker) cast(b []byte, c *layout.Copy, src, n int64) error {
	convert := w.casts.of(c)
	for n > 0 {
		s := w.scratch[:min(n, scratchBytes)]
		if err := w.sources[c.File].read(s, src); err != nil {
			return err
		}
		convert(b, s)
		b = b[c.Written(int64(len(s))):]
		src, n = src+int64(len(s)), n-int64(len(s))
	}
	return nil
}

// rows copies rows that are shorter than the scratch.
func (w *worker) rows(c *layout.Copy, row, n int64) error {
	size := c.Written(c.RowBytes)
	step := max(int64(w.block)/size, 1)
	for end := row + n; row < end; row += step {
		k := min(step, end-row)
		src := c.Src + row*c.SrcStride
		err := w.write(c.Dst+row*size, int(k*size), func(b []byte) error {
			if c.SrcStride-c.RowBytes <= gapBytes {
				return w.pick(b, c, src, k)
			}
			return w.each(b, c, src, k)
		})
		if err != nil {
			return err
		}
		if err := w.ctx.Err(); err != nil {
			return err
		}
	}
	return nil
}

// each reads every row with a system call of its own.
func (w *worker) each(b []byte, c *layout.Copy, src, n int64) error {
	size := c.Written(c.RowBytes)
	for ; n > 0; n-- {
		var err error
		if c.From == c.To {
			err = w.sources[c.File].read(b[:size], src)
		} else {
			err = w.cast(b[:size], c, src, c.RowBytes)
		}
		if err != nil {
			return err
		}
		b, src = b[size:], src+c.SrcStride
	}
	return nil
}

// pick reads several rows at once, with the bytes between them.
func (w *worker) pick(b []byte, c *layout.Copy, src, n int64) error {
	convert := w.casts.of(c)
	size := c.Written(c.RowBytes)
	for n > 0 {
		k := min((scratchBytes-c.RowBytes)/c.SrcStride+1, n)
		s := w.scratch[:(k-1)*c.SrcStride+c.RowBytes]
		if err := w.sources[c.File].read(s, src); err != nil {
			return err
		}
		for i := range k {
			put(b, s[i*c.SrcStride:][:c.RowBytes], convert)
			b = b[size:]
		}
		src, n = src+k*c.SrcStride, n-k
	}
	return nil
}

// put copies src to dst, by convert unless that is nil.
func put(dst, src []byte, convert cast.Func) {
	if convert == nil {
		copy(dst, src)
		return
	}
	convert(dst, src)
}

// batch serves neighbours with one read.
func (w *worker) batch(copies []layout.Copy) error {
	first, last := &copies[0], &copies[len(copies)-1]
	s := w.scratch[:last.Src+last.RowBytes-first.Src]
	if err := w.sources[first.File].read(s, first.Src); err != nil {
		return err
	}
	for i := range copies {
		c := &copies[i]
		in := s[c.Src-first.Src:][:c.RowBytes]
		err := w.write(c.Dst, int(c.Written(c.RowBytes)), func(b []byte) error {
			put(b, in, w.casts.of(c))
			return nil
		})
		if err != nil {
			return err
		}
	}
	return nil
}

func (w *worker) rope(r *layout.Rope, row, n int64) error {
	size := r.RowBytes()
	return w.write(r.Dst+row*size, int(n*size), func(b []byte) error {
		ropeRows(b, r, row, n)
		return nil
	})
}

func (w *worker) zero(dst, n int64) error {
	for n > 0 {
		part := min(n, int64(w.block))
		err := w.write(dst, int(part), func(b []byte) error {
			clear(b)
			return nil
		})
		if err != nil {
			return err
		}
		dst, n = dst+part, n-part
	}
	return nil
}

func (w *worker) literals(list []layout.Literal) error {
	for _, l := range list {
		for off := 0; off < len(l.Data); off += w.block {
			data := l.Data[off:min(off+w.block, len(l.Data))]
			err := w.write(l.Dst+int64(off), len(data), func(b []byte) error {
				copy(b, data)
				return nil
			})
			if err != nil {
				return err
			}
		}
	}
	return nil
}
