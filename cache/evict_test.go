// SPDX-FileCopyrightText: The wcache authors
// SPDX-License-Identifier: MIT

package cache

import (
	"errors"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

func TestBudget(t *testing.T) {
	l := newLoads()
	l.pin = "pinned"
	clock := time.Unix(1000, 0)
	c := New(Options{Load: l.load, Budget: 3 * segment, Now: func() time.Time { clock = clock.Add(time.Second); return clock }})
	defer c.Close()
	held := func() []string {
		var out []string
		list := c.Status()
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

// When a device has lost its memory, Drop drops all entries, also those in use; an entry that
// is being loaded or handed out stays open until that ends.
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
	if h.Segment().Pieces[0].Int() < 0 {
		t.Error("closed while it is handed out")
	}
	list := c.Status()
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
	if h.Segment().Pieces[0].Int() < 0 {
		t.Error("closed while it was held")
	}
	h.Release()
	h.Release()
	c.Settle(t.Context())
	if h.Segment().Pieces[0].Int() >= 0 || !c.Empty() {
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
