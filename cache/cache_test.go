// SPDX-FileCopyrightText: The wcache authors
// SPDX-License-Identifier: MIT

package cache

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/wcache/wcache/device"
	"github.com/wcache/wcache/fingerprint"
	"github.com/wcache/wcache/internal/fd"
	"github.com/wcache/wcache/internal/testmain"
	"github.com/wcache/wcache/manifest"
	"github.com/wcache/wcache/tensor"
)

const segment = 4096

func key(t *testing.T, checkpoint string, more ...fingerprint.Field) fingerprint.Key {
	t.Helper()
	k, err := fingerprint.NewKey(append([]fingerprint.Field{{Name: "checkpoint", Value: checkpoint}}, more...))
	if err != nil {
		t.Fatal(err)
	}
	return k
}

// want is a key in the one directory of its checkpoint.
func want(k fingerprint.Key) Want {
	return Want{Key: k, Dir: "/models/" + k.Str("checkpoint"), By: "only"}
}

// contents are one segment of one tensor.
func contents(dir string, bytes int64) (*Contents, error) {
	table := &tensor.Table{
		Segment: bytes, Storages: []tensor.Storage{{Bytes: bytes}},
		Tensors: []tensor.Tensor{{Name: "w", Kind: tensor.Param, DType: tensor.U8, Shape: []int64{bytes}, Stride: []int64{1}}},
	}
	b, err := table.Encode()
	if err != nil {
		return nil, err
	}
	tableFD, err := fd.Sealed("table", b)
	if err != nil {
		return nil, err
	}
	f, err := fd.Sealed("segment", make([]byte, bytes))
	if err != nil {
		return nil, err
	}
	return &Contents{Table: table, TableFD: tableFD, Segment: device.Whole(f, bytes), Record: manifest.Entry{Dir: dir}}, nil
}

// loader is a Load whose loads wait for a word.
type loads struct {
	mu      sync.Mutex
	started []string // checkpoints, in order
	begun   chan string
	go_     chan error // what the next load ends with
	pin     string     // checkpoint that is pinned
	bytes   int64
}

func newLoads() *loads {
	return &loads{begun: make(chan string, 64), go_: make(chan error, 64), bytes: segment}
}

func (l *loads) load(ctx context.Context, want Want, ticket *Ticket) (*Contents, error) {
	name := want.Key.Str("checkpoint")
	l.mu.Lock()
	l.started = append(l.started, name)
	l.mu.Unlock()
	if err := ticket.Reserve(l.bytes); err != nil {
		return nil, err
	}
	ticket.Progress(Progress{Model: "/models/" + name, Allocated: l.bytes, Total: l.bytes})
	l.begun <- name
	select {
	case err := <-l.go_:
		if err != nil {
			return nil, err
		}
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	c, err := contents("/models/"+name, l.bytes)
	if err == nil {
		c.Record.Pinned = name == l.pin
	}
	return c, err
}

func get(t *testing.T, c *Cache, k fingerprint.Key) *Hold {
	t.Helper()
	h, _, err := c.Get(t.Context(), want(k))
	if err != nil {
		t.Fatal(err)
	}
	return h
}

func TestOneLoadServesAll(t *testing.T) {
	l := newLoads()
	c := New(Options{Load: l.load})
	defer c.Close()
	k := key(t, "a")
	var wait sync.WaitGroup
	holds := make(chan *Hold, 10)
	for range 10 {
		wait.Go(func() {
			h, _, err := c.Get(context.Background(), want(k))
			if err != nil {
				t.Error(err)
				return
			}
			holds <- h
		})
	}
	<-l.begun
	l.go_ <- nil
	wait.Wait()
	close(holds)
	for h := range holds {
		h.Release()
	}
	h := get(t, c, k)
	defer h.Release()
	if !h.Hit() {
		t.Error("the entry was there and yet is no hit")
	}
	if diff := cmp.Diff([]string{"a"}, l.started); diff != "" {
		t.Errorf("loads (-want +got):\n%s", diff)
	}
}

func TestLoadThatFails(t *testing.T) {
	l := newLoads()
	broken := errors.New("no such luck")
	var ended []error // each before Get gives an answer
	c := New(Options{Load: l.load, Ended: func(err error) { ended = append(ended, err) }})
	defer c.Close()
	l.go_ <- broken
	if _, _, err := c.Get(t.Context(), want(key(t, "a"))); !errors.Is(err, broken) {
		t.Errorf("got %v, want %v", err, broken)
	}
	if !c.Empty() {
		t.Error("an entry is left of a load that failed")
	}
	l.go_ <- nil
	get(t, c, key(t, "a")).Release()
	if len(ended) != 2 || !errors.Is(ended[0], broken) || ended[1] != nil {
		t.Errorf("loads that ended: %v", ended)
	}
}

// A request that is given up ends its wait, and the load goes on for the next.
func TestGivingUp(t *testing.T) {
	l := newLoads()
	c := New(Options{Load: l.load})
	defer c.Close()
	ctx, cancel := context.WithCancel(t.Context())
	failed := make(chan error)
	go func() {
		_, _, err := c.Get(ctx, want(key(t, "a")))
		failed <- err
	}()
	<-l.begun
	cancel()
	if err := <-failed; !errors.Is(err, context.Canceled) {
		t.Errorf("got %v", err)
	}
	list := c.Status()
	if len(list) != 1 || list[0].Waiting != 0 || list[0].State != Loading {
		t.Errorf("got %+v, want one loading entry that nobody waits for", list)
	}
	l.go_ <- nil
	get(t, c, key(t, "a")).Release()
	if len(l.started) != 1 {
		t.Errorf("loaded %v", l.started)
	}
}

// A request that is being answered while the cache ends keeps its descriptors, and is the
// one that closes them.
func TestReleaseAfterClose(t *testing.T) {
	l := newLoads()
	c := New(Options{Load: l.load})
	l.go_ <- nil
	h := get(t, c, key(t, "a"))
	c.Close()
	if h.Segment().Pieces[0].Int() < 0 {
		t.Error("closed while it was held")
	}
	h.Release()
	testmain.Eventually(t, "its descriptor is closed", func() bool { return h.Segment().Pieces[0].Int() < 0 })
}

// One key may mean two directories: each has an entry.
func TestTwins(t *testing.T) {
	l := newLoads()
	c := New(Options{Load: l.load})
	defer c.Close()
	k := key(t, "a")
	l.go_ <- nil
	l.go_ <- nil
	for _, dir := range []string{"/models/a", "/models/b", "/models/a", "/models/b"} {
		h, _, err := c.Get(t.Context(), Want{Key: k, Dir: dir})
		if err != nil {
			t.Fatal(err)
		}
		if h.Model() != dir || h.Record().Dir != dir {
			t.Errorf("asked for %s, got %s", dir, h.Model())
		}
		h.Release()
	}
	if len(l.started) != 2 {
		t.Errorf("%d loads", len(l.started))
	}
}

// A number that an engine was told must not come to mean other weights.
func TestNumbersAreNotUsedAgain(t *testing.T) {
	l := newLoads()
	c := New(Options{Load: l.load})
	defer c.Close()
	seen := make(map[int]bool)
	for range 20 {
		l.go_ <- nil
		h := get(t, c, key(t, "a"))
		if n := h.Segment().Pieces[0].Int(); seen[n] || n < firstNumber {
			t.Fatalf("descriptor %d after %v", n, seen)
		} else {
			seen[n] = true
		}
		h.Release()
		if err := c.Evict(h.ID(), false); err != nil {
			t.Fatal(err)
		}
	}
}

func TestMemory(t *testing.T) {
	l := newLoads()
	c := New(Options{Load: l.load})
	defer c.Close()
	check := func(when string, target, draft int64) {
		t.Helper()
		if got := c.Memory(false); got != target {
			t.Errorf("%s: target %d, want %d", when, got, target)
		}
		if got := c.Memory(true); got != draft {
			t.Errorf("%s: draft %d, want %d", when, got, draft)
		}
	}
	check("empty", 0, 0)
	done := make(chan *Hold)
	go func() { h, _, _ := c.Get(context.Background(), want(key(t, "a"))); done <- h }()
	<-l.begun
	check("while it is filled", segment, 0)
	l.go_ <- nil
	(<-done).Release()
	check("loaded", segment, 0)
	l.bytes = 2 * segment
	l.go_ <- nil
	get(t, c, key(t, "b", fingerprint.Field{Name: "is_draft", Value: true})).Release()
	check("with a draft", segment, 2*segment)
	l.bytes = 3 * segment
	l.go_ <- nil
	get(t, c, key(t, "c")).Release()
	check("with two targets", 3*segment, 2*segment)
}

func TestNearest(t *testing.T) {
	l := newLoads()
	c := New(Options{Load: l.load})
	defer c.Close()
	rank := func(name string, n int64) fingerprint.Key {
		return key(t, name, fingerprint.Field{Name: "tp_rank", Value: n})
	}
	if _, ok := c.Nearest(rank("a", 0), ""); ok {
		t.Error("something is near to nothing")
	}
	l.go_ <- nil
	l.go_ <- nil
	get(t, c, rank("a", 0)).Release()
	get(t, c, rank("b", 1)).Release()
	near, ok := c.Nearest(rank("b", 2), "")
	if !ok || !near.Key.Equal(rank("b", 1)) || near.Dir != "/models/b" {
		t.Errorf("got %v", near)
	}
	near, ok = c.Nearest(rank("b", 2), "/models/a")
	if !ok || !near.Key.Equal(rank("a", 0)) {
		t.Errorf("got %v", near)
	}
}

func TestCloseEndsLoads(t *testing.T) {
	l := newLoads()
	c := New(Options{Load: l.load})
	failed := make(chan error)
	go func() {
		_, _, err := c.Get(context.Background(), want(key(t, "a")))
		failed <- err
	}()
	<-l.begun
	c.Close()
	if err := <-failed; !errors.Is(err, ErrClosed) {
		t.Errorf("got %v", err)
	}
	if _, _, err := c.Get(t.Context(), want(key(t, "b"))); !errors.Is(err, ErrClosed) {
		t.Errorf("got %v", err)
	}
}

func TestAdoptAndChanged(t *testing.T) {
	l := newLoads()
	var mu sync.Mutex
	var last []string
	var c *Cache
	c = New(Options{Load: l.load, Changed: func() {
		mu.Lock()
		defer mu.Unlock()
		last = nil
		for _, e := range c.Records() {
			last = append(last, fmt.Sprintf("%s %d %s", e.Dir, e.Bytes, strings.Join([]string{e.Table, e.Pieces[0].Name}, " ")))
		}
	}})
	k := key(t, "a")
	record := manifest.Entry{Key: k, Dir: "/models/a", Table: "t-5", Pieces: []manifest.Piece{{Name: "s-5-0", Bytes: segment}}, Bytes: segment}
	for i, want := range []string{"", "adopt entry " + want(k).ID()[:12] + ": closed or there already"} {
		kept, err := contents("/models/a", segment)
		if err != nil {
			t.Fatal(err)
		}
		kept.Record = record
		if err := c.Adopt(kept); want != fmt.Sprint(err) && (want != "" || err != nil) {
			t.Errorf("%d: got %v, want %q", i, err, want)
		}
	}
	h := get(t, c, k)
	if !h.Hit() || h.Model() != "/models/a" || len(l.started) != 0 {
		t.Errorf("got %s, loads %v", h.Model(), l.started)
	}
	h.Release()
	mu.Lock()
	if diff := cmp.Diff([]string{"/models/a 4096 t-5 s-5-0"}, last); diff != "" {
		t.Errorf("told (-want +got):\n%s", diff)
	}
	mu.Unlock()
	c.Close()
	mu.Lock()
	defer mu.Unlock()
	if len(last) != 1 {
		t.Errorf("told at the end that %v is held: the record of what was here is lost", last)
	}
}
