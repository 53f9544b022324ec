// SPDX-FileCopyrightText: The wcache authors
// SPDX-License-Identifier: MIT

// Package index finds model directories by checkpoint hash.
package index

import (
	"context"
	"hash/fnv"
	"strings"

	"github.com/wcache/wcache/weights"
)

type Answer struct {
	Dirs    []string
	Unsure  []Unsure
	Roots   []Root
	Version uint64
}

type Unsure struct {
	Path string
	Err  error
}

type Root struct{ Path string }

func (r Root) Whole() bool    { return true }
func (r Root) Reason() string { return "" }
func (r Root) Passing() bool  { return false }

type Index struct{ *weights.Index }

func New(roots []string) *Index { return &Index{weights.NewIndex(roots)} }

func (x *Index) Lookup(_ context.Context, hash string) (Answer, error) {
	dirs, err := x.Index.Lookup(hash)
	h := fnv.New64a()
	h.Write([]byte(strings.Join(dirs, "\x00")))
	return Answer{Dirs: dirs, Version: h.Sum64()}, err
}

func (x *Index) Current(hash string, version uint64) bool {
	a, _ := x.Lookup(context.Background(), hash)
	return a.Version == version
}

func (x *Index) Known(hash string) []string { dirs, _ := x.Index.Lookup(hash); return dirs }
