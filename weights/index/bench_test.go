// SPDX-FileCopyrightText: The wcache authors
// SPDX-License-Identifier: MIT

package index

import (
	"fmt"
	"os"
	"strings"
	"testing"
	"time"
)

// models makes a root of directories with four shards and three other files each. All models
// have the same names; one in ten has the headers of the hash.
func models(b *testing.B, n int) (root, hash string) {
	root = b.TempDir()
	files := make(map[string]string)
	header := strings.Repeat("x", 30<<10) // as of a model with some hundred tensors
	for i := range n {
		for k := range 4 {
			base := fmt.Sprintf("model-%d-of-4.safetensors", k+1)
			files[base] = header
			name := header
			if i%10 != 0 {
				name = fmt.Sprint(i, header)
			}
			write(b, fmt.Sprintf("%s/owner-%d/m-%d/%s", root, i/100, i, base), shard(name, "1"))
		}
		for _, name := range []string{"config.json", "tokenizer.json", "README.md"} {
			write(b, fmt.Sprintf("%s/owner-%d/m-%d/%s", root, i/100, i, name), nil)
		}
	}
	return root, hashOf(files)
}

var counts = []int{1, 100, 2000}

func BenchmarkCurrent(b *testing.B) {
	for _, n := range counts {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			root, hash := models(b, n)
			x := start(b, Options{}, root)
			a := lookup(b, x, hash)
			for b.Loop() {
				if !x.Current(hash, a.Version) {
					b.Fatal("not current")
				}
			}
		})
	}
}

// While a file of another model grows in the same root.
func BenchmarkCurrentDownload(b *testing.B) {
	for _, n := range counts {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			root, hash := models(b, n)
			write(b, root+"/new/model-1.safetensors", shard("new", "1"))
			f, err := os.Create(root + "/new/model-2.safetensors")
			must(b, err)
			defer func() { _ = f.Close() }()
			x := start(b, Options{}, root)
			a := lookup(b, x, hash)
			for b.Loop() {
				if _, err := f.WriteString("some bytes"); err != nil {
					b.Fatal(err)
				}
				if !x.Current(hash, a.Version) {
					b.Fatal("not current")
				}
			}
		})
	}
}

func BenchmarkLookup(b *testing.B) {
	for _, n := range counts {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			root, hash := models(b, n)
			x := start(b, Options{}, root)
			lookup(b, x, hash)
			for b.Loop() {
				lookup(b, x, hash)
			}
		})
	}
}

// Each look-up follows a change of a directory that has the hash.
func BenchmarkLookupChanged(b *testing.B) {
	for _, n := range counts {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			root, hash := models(b, n)
			x := start(b, Options{}, root)
			lookup(b, x, hash)
			for b.Loop() {
				now := time.Now()
				must(b, os.Chtimes(root+"/owner-0/m-0/model-1-of-4.safetensors", now, now))
				lookup(b, x, hash)
			}
		})
	}
}

// Each look-up follows the creation of a folder somewhere, which concerns every hash.
func BenchmarkLookupNewFolder(b *testing.B) {
	for _, n := range counts {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			root, hash := models(b, n)
			x := start(b, Options{}, root)
			lookup(b, x, hash)
			i := 0
			for b.Loop() {
				i++
				must(b, os.Mkdir(fmt.Sprintf("%s/f%d", root, i), 0o700))
				lookup(b, x, hash)
				must(b, os.Remove(fmt.Sprintf("%s/f%d", root, i)))
			}
		})
	}
}

func BenchmarkFirstWalk(b *testing.B) {
	root, hash := models(b, 2000)
	for b.Loop() {
		x := New(Options{})
		x.SetRoots([]string{root})
		lookup(b, x, hash)
		x.Close()
	}
}

// With the file that an earlier process has saved.
func BenchmarkWalkAfterLoad(b *testing.B) {
	root, hash := models(b, 2000)
	time.Sleep(50 * time.Millisecond) // the stamps have to settle
	x := start(b, Options{}, root)
	lookup(b, x, hash)
	file := b.TempDir() + "/index.json"
	must(b, x.Save(file))
	for b.Loop() {
		y := New(Options{})
		must(b, y.Load(file))
		y.SetRoots([]string{root})
		lookup(b, y, hash)
		y.Close()
	}
}

// A walk of folders that are already known, as for a root on a file server.
func BenchmarkPoll(b *testing.B) {
	root, hash := models(b, 2000)
	x := start(b, Options{system: remote{}, PollEvery: time.Hour}, root)
	lookup(b, x, hash)
	for b.Loop() {
		x.mu.Lock()
		x.markWhole(x.roots[0].top, true)
		x.mu.Unlock()
		lookup(b, x, hash)
	}
}
