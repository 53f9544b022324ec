// SPDX-FileCopyrightText: The wcache authors
// SPDX-License-Identifier: MIT

package native

import (
	"crypto/sha256"
	"path/filepath"
	"testing"
	"time"

	"github.com/wcache/wcache/device"
	"github.com/wcache/wcache/device/host"
	"github.com/wcache/wcache/layout"
)

// benchFiles are as many files of one model, all in the page cache.
func benchFiles(b *testing.B, n int) []layout.File {
	b.Helper()
	var files []layout.File
	for range n {
		path := filepath.Join(b.TempDir(), "data")
		if err := writePattern(path, benchBytes/int64(n)); err != nil {
			b.Fatal(err)
		}
		files = append(files, fileOf(b, path))
	}
	return files
}

// BenchmarkSHA256 is what a core hashes of memory, at the most.
func BenchmarkSHA256(b *testing.B) {
	block, sum := make([]byte, hashBlock), sha256.New()
	b.SetBytes(hashBlock)
	for b.Loop() {
		sum.Write(block)
	}
}

// BenchmarkHash is files alone: as a load hashes them, and one by one past the page
// cache, which they are in here.
func BenchmarkHash(b *testing.B) {
	files := benchFiles(b, 4)
	for _, gently := range []bool{false, true} {
		b.Run(map[bool]string{false: "quick", true: "gently"}[gently], func(b *testing.B) {
			b.SetBytes(benchBytes)
			for b.Loop() {
				if err := Hash(b.Context(), Hashing{Files: files, Gently: gently, Done: func(Digest) error { return nil }}); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

// BenchmarkFillDigests is a load of a model of one file and of four, without and with
// their digests, in turns. Reported is the best of each, as GB/s of memory.
func BenchmarkFillDigests(b *testing.B) {
	for _, n := range []int{1, 4} {
		files := benchFiles(b, n)
		plan := wholePlan(files...)
		b.Run(map[int]string{1: "one file", 4: "four files"}[n], func(b *testing.B) {
			best := [2]time.Duration{time.Hour, time.Hour}
			for b.Loop() {
				for i, hashed := range [][]layout.File{nil, files} {
					start := time.Now()
					buf := filled(b, plan, Options{Digests: Hashing{Files: hashed, Done: func(Digest) error { return nil }}})
					best[i] = min(best[i], time.Since(start))
					_ = buf.Close()
				}
			}
			b.ReportMetric(0, "ns/op")
			b.ReportMetric(benchBytes/1e9/best[0].Seconds(), "GB/s-without")
			b.ReportMetric(benchBytes/1e9/best[1].Seconds(), "GB/s-with")
		})
	}
}

// BenchmarkCompare is memory against files, beside the load that filled it.
func BenchmarkCompare(b *testing.B) {
	plan := wholePlan(benchFiles(b, 4)...)
	load, compare := time.Hour, time.Hour
	for b.Loop() {
		start := time.Now()
		s, err := filled(b, plan, Options{}).Seal()
		if err != nil {
			b.Fatal(err)
		}
		load = min(load, time.Since(start))

		start = time.Now()
		v, err := host.Open().View(s)
		if err != nil {
			b.Fatal(err)
		}
		d, err := Compare(b.Context(), plan, v, Options{})
		if err != nil || d != nil {
			b.Fatal(d, err)
		}
		compare = min(compare, time.Since(start))
		_, _ = v.Close(), s.Close()
	}
	b.ReportMetric(0, "ns/op")
	b.ReportMetric(benchBytes/1e9/load.Seconds(), "GB/s-load")
	b.ReportMetric(benchBytes/1e9/compare.Seconds(), "GB/s-compare")
}

func filled(b *testing.B, plan *layout.Plan, o Options) device.Buffer {
	b.Helper()
	buf, err := host.Open().Alloc(plan.Table.Segment)
	if err != nil {
		b.Fatal(err)
	}
	if err := Fill(b.Context(), plan, buf, o); err != nil {
		b.Fatal(err)
	}
	return buf
}
