// SPDX-FileCopyrightText: The wcache authors
// SPDX-License-Identifier: MIT

package daemon

import (
	"fmt"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/wcache/wcache/client"
	"github.com/wcache/wcache/config"
	"github.com/wcache/wcache/control"
	"github.com/wcache/wcache/internal/testmain"
)

// misses words what the instance remembers of requests, the latest first.
func (i *instance) misses(t *testing.T) []string {
	t.Helper()
	reply, err := client.Do(t.Context(), i.control, control.Request{Method: control.MethodMisses}, nil)
	if err != nil {
		t.Fatal(err)
	}
	var list []string
	for _, m := range reply.Misses {
		held := "nothing"
		if m.Held != nil {
			held = filepath.Base(m.Held.Model) + " " + m.Held.Key[:4]
		}
		var dirs []string
		for _, d := range m.Directories {
			dirs = append(dirs, filepath.Base(d))
		}
		list = append(list, fmt.Sprintf("%s %s of %s, held %s, field %q, in %q", m.Role, m.Reason, m.Fingerprint.ID()[:4], held, m.Field, dirs))
	}
	return list
}

// What wasn't in memory is remembered with its reason and what was most like it.
func TestMisses(t *testing.T) {
	t.Parallel()
	i := start(t, nil)
	llama := key(t, "llama-tp1r0")
	other := set(t, llama, "dtype", "torch.float16")
	unknown := set(t, llama, "checkpoint", strings.Repeat("0", 32))
	draft := set(t, llama, "is_draft", true)
	for _, k := range []struct {
		payload []byte
		want    string
	}{
		{getState(t, llama), "ok"},
		{getState(t, llama), "ok"}, // a hit, which is no news
		{getState(t, key(t, "qwen2-tp1r0")), "ok"},
		{getState(t, key(t, "llama-tp2r1")), "ok"},
		{getState(t, other), "ok"},
		{getState(t, unknown), "mismatch: checkpoint; …"},
		{getState(t, draft), "mismatch: is_draft"},
	} {
		wantAnswer(t, engineAsk(t, i.target, k.payload), k.want)
	}
	short := other.ID()[:4]
	want := []string{
		"target refused of " + draft.ID()[:4] + `, held nothing, field "is_draft", in ["llama"]`,
		"target refused of " + unknown.ID()[:4] + `, held llama 28dd, field "checkpoint", in []`,
		"target options of " + short + `, held llama 28dd, field "", in ["llama"]`,
		`target options of 3cef, held llama 28dd, field "", in ["llama"]`, // tp_size, too
		`target new of 94f7, held nothing, field "", in ["qwen2"]`,
		`target new of 28dd, held nothing, field "", in ["llama"]`,
	}
	if diff := cmp.Diff(want, i.misses(t)); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
	got := i.status(t).Counts
	if got.LoadedBytes == 0 || got.LoadSeconds == 0 {
		t.Errorf("counts are %+v", got)
	}
	got.LoadedBytes, got.LoadSeconds = 0, 0
	counts := control.Counts{Hits: 1, Loads: 4, Refused: 2, Misses: map[string]int64{
		control.MissNew: 2, control.MissOptions: 2, control.MissRefused: 2, control.MissChanged: 0, control.MissLoading: 0, control.MissFailed: 0,
	}}
	if diff := cmp.Diff(counts, got); diff != "" {
		t.Errorf("counts: -want +got:\n%s", diff)
	}
}

// A file that has changed is a reason of its own, and is said.
func TestMissChanged(t *testing.T) {
	t.Parallel()
	root := t.TempDir()
	dir := model(t, root, "llama", "m")
	i := start(t, on(root))
	k := key(t, "llama-tp1r0")
	wantAnswer(t, engineAsk(t, i.target, getState(t, k)), "ok")
	rewrite(t, filepath.Join(dir, "model-00001-of-00004.safetensors"))
	wantAnswer(t, engineAsk(t, i.target, getState(t, k)), "ok")
	reply, err := client.Do(t.Context(), i.control, control.Request{Method: control.MethodMisses}, nil)
	if err != nil {
		t.Fatal(err)
	}
	if m := reply.Misses[0]; m.Reason != control.MissChanged || !strings.Contains(m.Message, "model-00001-of-00004.safetensors") || m.Held != nil {
		t.Errorf("got %+v", m)
	}
}

// Of the requests that wait for one load, one counts as its cause; a passing error isn't counted
// as a refusal.
func TestMissLoading(t *testing.T) {
	t.Parallel()
	g := newGate(t)
	i := start(t, atGate(g))
	k := key(t, "llama-tp1r0")
	first := later(t, i.target, getState(t, k))
	open := g.arrived(t)
	second := later(t, i.target, getState(t, k))
	testmain.Eventually(t, "both wait", func() bool { e := i.entry(t, k); return e != nil && e.Waiting == 2 })
	open()
	if a, b := <-first, <-second; a != "ok" || b != "ok" {
		t.Fatal(a, b)
	}
	if err := i.configure(func(c *config.Config) { c.Budget = 1000 }, nil); err != nil {
		t.Fatal(err)
	}
	if got := answer(engineAsk(t, i.target, getState(t, key(t, "qwen2-tp1r0")))); !strings.HasPrefix(got, "error: make room") {
		t.Error(got)
	}
	want := map[string]int64{
		control.MissNew: 1, control.MissLoading: 1, control.MissFailed: 1, control.MissOptions: 0, control.MissRefused: 0, control.MissChanged: 0,
	}
	if diff := cmp.Diff(want, i.status(t).Counts.Misses); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
}

// The ledger remembers maxRecorded misses at most.
func TestMissesBounded(t *testing.T) {
	t.Parallel()
	l := newLedger()
	for n := range 2 * maxRecorded {
		l.remember(control.Miss{PID: n})
	}
	if list := l.list(); len(list) != maxRecorded || list[0].PID != 2*maxRecorded-1 {
		t.Errorf("%d are kept, the first of %d", len(list), list[0].PID)
	}
}
