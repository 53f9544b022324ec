// SPDX-FileCopyrightText: The wcache authors
// SPDX-License-Identifier: MIT

package cache

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

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
		Segments: []int64{bytes}, Storages: []tensor.Storage{{Bytes: bytes}},
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
	return &Contents{Table: table, TableFD: tableFD, Segments: []device.Segment{{FD: f, Bytes: bytes}}, Record: manifest.Entry{Dir: dir}}, nil
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
	c := New(Options{Load: l.load})
	defer c.Close()
	broken := errors.New("no such luck")
	l.go_ <- broken
	if _, _, err := c.Get(t.Context(), want(key(t, "a"))); !errors.Is(err, broken) {
		t.Errorf("got %v, want %v", err, broken)
	}
	if !c.Empty() {
		t.Error("an entry is left of a load that failed")
	}
	l.go_ <- nil
	get(t, c, key(t, "a")).Release()
	if _, stats := c.Status(); stats != (Stats{Loads: 1, Failed: 1}) {
		t.Errorf("counted %+v", stats)
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
	list, _ := c.Status()
	if len(list) != 1 || list[0].Waiting != 0 || list[0].State != Loading {
		t.Errorf("got %+v, want one loading entry that nobody waits for", list)
	}
	if a, b := c.Holds(want(key(t, "a"))), c.Holds(want(key(t, "b"))); !a || b {
		t.Errorf("holds %v and %v, want the load and nothing else", a, b)
	}
	l.go_ <- nil
	get(t, c, key(t, "a")).Release()
	if len(l.started) != 1 {
		t.Errorf("loaded %v", l.started)
	}
}

// What has changed on disk is loaded again; an engine that is attached to the old
// weights keeps them until it ends.
func TestStale(t *testing.T) {
	l := newLoads()
	stale := 0
	c := New(Options{Load: l.load, Fresh: changed(&stale)})
	defer c.Close()
	l.go_ <- nil
	old := get(t, c, key(t, "a"))
	number := old.Segments()[0].FD.Int()
	old.Attach(Engine{PID: 7, Name: "vllm"})
	old.Release()
	stale = number
	l.go_ <- nil
	fresh, out, err := c.Get(t.Context(), want(key(t, "a")))
	if err != nil {
		t.Fatal(err)
	}
	defer fresh.Release()
	if diff := cmp.Diff(Outcome{Before: Ready, Stale: "check file: changed"}, out); diff != "" {
		t.Errorf("outcome (-want +got):\n%s", diff)
	}
	if len(l.started) != 2 || fresh.Segments()[0].FD.Int() == number {
		t.Errorf("loaded %v into descriptor %d, before it was %d", l.started, fresh.Segments()[0].FD.Int(), number)
	}
	states := func() []string {
		var out []string
		list, _ := c.Status()
		for _, s := range list {
			out = append(out, fmt.Sprintf("%s %s %d", s.State, s.Reason, len(s.Engines)))
		}
		slices.Sort(out)
		return out
	}
	if diff := cmp.Diff([]string{"leaving check file: changed 1", "ready  0"}, states()); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
	c.Detach(7)
	if diff := cmp.Diff([]string{"ready  0"}, states()); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
}

// changed is an Options.Fresh to which the entry of one descriptor is stale.
func changed(number *int) func(context.Context, *Hold) error {
	return func(_ context.Context, h *Hold) error {
		if h.Segments()[0].FD.Int() == *number {
			return &Stale{Why: "check file: changed"}
		}
		return nil
	}
}

// A directory whose files change under the load: what was asked for in the meantime is
// not answered with the old ones, and who asked first neither.
func TestChangedUnderTheLoad(t *testing.T) {
	l := newLoads()
	var first atomic.Int64 // the first load's descriptor, which both who waited find stale
	c := New(Options{Load: l.load, Fresh: func(_ context.Context, h *Hold) error {
		number := int64(h.Segments()[0].FD.Int())
		first.CompareAndSwap(0, number)
		if first.Load() == number {
			return &Stale{Why: "check file: replaced"}
		}
		return nil
	}})
	defer c.Close()
	type answer struct {
		before State
		number int
		err    error
	}
	answers := make(chan answer, 2)
	ask := func() {
		h, out, err := c.Get(context.Background(), want(key(t, "a")))
		if err != nil {
			answers <- answer{err: err}
			return
		}
		defer h.Release()
		answers <- answer{before: out.Before, number: h.Segments()[0].FD.Int()}
	}
	go ask()
	<-l.begun
	go ask()
	testmain.Eventually(t, "the second request waits, too", func() bool { list, _ := c.Status(); return list[0].Waiting == 2 })
	l.go_ <- nil
	<-l.begun
	l.go_ <- nil
	a, b := <-answers, <-answers
	if a.err != nil || b.err != nil || a.number != b.number || len(l.started) != 2 {
		t.Errorf("got %+v and %+v after the loads %v, want one second load for both", a, b, l.started)
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
	if h.Segments()[0].FD.Int() < 0 {
		t.Error("closed while it was held")
	}
	h.Release()
	testmain.Eventually(t, "its descriptor is closed", func() bool { return h.Segments()[0].FD.Int() < 0 })
}

// Files that never come to rest end a request, and do no harm to the next.
func TestAlwaysChanging(t *testing.T) {
	l := newLoads()
	c := New(Options{Load: l.load, Fresh: func(context.Context, *Hold) error { return &Stale{Why: "check file: written"} }})
	defer c.Close()
	for range maxTries {
		l.go_ <- nil
	}
	_, out, err := c.Get(t.Context(), want(key(t, "a")))
	var stale *Stale
	if !errors.As(err, &stale) || len(l.started) != maxTries || out.Stale != "" {
		t.Errorf("got %v and %+v after %d loads", err, out, len(l.started))
	}
}

// What can't be told now is an error, and costs no entry.
func TestUntold(t *testing.T) {
	l := newLoads()
	var untold error
	c := New(Options{Load: l.load, Fresh: func(context.Context, *Hold) error { return untold }})
	defer c.Close()
	l.go_ <- nil
	get(t, c, key(t, "a")).Release()
	untold = errors.New("the file system does not answer")
	if _, _, err := c.Get(t.Context(), want(key(t, "a"))); !errors.Is(err, untold) {
		t.Errorf("got %v", err)
	}
	untold = nil
	h := get(t, c, key(t, "a"))
	defer h.Release()
	if !h.Hit() || len(l.started) != 1 {
		t.Errorf("loaded %v", l.started)
	}
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

func TestBudget(t *testing.T) {
	l := newLoads()
	l.pin = "pinned"
	clock := time.Unix(1000, 0)
	c := New(Options{Load: l.load, Budget: 3 * segment, Now: func() time.Time { clock = clock.Add(time.Second); return clock }})
	defer c.Close()
	held := func() []string {
		var out []string
		list, _ := c.Status()
		for _, s := range list {
			out = append(out, s.Model)
		}
		return out
	}
	for range 16 {
		l.go_ <- nil
	}
	get(t, c, key(t, "pinned")).Release()
	get(t, c, key(t, "b")).Release()
	get(t, c, key(t, "c")).Release()
	get(t, c, key(t, "b")).Release() // now c is the oldest
	get(t, c, key(t, "d")).Release()
	if diff := cmp.Diff([]string{"/models/pinned", "/models/b", "/models/d"}, held()); diff != "" {
		t.Errorf("held (-want +got):\n%s", diff)
	}
	h := get(t, c, key(t, "b"))
	h.Attach(Engine{PID: 5, Name: "vllm"})
	h.Release()
	get(t, c, key(t, "e")).Release() // d goes, b is attached
	h = get(t, c, key(t, "e"))
	defer h.Release()
	_, _, err := c.Get(t.Context(), want(key(t, "f")))
	var full *NoRoom
	if !errors.As(err, &full) {
		t.Fatalf("got %v, want a *NoRoom", err)
	}
	id := func(n string) string { return key(t, n).ID()[:12] }
	want := "make room: the model takes 4096 bytes and the budget is 12288; held are 4096 bytes of /models/pinned (" + id("pinned") +
		", pinned), 4096 bytes of /models/b (" + id("b") + ", vllm pid 5), 4096 bytes of /models/e (" + id("e") + ")"
	if err.Error() != want {
		t.Errorf("got  %s\nwant %s", err, want)
	}
	c.SetBudget(0)
	get(t, c, key(t, "f")).Release()
}

func TestFree(t *testing.T) {
	l := newLoads()
	c := New(Options{Load: l.load})
	defer c.Close()
	l.go_ <- nil
	l.go_ <- nil
	get(t, c, key(t, "a")).Release()
	get(t, c, key(t, "b")).Release()
	ticket := &Ticket{cache: c, entry: &Entry{}}
	if got := ticket.Free(t.Context(), 3*segment); got != 0 {
		t.Errorf("freed %d bytes although that isn't enough", got)
	}
	if got := ticket.Free(t.Context(), segment+1); got != 2*segment {
		t.Errorf("freed %d bytes", got)
	}
	if !c.Empty() {
		t.Error("something is left")
	}
}

func TestEvict(t *testing.T) {
	l := newLoads()
	c := New(Options{Load: l.load})
	defer c.Close()
	k := key(t, "a")
	var none *NoEntry
	if err := c.Evict(want(k).ID(), false); !errors.As(err, &none) {
		t.Errorf("got %v, want a *NoEntry", err)
	}
	l.go_ <- nil
	h := get(t, c, k)
	h.Attach(Engine{PID: 5, Name: "vllm"})
	h.Release()
	var used *InUse
	if err := c.Evict(want(k).ID(), false); !errors.As(err, &used) || used.Engines[0].PID != 5 {
		t.Errorf("got %v, want an *InUse that names the engine", err)
	}
	if err := c.Evict(want(k).ID(), true); err != nil {
		t.Error(err)
	}
	if !c.Empty() {
		t.Error("evicted by force, and still there")
	}
}

// A device that has lost what it held takes all entries along, whoever has them; one
// that is being loaded or handed out is not closed under anybody's hands.
func TestDrop(t *testing.T) {
	l := newLoads()
	c := New(Options{Load: l.load})
	defer c.Close()
	l.go_ <- nil
	used := get(t, c, key(t, "a"))
	used.Attach(Engine{PID: 1, Name: "engine"})
	used.Release()
	l.go_ <- nil
	h := get(t, c, key(t, "b"))
	h.Attach(Engine{PID: 2, Name: "engine"})
	if n := c.Drop("the GPU is lost"); n != 2 {
		t.Errorf("%d entries were dropped", n)
	}
	if h.Segments()[0].FD.Int() < 0 {
		t.Error("closed while it is handed out")
	}
	list, _ := c.Status()
	if len(list) != 1 || list[0].State != Leaving || list[0].Reason != "the GPU is lost" {
		t.Errorf("left are %+v", list)
	}
	h.Release()
	if !c.Empty() {
		t.Error("something is left")
	}
}

// Not before its answer is out does an entry's descriptor close, force or not.
func TestEvictWhileAnswering(t *testing.T) {
	l := newLoads()
	c := New(Options{Load: l.load})
	defer c.Close()
	l.go_ <- nil
	h := get(t, c, key(t, "a"))
	if err := c.Evict(h.ID(), true); err != nil {
		t.Error(err)
	}
	if h.Segments()[0].FD.Int() < 0 {
		t.Error("closed while it was held")
	}
	h.Release()
	h.Release()
	c.Settle(t.Context())
	if h.Segments()[0].FD.Int() >= 0 || !c.Empty() {
		t.Error("not closed when it was released")
	}
}

func TestRelease(t *testing.T) {
	l := newLoads()
	l.pin = "pinned"
	c := New(Options{Load: l.load})
	defer c.Close()
	for range 3 {
		l.go_ <- nil
	}
	attach := func(name string, pids ...int) {
		h := get(t, c, key(t, name))
		defer h.Release()
		for _, pid := range pids {
			h.Attach(Engine{PID: pid})
		}
	}
	attach("a", 1, 2)
	attach("pinned", 3)
	var got []int
	for _, pid := range []int{9, 1, 1, 2, 3} { // a stranger, one of two, again, the last, a pinned one's
		got = append(got, c.Release(pid, true), c.Release(pid, false))
	}
	if diff := cmp.Diff([]int{0, 0, 0, 0, 0, 0, 0, 1, 0, 0}, got); diff != "" {
		t.Errorf("freed (-want +got):\n%s", diff)
	}
	attach("a", 4) // loads again instead of saying for ever that it was released
	if diff := cmp.Diff([]string{"a", "pinned", "a"}, l.started); diff != "" {
		t.Errorf("loads (-want +got):\n%s", diff)
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
		if n := h.Segments()[0].FD.Int(); seen[n] || n < firstNumber {
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
			last = append(last, fmt.Sprintf("%s %d %s", e.Dir, e.Bytes, strings.Join([]string{e.Table, e.Segments[0].Name}, " ")))
		}
	}})
	k := key(t, "a")
	record := manifest.Entry{Key: k, Dir: "/models/a", Table: "t-5", Segments: []manifest.Segment{{Name: "s-5-0", Bytes: segment}}, Bytes: segment}
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

// shelf is a store in memory that keeps duplicates.
type shelf struct {
	mu   sync.Mutex
	has  map[string]*fd.FD
	full error
}

func (s *shelf) Room(int) error { return s.full }

func (s *shelf) Put(name string, f *fd.FD) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.has[name] != nil {
		return fmt.Errorf("%s is there twice", name)
	}
	d, err := f.Dup()
	s.has[name] = d
	return err
}

func (s *shelf) Remove(name string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	f := s.has[name]
	delete(s.has, name)
	if f == nil {
		return fmt.Errorf("%s isn't there", name)
	}
	return f.Close()
}

// What is served is in the store with its record, what isn't any more is not, and the
// end of the process leaves it all there for the next.
func TestStore(t *testing.T) {
	l := newLoads()
	s := &shelf{has: make(map[string]*fd.FD)}
	stale := 0
	c := New(Options{Load: l.load, Store: s, Fresh: changed(&stale)})
	k := key(t, "a")
	check := func(when string) []string {
		t.Helper()
		c.Settle(t.Context())
		s.mu.Lock()
		defer s.mu.Unlock()
		records := c.Records()
		if len(records) != 1 {
			t.Fatalf("%s: %d records", when, len(records))
		}
		r := records[0]
		want := []string{r.Segments[0].Name, r.Table}
		if diff := cmp.Diff(want, slices.Sorted(maps.Keys(s.has))); diff != "" {
			t.Errorf("%s (-want +got):\n%s", when, diff)
		}
		b, err := s.has[r.Table].ReadSealed(1 << 20)
		if err != nil {
			t.Fatal(err)
		}
		label, table, err := manifest.DecodeLabel(b)
		if err != nil {
			t.Fatal(err)
		}
		r.Engines, r.Used = nil, r.Loaded // came after the load
		if diff := cmp.Diff(r, label, cmpopts.IgnoreFields(manifest.Entry{}, "Fields"), cmpopts.EquateEmpty()); diff != "" {
			t.Errorf("%s: label (-want +got):\n%s", when, diff)
		}
		if _, err := tensor.Decode(table); err != nil {
			t.Error(err)
		}
		return want
	}
	l.go_ <- nil
	h := get(t, c, k)
	h.Attach(Engine{PID: 5})
	h.Release()
	first := check("loaded")
	stale = h.Segments()[0].FD.Int()
	l.go_ <- nil
	get(t, c, k).Release()
	second := check("loaded again")
	if first[0] == second[0] || first[1] == second[1] {
		t.Errorf("names are used twice: %v and %v", first, second)
	}
	c.Detach(5) // the old entry goes, and leaves the new one's names alone
	check("detached")
	c.Close()
	if diff := cmp.Diff(second, slices.Sorted(maps.Keys(s.has))); diff != "" {
		t.Errorf("closed (-want +got):\n%s", diff)
	}
	s.full = errors.New("no room in the store")
	c = New(Options{Load: l.load, Store: s})
	defer c.Close()
	if _, _, err := c.Get(t.Context(), want(key(t, "b"))); !errors.Is(err, s.full) {
		t.Errorf("got %v, want it said before the load", err)
	}
	for _, n := range second {
		if err := s.Remove(n); err != nil {
			t.Error(err)
		}
	}
}

// What the store doesn't take is served, and tried again until the store has it.
func TestStoreTakesItLater(t *testing.T) {
	l := newLoads()
	s := &lateStore{shelf: shelf{has: make(map[string]*fd.FD)}}
	s.set(errors.New("the manager is away"))
	c := New(Options{Load: l.load, Store: s})
	c.keepAgain = time.Millisecond
	l.go_ <- nil
	get(t, c, key(t, "a")).Release()
	notKept := func() string { list, _ := c.Status(); return list[0].NotKept }
	if got := notKept(); got != "the manager is away" {
		t.Errorf("not kept because of %q", got)
	}
	s.set(nil)
	testmain.Eventually(t, "the store has it", func() bool { return notKept() == "" })
	r := c.Records()[0]
	c.Close()
	for _, name := range []string{r.Table, r.Segments[0].Name} {
		if err := s.Remove(name); err != nil {
			t.Error(err)
		}
	}
}

// lateStore is a shelf that takes nothing while it has an error.
type lateStore struct {
	shelf
	err error
}

func (s *lateStore) set(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.err = err
}

func (s *lateStore) Put(name string, f *fd.FD) error {
	s.mu.Lock()
	err := s.err
	s.mu.Unlock()
	if err != nil {
		return err
	}
	return s.shelf.Put(name, f)
}

// A service manager that takes nothing for a while holds up a load's answer for a
// moment and no longer. What has left by the time it takes it is taken out again.
func TestStoreTakesNothing(t *testing.T) {
	l := newLoads()
	s := &hangingPut{shelf: shelf{has: make(map[string]*fd.FD)}, hang: make(chan struct{})}
	c := New(Options{Load: l.load, Store: s})
	defer c.Close()
	c.keepWait = time.Millisecond
	l.go_ <- nil
	h := get(t, c, key(t, "a"))
	h.Release()
	list, _ := c.Status()
	if got := list[0].NotKept; got != errNotYet.Error() {
		t.Errorf("not kept because of %q", got)
	}
	if err := c.Evict(h.ID(), false); err != nil {
		t.Fatal(err)
	}
	close(s.hang)
	c.Settle(t.Context())
	if len(s.has) != 0 {
		t.Errorf("left in the store are %v", s.has)
	}
}

type hangingPut struct {
	shelf
	hang chan struct{}
}

func (s *hangingPut) Put(name string, f *fd.FD) error {
	<-s.hang
	return s.shelf.Put(name, f)
}

// A service manager that hangs keeps nobody waiting but those who want the memory.
func TestStoreHangs(t *testing.T) {
	l := newLoads()
	hang := make(chan struct{})
	s := &hangingStore{hang: hang}
	c := New(Options{Load: l.load, Store: s})
	defer c.Close()
	l.go_ <- nil
	l.go_ <- nil
	get(t, c, key(t, "a")).Release()
	get(t, c, key(t, "b")).Release()
	if err := c.Evict(want(key(t, "a")).ID(), false); err != nil {
		t.Fatal(err)
	}
	h := get(t, c, key(t, "b")) // while the manager is told of a
	h.Release()
	if !h.Hit() {
		t.Error("loaded again")
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	c.Settle(ctx)
	close(hang)
	c.Settle(t.Context())
	if diff := cmp.Diff(2, s.removed); diff != "" {
		t.Errorf("names that were removed (-want +got):\n%s", diff)
	}
}

type hangingStore struct {
	noStore
	hang    chan struct{}
	removed int
}

func (s *hangingStore) Remove(string) error {
	<-s.hang
	s.removed++
	return nil
}
