// SPDX-FileCopyrightText: The wcache authors
// SPDX-License-Identifier: MIT

package weights

import (
	"context"
	"path/filepath"
	"slices"

	"github.com/wcache/wcache/weights/safetensors"
)

// IgnoredHave reports whether one of the Ignored files has a tensor whose name
// matches. It reads their headers one after another, within the directory's limits
// and its [Memory]; errors are those of [Memory.Open].
func (d *Dir) IgnoredHave(matches func(name string) bool) (bool, error) {
	for _, base := range d.Ignored {
		found, err := d.fileHas(base, matches)
		if found || err != nil {
			return found, err
		}
	}
	return false, nil
}

func (d *Dir) fileHas(base string, matches func(name string) bool) (bool, error) {
	length, err := d.headerLength(base)
	if err != nil {
		return false, err
	}
	if n := d.headers + length; n > MaxHeaders {
		return false, tooLarge(filepath.Join(d.Path, base), &TooLarge{"bytes of headers", n, MaxHeaders})
	}
	share, err := d.memory.take(context.Background(), d.Path, length*safetensors.Cost)
	if err != nil {
		return false, err
	}
	defer share.Give()
	f, err := openFile(d.Path, base, d.have[base], length)
	if err != nil {
		return false, err
	}
	return slices.ContainsFunc(f.Header.Tensors, func(t safetensors.Tensor) bool { return matches(t.Name) }), nil
}
