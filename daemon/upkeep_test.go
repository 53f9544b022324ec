// SPDX-FileCopyrightText: The wcache authors
// SPDX-License-Identifier: MIT

package daemon

import (
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/wcache/wcache/config"
	"github.com/wcache/wcache/internal/testmain"
)

// Pins are loaded at the start: as they were held before, else as an engine without
// options asks for them. One that can't be loaded stops nothing.
func TestPreload(t *testing.T) {
	pin, err := filepath.Abs(filepath.Join(checkpoints, "llama"))
	do(t, err)
	other, err := filepath.Abs(filepath.Join(checkpoints, "qwen2"))
	do(t, err)
	bad := filepath.Join(private(t), "bad")
	model(t, filepath.Dir(bad), "gpt2", "bad")
	preload := func(c *config.Config) { c.Preload, c.Pins = true, []string{bad, pin, other} }
	held := func(i *instance) []string {
		var list []string
		for _, e := range i.status(t).Entries {
			if e.State == "ready" {
				list = append(list, filepath.Base(e.Model)+" "+e.Fingerprint.Str("dtype")+" "+e.Sure)
			}
		}
		slices.Sort(list)
		return list
	}
	store := newFDStore(t)
	first := start(t, func(s *setup) { s.Store = store; preload(&s.Config) })
	testmain.Eventually(t, "the pins are loaded", func() bool { return len(held(first)) == 2 })
	if diff := cmp.Diff([]string{"llama torch.bfloat16 name", "qwen2 torch.bfloat16 name"}, held(first)); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
	testmain.Eventually(t, "the third is in the log", func() bool { return strings.Contains(first.log.String(), `msg="pin is not loaded" model=`+bad) })
	wantAnswer(t, engineAsk(t, first.target, getState(t, key(t, "llama-tp2r1"))), "ok")
	do(t, first.stop())

	// After a stop of the service, which frees all: also the rank that an engine had.
	second := restart(t, first, newFDStore(t))
	testmain.Eventually(t, "what was held is loaded again", func() bool { return len(held(second)) == 3 })
	if e := second.entry(t, key(t, "llama-tp2r1")); e == nil || e.State != "ready" {
		t.Errorf("the second rank is %+v", e)
	}
}

// Entries that were not used for long are evicted; pinned and used ones stay.
func TestIdleEvict(t *testing.T) {
	pin, err := filepath.Abs(filepath.Join(checkpoints, "qwen2"))
	do(t, err)
	i := start(t, func(s *setup) {
		s.Config.IdleEvict, s.Config.Pins = config.Duration(20*time.Millisecond), []string{pin}
	})
	engine := startProcess(t, "engine", i.target)
	for _, name := range []string{"llama-tp1r0", "qwen2-tp1r0"} {
		engine.send(t, getState(t, key(t, name)))
		if got := engine.line(t); got != "ok" {
			t.Fatal(got)
		}
	}
	time.Sleep(100 * time.Millisecond) // it is in use: nothing must happen
	if n := len(i.status(t).Entries); n != 2 {
		t.Errorf("%d entries are held while an engine has both", n)
	}
	engine.kill()
	testmain.Eventually(t, "what is not pinned has gone", func() bool { return i.entry(t, key(t, "llama-tp1r0")) == nil })
	if i.entry(t, key(t, "qwen2-tp1r0")) == nil {
		t.Error("the pin has gone")
	}
	if !strings.Contains(i.log.String(), `msg="evicted what was not used" entries=1 for=20ms`) {
		t.Errorf("log:\n%s", i.log.String())
	}
}
