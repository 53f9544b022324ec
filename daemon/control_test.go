// SPDX-FileCopyrightText: The wcache authors
// SPDX-License-Identifier: MIT

package daemon

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/wcache/wcache/client"
	"github.com/wcache/wcache/control"
)

// evicting is what an eviction frees, and its error in words.
func (i *instance) evicting(t *testing.T, e control.Evict) string {
	t.Helper()
	reply, err := client.Do(t.Context(), i.control, control.Request{Method: control.MethodEvict, Evict: &e}, nil)
	var no *control.Error
	if err != nil && !errors.As(err, &no) {
		t.Fatal(err)
	}
	text := ""
	for _, id := range reply.Evicted {
		text += id[:4] + " "
	}
	if no != nil {
		text += fmt.Sprintf("%s: %s (%s)", no.Code, no.Message, no.Hint)
	}
	return strings.TrimSpace(text)
}

func TestEvict(t *testing.T) {
	t.Parallel()
	g := newGate(t)
	i := start(t, nil)
	j := start(t, atGate(g)) // whose entry is being loaded
	got := later(t, j.target, getState(t, key(t, "llama-tp1r0")))
	open := g.arrived(t)

	engine := startProcess(t, "engine", i.target)
	for _, name := range []string{"llama-tp1r0", "llama-tp2r1"} { // 28dd…, 3cef…
		engine.send(t, getState(t, key(t, name)))
		if got := engine.line(t); got != "ok" {
			t.Fatal(got)
		}
	}
	do(t, sendRelease(t, i.target)) // of a process that has none
	if _, err := client.Do(t.Context(), i.control, control.Request{Method: control.MethodWarm, Warm: &control.Warm{Model: i.config.Roots[2]}}, nil); err != nil {
		t.Fatal(err)
	}
	const hint = "end the engines, or evict with --force: they keep what they have mapped"
	pid := strconv.Itoa(engine.Process.Pid)
	tests := []struct {
		i     *instance
		evict control.Evict
		want  string
	}{
		{i, control.Evict{Key: "ffff"}, `no-such-key: find entry: no key "ffff" is held (wcache status lists the keys)`},
		{i, control.Evict{Key: "28dd"}, "in-use: evict entry 28dd04106153: it may still be mapped by exe (pid " + pid + ") (" + hint + ")"},
		{i, control.Evict{}, "94f7 in-use: 2 entries are left, the first: evict entry 28dd04106153: it may still be mapped by exe (pid " + pid + ") (" + hint + ")"},
		{i, control.Evict{Key: "3cef0442b61e", Force: true}, "3cef"},
		{i, control.Evict{Key: "3cef0442b61e", Force: true}, `no-such-key: find entry: no key "3cef0442b61e" is held (wcache status lists the keys)`},
		{i, control.Evict{Force: true}, "28dd"},
		{i, control.Evict{}, ""},
		{j, control.Evict{Key: "28dd", Force: true}, "in-use: evict entry 28dd04106153: it is being loaded (evict it when it is loaded)"},
		{j, control.Evict{}, "in-use: evict entry 28dd04106153: it is being loaded (evict it when it is loaded)"},
	}
	for _, tt := range tests {
		if diff := cmp.Diff(tt.want, tt.i.evicting(t, tt.evict)); diff != "" {
			t.Errorf("%+v: -want +got:\n%s", tt.evict, diff)
		}
	}
	open()
	if got := <-got; got != "ok" {
		t.Error(got)
	}
}

// What is warmed at a revision is what an engine asks for that is started with it.
func TestWarmRevision(t *testing.T) {
	t.Parallel()
	hub := private(t)
	hubModel(t, hub, "llama_tied", "")
	i := start(t, func(s *setup) {
		s.Env = func(name string) string { return map[string]string{"HF_HUB_CACHE": hub}[name] }
	})
	for _, name := range []string{"", "main", revision} {
		reply, err := client.Do(t.Context(), i.control, control.Request{Method: control.MethodWarm, Warm: &control.Warm{Model: "a/llama_tied", Revision: name}}, nil)
		do(t, err)
		if got := reply.Entry.Fingerprint.Str("revision"); got != name {
			t.Errorf("warmed at revision %q has %q in its key", name, got)
		}
	}
}
