// SPDX-FileCopyrightText: The wcache authors
// SPDX-License-Identifier: MIT

package cache

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/wcache/wcache/internal/fd"
	"github.com/wcache/wcache/internal/testmain"
)

// What has changed on disk is loaded again; an engine that is attached to the old
// weights keeps them until it ends.
func TestStale(t *testing.T) {
	l := newLoads()
	stale := 0
	c := New(Options{Load: l.load, Fresh: changed(&stale)})
	defer c.Close()
	l.go_ <- nil
	old := get(t, c, key(t, "a"))
	number := old.Segment().Pieces[0].Int()
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
	if len(l.started) != 2 || fresh.Segment().Pieces[0].Int() == number {
		t.Errorf("loaded %v into descriptor %d, before it was %d", l.started, fresh.Segment().Pieces[0].Int(), number)
	}
	states := func() []string {
		var out []string
		list := c.Status()
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
		if h.Segment().Pieces[0].Int() == *number {
			return &Stale{Why: "check file: changed"}
		}
		return nil
	}
}

// Files change during a load: neither the first request nor those that came during the load
// get the old weights.
func TestChangedUnderTheLoad(t *testing.T) {
	l := newLoads()
	// The first load's segment, which both waiting requests find stale. The second's
	// descriptor may have its number.
	var first atomic.Pointer[fd.FD]
	c := New(Options{Load: l.load, Fresh: func(_ context.Context, h *Hold) error {
		f := h.Segment().Pieces[0]
		first.CompareAndSwap(nil, f)
		if first.Load() == f {
			return &Stale{Why: "check file: replaced"}
		}
		return nil
	}})
	defer c.Close()
	type answer struct {
		segment *fd.FD
		err     error
	}
	answers := make(chan answer, 2)
	ask := func() {
		h, _, err := c.Get(context.Background(), want(key(t, "a")))
		if err != nil {
			answers <- answer{err: err}
			return
		}
		defer h.Release()
		answers <- answer{segment: h.Segment().Pieces[0]}
	}
	go ask()
	<-l.begun
	go ask()
	testmain.Eventually(t, "the second request waits, too", func() bool { list := c.Status(); return list[0].Waiting == 2 })
	l.go_ <- nil
	<-l.begun
	l.go_ <- nil
	a, b := <-answers, <-answers
	if a.err != nil || b.err != nil || a.segment != b.segment || len(l.started) != 2 {
		t.Errorf("got %+v and %+v after the loads %v, want one second load for both", a, b, l.started)
	}
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

// A load whose files moved under it ends the request that began it, and not those that
// came while it ran: the files may have been at rest since before that.
func TestMovedBeforeRequest(t *testing.T) {
	l := newLoads()
	c := New(Options{Load: l.load})
	defer c.Close()
	errs := make(chan error, 2)
	ask := func() {
		h, _, err := c.Get(t.Context(), want(key(t, "a")))
		if err == nil {
			h.Release()
		}
		errs <- err
	}
	go ask()
	<-l.begun
	go ask()
	testmain.Eventually(t, "the second request waits, too", func() bool { list := c.Status(); return list[0].Waiting == 2 })
	failure := &Moved{Err: errors.New("load file: it was written")}
	l.go_ <- failure
	if err := <-errs; !errors.Is(err, failure) {
		t.Errorf("the request that began the load got %v", err)
	}
	<-l.begun
	l.go_ <- nil
	if err := <-errs; err != nil || len(l.started) != 2 {
		t.Errorf("the later request got %v after the loads %v", err, l.started)
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
