// SPDX-FileCopyrightText: The wcache authors
// SPDX-License-Identifier: MIT

package daemon

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"golang.org/x/sys/unix"

	"github.com/wcache/wcache/cache"
	"github.com/wcache/wcache/client"
	"github.com/wcache/wcache/control"
	"github.com/wcache/wcache/internal/testmain"
)

// What goes wrong in the middle: a file that changes, a child that is killed, a client
// that goes.
func TestVerifyInterrupted(t *testing.T) {
	g := newGate(t)
	i := start(t, func(s *setup) {
		atGate(g)(s)
		unhurried(s)
	})
	dir := model(t, private(t), "qwen2", "m")
	loaded := make(chan control.Entry, 1)
	go func() { loaded <- warmed(t, i, control.Warm{Model: dir}) }()
	g.arrived(t)()
	e := <-loaded
	type result struct {
		list []control.Verified
		err  error
	}
	begin := func(ctx context.Context) chan result {
		done := make(chan result, 1)
		go func() {
			list, err := verified(ctx, i)
			done <- result{list, err}
		}()
		return done
	}
	done := begin(t.Context())
	open := g.arrived(t)
	rewrite(t, filepath.Join(dir, "model.safetensors"))
	open()
	r := <-done
	do(t, r.err)
	want := control.Verified{Key: e.Key, Model: dir, State: control.StateChanged, Bytes: 210080, Hint: "the next request for it loads it again",
		Message: fmt.Sprintf("verify memory: check file %q: was written", filepath.Join(dir, "model.safetensors"))}
	if diff := cmp.Diff([]control.Verified{want}, r.list, cmpopts.IgnoreFields(control.Verified{}, "Seconds", "Fingerprint"), cmpopts.EquateEmpty()); diff != "" {
		t.Errorf("a file that changes (-want +got):\n%s", diff)
	}
	rewrite(t, filepath.Join(dir, "model.safetensors"))
	h, err := i.cache.Hold(i.held(t).ID)
	do(t, err)
	h.Renew(restamped(t, h.Record()))
	h.Release()

	done = begin(t.Context())
	child, _ := g.loader(t)
	do(t, unix.Kill(child, unix.SIGKILL))
	r = <-done
	do(t, r.err)
	want.State, want.Message, want.Hint = control.StateFailed, "verify memory: the loader ended early: signal: killed", "see the service's log, and on a GPU nvidia-smi"
	if diff := cmp.Diff([]control.Verified{want}, r.list, cmpopts.IgnoreFields(control.Verified{}, "Seconds", "Fingerprint"), cmpopts.EquateEmpty()); diff != "" {
		t.Errorf("a child that is killed (-want +got):\n%s", diff)
	}

	ctx, cancel := context.WithCancel(t.Context())
	done = begin(ctx)
	g.arrived(t)
	if got, want := i.cache.Evict(i.held(t).ID, false), (&cache.InUse{}); !errors.As(got, &want) {
		t.Errorf("evicted meanwhile: %v", got)
	}
	cancel()
	if r := <-done; r.err == nil {
		t.Error("a client that went got an answer")
	}
	testmain.Eventually(t, "it is let go", func() bool { return i.cache.Evict(i.held(t).ID, false) == nil })
}

// What is to be verified can be named in several ways, and wrongly.
func TestVerifyTargets(t *testing.T) {
	t.Parallel()
	i := start(t, func(s *setup) {
		unhurried(s)
		s.Env = func(name string) string { return map[string]string{"HF_HUB_CACHE": s.Manifest + ".hub"}[name] }
	})
	snapshot, _ := hubModel(t, i.o.Env("HF_HUB_CACHE"), "llama_tied", "")
	a := warmed(t, i, control.Warm{Model: "a/llama_tied"})
	b := warmed(t, i, control.Warm{Model: snapshot, TPSize: 2})
	plain := model(t, private(t), "qwen2", "q")
	c := warmed(t, i, control.Warm{Model: plain})
	link := plain + ".link"
	do(t, os.Symlink(plain, link))
	for _, tt := range []struct {
		targets []string
		want    []string // keys, or an error
	}{
		{nil, []string{a.Key, b.Key, c.Key}},
		{[]string{"a/llama_tied"}, []string{a.Key, b.Key}},
		{[]string{plain, a.Key[:12]}, []string{a.Key, c.Key}},
		{[]string{link, plain}, []string{c.Key}},
		{[]string{""}, []string{`no-such-key find entry: no key "" is held`}},
		{[]string{"0"}, []string{`no-such-key find entry: no key "0" is held`}},
		{[]string{a.Key, filepath.Dir(plain)}, []string{fmt.Sprintf("no-such-key find entry: no entry of model %q", filepath.Dir(plain))}},
		{[]string{"/none"}, []string{`failed find model "/none": no such directory; tried ["/none"]`}},
	} {
		var got []string
		list, err := verified(t.Context(), i, tt.targets...)
		for _, v := range list {
			got = append(got, v.Key)
		}
		var no *control.Error
		if errors.As(err, &no) {
			got = []string{no.Code + " " + no.Message}
		} else {
			do(t, err)
		}
		if diff := cmp.Diff(tt.want, got); diff != "" {
			t.Errorf("%q (-want +got):\n%s", tt.targets, diff)
		}
	}
	var first string // digit of two keys
	for _, x := range []string{a.Key, b.Key, c.Key} {
		if strings.Count(strings.Join([]string{"", a.Key[:1], b.Key[:1], c.Key[:1]}, " "), " "+x[:1]) > 1 {
			first = x[:1]
		}
	}
	if first == "" {
		return // the keys begin differently
	}
	var no *control.Error
	if _, err := verified(t.Context(), i, first); !errors.As(err, &no) || no.Code != control.CodeUsage {
		t.Errorf("%q: %v", first, err)
	}
}

// What is being loaded can't be verified yet.
func TestVerifyLoading(t *testing.T) {
	g := newGate(t)
	i := start(t, func(s *setup) {
		atGate(g)(s)
		unhurried(s)
	})
	k := key(t, "llama-tp1r0")
	got := later(t, i.target, getState(t, k))
	open := g.arrived(t)
	var no *control.Error
	if _, err := verified(t.Context(), i, k.ID()); !errors.As(err, &no) || no.Code != control.CodeInUse || no.Message != fmt.Sprintf("verify %.12s: it is being loaded", k.ID()) {
		t.Errorf("got %v", err)
	}
	wantVerified(t, i)
	open()
	if got := <-got; got != "ok" {
		t.Error(got)
	}
}

// Each entry says how far the verification of all is.
func TestVerifyProgress(t *testing.T) {
	t.Parallel()
	i := start(t, unhurried)
	dir := model(t, private(t), "qwen2", "m")
	warmed(t, i, control.Warm{Model: dir})
	warmed(t, i, control.Warm{Model: dir, TPSize: 2})
	var seen []control.Progress
	_, err := client.Do(t.Context(), i.control, control.Request{Method: control.MethodVerify, Verify: &control.Verify{}}, func(r control.Reply) {
		seen = append(seen, *r.Progress)
	})
	do(t, err)
	if len(seen) < 4 || !slices.IsSortedFunc(seen, func(a, b control.Progress) int { return int(a.Done - b.Done) }) {
		t.Fatalf("progress %+v, want it to rise", seen)
	}
	if last := seen[len(seen)-1]; last.Done != last.Total || last.Total < 300_000 {
		t.Errorf("it ends with %+v", last)
	}
}

// A layout that its files don't give any more is not compared.
func TestVerifyOtherLayout(t *testing.T) {
	t.Parallel()
	i := start(t, unhurried)
	dir := model(t, private(t), "qwen2", "m")
	warmed(t, i, control.Warm{Model: dir})
	h, err := i.cache.Hold(i.held(t).ID)
	do(t, err)
	defer h.Release()
	other := *h.Table()
	other.Tensors = slices.Clone(other.Tensors)
	other.Tensors[0].Name = "renamed"
	if sameLayout(&other, h.Table()) {
		t.Error("another name is the same layout")
	}
	other = *h.Table()
	other.Segment = 210080
	if !sameLayout(&other, h.Table()) {
		t.Error("what a device has rounded up is another layout")
	}
}
