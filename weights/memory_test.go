// SPDX-FileCopyrightText: The wcache authors
// SPDX-License-Identifier: MIT

package weights

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"

	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/wcache/wcache/internal/testmain"
	"github.com/wcache/wcache/stamp"
	"github.com/wcache/wcache/weights/safetensors"
)

// claim makes a file that claims a header of n bytes, and takes no room on disk.
func claim(t *testing.T, path string, n int64) {
	t.Helper()
	f, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	_, err = f.Write(binary.LittleEndian.AppendUint64(nil, uint64(n)))
	if err := errors.Join(err, f.Truncate(n+8), f.Close()); err != nil {
		t.Fatal(err)
	}
}

// A directory whose headers together are over the limit is refused by the lengths that
// they declare, before one of them is read.
func TestHeadersOfADirectory(t *testing.T) {
	dir := copyModel(t, "qwen3")
	remove(t, filepath.Join(dir, "model.safetensors"))
	for i := range 8 {
		claim(t, filepath.Join(dir, fmt.Sprintf("model-%d.safetensors", i)), 99_000_000)
	}
	age(t, dir)
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	d, err := Open(dir)
	runtime.ReadMemStats(&after)
	if n := after.TotalAlloc - before.TotalAlloc; d != nil || n > 4<<20 {
		t.Errorf("%d bytes were allocated", n)
	}
	var bad *Unusable
	var large *TooLarge
	if !errors.As(err, &bad) || !errors.As(err, &large) {
		t.Fatalf("got %v", err)
	}
	if diff := cmp.Diff(&TooLarge{"bytes of headers", 792_000_000, MaxHeaders}, large); diff != "" {
		t.Error(diff)
	}
	const want = "has 792000000 bytes of headers in all, of which a model has 134217728 at most; see that its files are what they should be, and move those away that are not"
	if diff := cmp.Diff(Unusable{Path: dir, Reason: want}, Unusable{Path: bad.Path, Reason: bad.Reason}); diff != "" {
		t.Error(diff)
	}
	// 1.3 million tensors have 126 MB of headers, in several files (case W6).
	if sum := int64(126_000_000); sum > MaxHeaders || 1_300_000 > MaxTensors {
		t.Error("a directory that must load is over the limits")
	}
}

func TestTensorsOfADirectory(t *testing.T) {
	dir := copyModel(t, "llama")
	d := open(t, dir)
	n := int64(0)
	var names []string
	for _, f := range d.Hashed {
		n += int64(len(f.Header.Tensors))
		names = append(names, f.Base)
	}
	if _, err := d.openFiles(t.Context(), names, limits{MaxHeaders, n}); err != nil {
		t.Error(err)
	}
	_, err := d.openFiles(t.Context(), names, limits{MaxHeaders, n - 1})
	var large *TooLarge
	if !errors.As(err, &large) || large.What != "tensors" || large.Limit != n-1 || large.Have < n {
		t.Errorf("got %v", err)
	}
}

// waiting opens a directory in a goroutine.
func waiting(t *testing.T, m *Memory, ctx context.Context, dir string) <-chan error {
	t.Helper()
	got := make(chan error, 1)
	go func() {
		d, err := m.Open(ctx, dir)
		if err == nil {
			d.Close()
		}
		got <- err
	}()
	return got
}

// Directories share one memory: a directory that finds no room waits until another is
// closed, and once it is read it keeps only what it needs.
func TestMemory(t *testing.T) {
	dir := copyModel(t, "llama")
	small, _ := smallFiles(open(t, dir).have)
	need := small
	for _, f := range open(t, dir).Hashed {
		need += int64(len(f.Header.Raw)) * safetensors.Cost
	}
	m := NewMemory(need + 1000) // enough for one directory that is read, not for two
	first, err := m.Open(t.Context(), dir)
	if err != nil {
		t.Fatal(err)
	}
	all, err := m.quota.Take(t.Context(), m.quota.Total()-held(first)) // what is left of it
	if err != nil {
		t.Fatal(err)
	}
	next := waiting(t, m, t.Context(), dir)
	ctx, cancel := context.WithCancelCause(t.Context())
	third := waiting(t, m, ctx, dir)
	why := errors.New("nobody waits any more")
	cancel(why)
	if err := <-third; !errors.Is(err, why) {
		t.Errorf("got %v", err)
	}
	if len(next) != 0 {
		t.Error("it didn't wait")
	}
	first.Close()
	first.Close()
	all.Give()
	if err := <-next; err != nil {
		t.Error(err)
	}
	free(t, m)
}

// held is how much of its memory a directory holds.
func held(d *Dir) int64 {
	n := int64(0)
	for _, s := range d.shares {
		n += s.Has()
	}
	return n
}

// free checks that all of a memory has been given back.
func free(t *testing.T, m *Memory) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	testmain.Eventually(t, "all memory is free", func() bool {
		runtime.GC()
		s, err := m.quota.Take(ctx, m.quota.Total())
		s.Give()
		return err == nil
	})
}

// A directory's memory is given back if it can't be opened, and if it is dropped
// without Close.
func TestMemoryIsGivenBack(t *testing.T) {
	m := NewMemory(OneDirectory)
	dir := copyModel(t, "llama")
	for range 3 {
		if _, err := m.Open(t.Context(), dir); err != nil {
			t.Fatal(err)
		}
	}
	write(t, filepath.Join(dir, "model-00002-of-00004.safetensors"), bytes.Repeat([]byte("x"), 100))
	age(t, dir)
	if _, err := m.Open(t.Context(), dir); err == nil {
		t.Error("a broken file was read")
	}
	if _, err := m.Open(t.Context(), filepath.Join(dir, "none")); err == nil {
		t.Error("nothing was read")
	}
	free(t, m)
}

// A directory that waits in vain gets an error that says what takes the memory.
func TestBusy(t *testing.T) {
	err := error(&Busy{Path: "/m", Want: 6_000_000, Have: 1000})
	const want = `read weights "/m": its headers take up to 6000000 bytes of memory, and those of other models that are being opened take all of the 1000 that are for them`
	if err.Error() != want {
		t.Errorf("got %v", err)
	}
}

// Reading files that aren't loaded is within the limits, too.
func TestIgnoredHave(t *testing.T) {
	dir := copyModel(t, "llama")
	b, err := os.ReadFile(filepath.Join("../testdata/checkpoints/llama_tied_extra_head", "model.safetensors"))
	if err != nil {
		t.Fatal(err)
	}
	write(t, filepath.Join(dir, "extra.safetensors"), b)
	age(t, dir)
	d := open(t, dir)
	head := func(name string) bool { return strings.HasSuffix(name, "lm_head.weight") }
	if len(d.Ignored) == 0 {
		t.Fatal("it has no such files")
	}
	if found, err := d.IgnoredHave(head); !found || err != nil {
		t.Errorf("got %v, %v", found, err)
	}
	if found, err := d.IgnoredHave(func(string) bool { return false }); found || err != nil {
		t.Errorf("got %v, %v", found, err)
	}
	d.headers = MaxHeaders
	_, err = d.IgnoredHave(head)
	var large *TooLarge
	if !errors.As(err, &large) {
		t.Errorf("got %v", err)
	}
	flip(t, filepath.Join(dir, d.Ignored[0]))
	_, err = d.IgnoredHave(head)
	var changed *stamp.Changed
	if !errors.As(err, &changed) {
		t.Errorf("got %v", err)
	}
}
