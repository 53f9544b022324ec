// SPDX-FileCopyrightText: The wcache authors
// SPDX-License-Identifier: MIT

package weights

import (
	"bytes"
	"fmt"
	"io"
	"maps"
	"os"
	"reflect"
	"slices"

	"github.com/wcache/wcache/stamp"
)

// compareBlock is how much of two files is compared at a time, in bytes.
const compareBlock = 1 << 20

// SameContent reports whether two directories load to the same model: equal
// tensors, byte for byte, whatever files they are spread over, and an equal
// configuration, save for what only tells where it came from. Data that both share
// on disk, as snapshots and hard links do, isn't read; else all of it may be, up
// to the first difference. A file that changes meanwhile is a [*stamp.Changed].
func SameContent(a, b *Dir) (bool, error) {
	if a.Path == b.Path {
		return true, nil
	}
	if len(a.names) != len(b.names) || !sameConfig(a.Config.Raw, b.Config.Raw) {
		return false, nil
	}
	for _, t := range a.All() {
		_, u, ok := b.Find(t.Name)
		if !ok || t.DType != u.DType || !slices.Equal(t.Shape, u.Shape) {
			return false, nil
		}
	}
	c := comparison{open: make(map[*File]*os.File), x: make([]byte, compareBlock), y: make([]byte, compareBlock)}
	same, err := c.data(a, b)
	if e := c.close(); err == nil {
		err = e
	}
	return same && err == nil, err
}

// sameConfig compares two config.json. It ignores the model's name and the version of
// the library that wrote the file, which don't change the model.
func sameConfig(a, b map[string]any) bool {
	neutral := func(name string, _ any) bool { return name == "_name_or_path" || name == "transformers_version" }
	a, b = maps.Clone(a), maps.Clone(b)
	maps.DeleteFunc(a, neutral)
	maps.DeleteFunc(b, neutral)
	return reflect.DeepEqual(a, b)
}

type comparison struct {
	open map[*File]*os.File
	x, y []byte
}

func (c *comparison) data(a, b *Dir) (bool, error) {
	for f, t := range a.All() {
		g, u, _ := b.Find(t.Name)
		if f.SameFile(g.Stamp) && t.Begin == u.Begin {
			continue
		}
		same, err := c.span(f, f.Header.Data+t.Begin, g, g.Header.Data+u.Begin, t.End-t.Begin)
		if err != nil || !same {
			return false, err
		}
	}
	return true, nil
}

// span compares n bytes of two files, from the given offsets on.
func (c *comparison) span(f *File, fOff int64, g *File, gOff, n int64) (bool, error) {
	for n > 0 {
		x, y := c.x[:min(n, compareBlock)], c.y[:min(n, compareBlock)]
		if err := c.read(f, x, fOff); err != nil {
			return false, err
		}
		if err := c.read(g, y, gOff); err != nil {
			return false, err
		}
		if !bytes.Equal(x, y) {
			return false, nil
		}
		step := int64(len(x))
		fOff, gOff, n = fOff+step, gOff+step, n-step
	}
	return true, nil
}

func (c *comparison) read(f *File, b []byte, off int64) error {
	file := c.open[f]
	if file == nil {
		var err error
		if file, err = openSame(f.Path, f.Stamp); err != nil {
			return err
		}
		c.open[f] = file
	}
	if n, err := file.ReadAt(b, off); n < len(b) {
		if err == io.EOF {
			return &stamp.Changed{Path: f.Path, What: "is shorter than it was"}
		}
		return fmt.Errorf("compare weights: %w", err)
	}
	return nil
}

// close closes the opened files, and reports a file that has changed meanwhile.
func (c *comparison) close() error {
	var first error
	for f, file := range c.open {
		if err := f.Check(int(file.Fd()), f.Path); err != nil && first == nil {
			first = err
		}
		_ = file.Close() // nothing was written
	}
	return first
}
