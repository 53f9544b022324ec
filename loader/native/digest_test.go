// SPDX-FileCopyrightText: The wcache authors
// SPDX-License-Identifier: MIT

package native

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/wcache/wcache/device/host"
	"github.com/wcache/wcache/layout"
	"github.com/wcache/wcache/stamp"
)

// digests collects what a hashing gives, in the order of the files.
type digests struct {
	mu   sync.Mutex
	list []Digest
}

func (d *digests) done(x Digest) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.list = append(d.list, x)
	slices.SortFunc(d.list, func(a, b Digest) int { return a.File - b.File })
	return nil
}

// sumOf is a file's digest by the plainest way.
func sumOf(t testing.TB, path string) string {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return fmt.Sprintf("%x", sha256.Sum256(b))
}

func TestHash(t *testing.T) {
	var files []layout.File
	var want []Digest
	var total int64
	for i, size := range []int{0, 1, hashBlock - 1, hashBlock, hashBlock + 1, gentleBlock, 5_000_001} {
		files = append(files, randomFile(t, fmt.Sprint(size), size))
		want = append(want, Digest{File: i, SHA256: sumOf(t, files[i].Path)})
		total += int64(size)
	}
	for _, gently := range []bool{false, true} {
		t.Run(fmt.Sprintf("gently=%v", gently), func(t *testing.T) {
			for _, f := range files { // the gentle way is another for what isn't cached
				forget(t, f.Path)
			}
			var got digests
			var read atomic.Int64
			err := Hash(t.Context(), Hashing{Files: files, Gently: gently, Done: got.done, Progress: func(n int64) { read.Add(n) }})
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(want, got.list); diff != "" {
				t.Errorf("digests (-want +got):\n%s", diff)
			}
			if read.Load() != total {
				t.Errorf("progress says %d bytes of %d", read.Load(), total)
			}
		})
	}
	if err := Hash(t.Context(), Hashing{}); err != nil {
		t.Errorf("nothing: %v", err)
	}
}

// Gently past the page cache comes what isn't in it, but for the end of a file, and
// through it what is.
func TestHashGently(t *testing.T) {
	const size = 4*gentleBlock + 1000
	s, through, past := splitSource(t, size)
	want := bytes.Clone(through)
	s.cached = func(off int64, n int) bool {
		if off/gentleBlock%2 == 0 {
			return true
		}
		copy(want[off:], past[off:off+int64(n)])
		return false
	}
	var read int64
	w := &worker{ctx: t.Context(), progress: func(n int64) { read += n }}
	defer w.aligned.free()
	sum, err := w.sum(s, true)
	if err != nil {
		t.Fatal(err)
	}
	if want := fmt.Sprintf("%x", sha256.Sum256(want)); sum != want || read != size {
		t.Errorf("digest %s of %d bytes, want %s of %d", sum, read, want, size)
	}
}

// hubFile makes a file of a Hugging Face cache, of the given name among the blobs.
func hubFile(t *testing.T, blob string, data []byte) string {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "models--a--b")
	link := filepath.Join(dir, "snapshots", "0123", "model.safetensors")
	for _, d := range []string{filepath.Join(dir, "blobs"), filepath.Dir(link)} {
		if err := os.MkdirAll(d, 0o700); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(filepath.Join(dir, "blobs", blob), data, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(filepath.Join("..", "..", "blobs", blob), link); err != nil {
		t.Fatal(err)
	}
	return link
}

// Files of a hub's cache are named by their sha256, small ones by something else.
func TestHashHub(t *testing.T) {
	data := []byte("weights")
	sum := fmt.Sprintf("%x", sha256.Sum256(data))
	other := fmt.Sprintf("%x", sha256.Sum256(nil))
	link := hubFile(t, sum, data)
	again := filepath.Join(t.TempDir(), "link") // leads there by way of another
	if err := os.Symlink(link, again); err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct{ path, want string }{
		{link, sum},
		{again, sum},
		{hubFile(t, other, data), other},
		{hubFile(t, "95d09f2b10159347eece71399a7e2e907ea3df4f", data), ""},
		{randomFile(t, sum, 100).Path, ""}, // elsewhere such a name means nothing
	} {
		var got digests
		if err := Hash(t.Context(), Hashing{Files: []layout.File{fileOf(t, tt.path)}, Done: got.done}); err != nil {
			t.Fatal(err)
		}
		if got := got.list[0]; got.Hub != tt.want || got.SHA256 != sumOf(t, tt.path) {
			t.Errorf("%s: %+v, want %s for its name", tt.path, got, tt.want)
		}
	}
}

// A file that is written while it is read has no digest.
func TestHashChanged(t *testing.T) {
	for name, change := range map[string]func(f layout.File) error{
		"truncated": func(f layout.File) error { return os.Truncate(f.Path, 1000) },
		"longer":    func(f layout.File) error { return os.Truncate(f.Path, f.Stamp.Size+1) },
		"rewritten, time put back": func(f layout.File) error {
			then := time.Unix(0, f.Stamp.MTime)
			return errors.Join(os.WriteFile(f.Path, make([]byte, f.Stamp.Size), 0o600), os.Chtimes(f.Path, then, then))
		},
	} {
		for _, gently := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s gently=%v", name, gently), func(t *testing.T) {
				f := randomFile(t, "a", 5_000_000)
				var once sync.Once
				err := Hash(t.Context(), Hashing{
					Files: []layout.File{f}, Gently: gently,
					Done: func(d Digest) error { return fmt.Errorf("it has a digest: %+v", d) },
					Progress: func(int64) {
						once.Do(func() {
							if err := change(f); err != nil {
								t.Error(err)
							}
						})
					},
				})
				var bad *stamp.Changed
				if !errors.As(err, &bad) || bad.Path != f.Path {
					t.Errorf("error %v, want Changed", err)
				}
			})
		}
	}
	f := randomFile(t, "a", 1000)
	if err := os.Remove(f.Path); err != nil {
		t.Fatal(err)
	}
	err := Hash(t.Context(), Hashing{Files: []layout.File{f}})
	var bad *Unreadable
	if !errors.As(err, &bad) || !errors.Is(err, unix.ENOENT) {
		t.Errorf("error %v, want Unreadable with ENOENT", err)
	}
}

func TestHashStops(t *testing.T) {
	f := randomFile(t, "a", 5_000_000)
	ctx, cancel := context.WithCancelCause(t.Context())
	why := errors.New("a load runs")
	var read atomic.Int64
	err := Hash(ctx, Hashing{
		Files: []layout.File{f, f}, Done: func(Digest) error { return errors.New("it went on") },
		Progress: func(n int64) { read.Add(n); cancel(why) },
	})
	if !errors.Is(err, why) || read.Load() > 2*hashBlock {
		t.Errorf("error %v after %d bytes, want the context's", err, read.Load())
	}
}

// What a load fills memory with is hashed meanwhile, and what is said of a digest
// ends it.
func TestFillDigests(t *testing.T) {
	a, b, config := randomFile(t, "a", 3_000_000), randomFile(t, "bb", 70_000), randomFile(t, "ccc", 100)
	files := []layout.File{a, b, config}
	plan := wholePlan(a, b)
	load := func(done func(Digest) error) error {
		buf, err := host.Open().Alloc(plan.Table.Segment)
		if err != nil {
			t.Fatal(err)
		}
		defer buf.Close()
		return Fill(t.Context(), plan, buf, Options{Direct: true, Digests: Hashing{Files: files, Done: done}})
	}
	var got digests
	if err := load(got.done); err != nil {
		t.Fatal(err)
	}
	want := []Digest{{File: 0, SHA256: sumOf(t, a.Path)}, {File: 1, SHA256: sumOf(t, b.Path)}, {File: 2, SHA256: sumOf(t, config.Path)}}
	if diff := cmp.Diff(want, got.list); diff != "" {
		t.Errorf("digests (-want +got):\n%s", diff)
	}
	no := &Damaged{Path: b.Path, SHA256: "0a", Hub: "0b"}
	err := load(func(d Digest) error {
		if d.File == 1 {
			return no
		}
		return nil
	})
	if !errors.Is(err, error(no)) {
		t.Errorf("error %v, want that of the digest", err)
	}
	if text, want := no.Error(), fmt.Sprintf("check %q: its sha256 is 0a and its name in the Hugging Face cache says 0b: it is damaged or not complete", b.Path); text != want {
		t.Errorf("got  %s\nwant %s", text, want)
	}
}
