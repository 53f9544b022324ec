// SPDX-FileCopyrightText: The wcache authors
// SPDX-License-Identifier: MIT

package daemon

import (
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/wcache/wcache/client"
	"github.com/wcache/wcache/config"
	"github.com/wcache/wcache/control"
	"github.com/wcache/wcache/internal/testmain"
)

// atGate has the loader wait at a gate with its memory allocated.
func atGate(g gate) func(*setup) {
	return func(s *setup) { s.Loader.Command = []string{"/proc/self/exe", "load", g.path} }
}

// later asks in a goroutine; the answer in words comes out of the channel.
func later(t *testing.T, socket string, payload []byte) <-chan string {
	got := make(chan string, 1)
	go func() {
		r, err := tryEngine(t.Context(), socket, payload)
		if err != nil {
			got <- err.Error()
			return
		}
		got <- answer(r)
	}()
	return got
}

// While a load is under way, everything else is answered at once: what is on the
// device, by get_memory; how far it is, by status; another model. Those that want
// the same model wait for the one load.
func TestDuringLoad(t *testing.T) {
	t.Parallel()
	g := newGate(t)
	i := start(t, atGate(g))
	k := key(t, "llama-tp1r0")
	memory := func() int64 { return engineAsk(t, i.target, recorded(t, "0.33.0-get_memory")).MemoryBytes }
	if n := memory(); n != 0 {
		t.Errorf("before the load get_memory says %d", n)
	}
	var waiting []<-chan string
	for range 8 {
		waiting = append(waiting, later(t, i.target, getState(t, k)))
	}
	open := g.arrived(t)
	testmain.Eventually(t, "all wait", func() bool { e := i.entry(t, k); return e != nil && e.Waiting == 8 && e.Progress != nil && e.Bytes > 0 })
	e := i.entry(t, k)
	if e.State != "loading" || e.Progress.Done != 0 || e.Progress.Total != 207520 || filepath.Base(e.Model) != "llama" {
		t.Errorf("status says %+v, %+v", e, e.Progress)
	}
	// From its allocation on the memory is charged to this engine, though not filled.
	testmain.Eventually(t, "get_memory says so", func() bool { return memory() == 207520 })
	if n := engineAsk(t, i.draft, recorded(t, "0.33.0-get_memory")).MemoryBytes; n != 0 {
		t.Errorf("the draft's get_memory says %d", n)
	}
	wantAnswer(t, engineAsk(t, i.target, getState(t, set(t, k, "checkpoint", strings.Repeat("0", 32)))), "mismatch: checkpoint; …")
	open()
	for _, w := range waiting {
		if got := <-w; got != "ok" {
			t.Error(got)
		}
	}
	if n := memory(); n != 207520 {
		t.Errorf("after the load get_memory says %d", n)
	}
	if got := i.status(t).Counts; got.Loads != 1 || got.Failed != 0 || got.Refused != 1 {
		t.Errorf("counts are %+v", got)
	}
}

// Several models are resident at once, each by its key.
func TestSeveralModels(t *testing.T) {
	t.Parallel()
	i := start(t, nil)
	names := []string{"llama-tp1r0", "llama-tp2r0", "llama-tp2r1", "qwen2-tp1r0", "llama_tied-tp1r0"}
	for range 2 {
		for _, name := range names {
			wantAnswer(t, engineAsk(t, i.target, getState(t, key(t, name))), "ok")
		}
	}
	s := i.status(t)
	if s.Counts.Loads != 5 || s.Counts.Hits != 5 || len(s.Entries) != 5 {
		t.Errorf("%d entries, %+v", len(s.Entries), s.Counts)
	}
}

// A service that is told to stop ends its loads, tells those that wait, and leaves
// no process and no memory.
func TestStopWhileLoading(t *testing.T) {
	g := newGate(t)
	i := start(t, atGate(g))
	watch := send(t, i.target, frame(recorded(t, "0.33.0-watch")))
	wantAnswer(t, receive(t, watch), "ok")
	silent := send(t, i.target, nil)
	got := later(t, i.target, getState(t, key(t, "llama-tp1r0")))
	loader, open := g.loader(t)
	defer open()
	do(t, i.stop())
	if got := <-got; got != "error: the service is stopping" {
		t.Errorf("the engine is told %q", got)
	}
	if _, err := watch.Read(make([]byte, 1)); err == nil {
		t.Error("the watch goes on")
	}
	wantAnswer(t, receive(t, silent), "error: the service is stopping")
	if err := unix.Kill(loader, 0); err == nil {
		t.Errorf("process %d is left", loader)
	}
	if n := memory(t); n != 0 {
		t.Errorf("%d memory files are left", n)
	}
}

// When a loader is killed its load fails: waiting requests get the error, and the next request
// loads again.
func TestLoaderKilled(t *testing.T) {
	g := newGate(t)
	i := start(t, atGate(g))
	k := key(t, "llama-tp1r0")
	one, two := later(t, i.target, getState(t, k)), later(t, i.target, getState(t, k))
	loader, open := g.loader(t)
	testmain.Eventually(t, "both wait", func() bool { e := i.entry(t, k); return e != nil && e.Waiting == 2 })
	do(t, unix.Kill(loader, unix.SIGKILL))
	for _, c := range []<-chan string{one, two} {
		if got, want := <-c, "error: load model: the loader ended early: signal: killed (see the service's log, and on a GPU nvidia-smi)"; got != want {
			t.Errorf("got  %s\nwant %s", got, want)
		}
	}
	open()
	if s := i.status(t); len(s.Entries) != 0 || s.Bytes != 0 || s.Counts.Failed != 1 || memory(t) != 0 {
		t.Errorf("left are %d entries, %d bytes, %d memory files", len(s.Entries), s.Bytes, memory(t))
	}
	again := later(t, i.target, getState(t, k))
	g.arrived(t)()
	if got := <-again; got != "ok" {
		t.Error(got)
	}
}

// A load that hangs is ended in its time, and the engine is told which setting
// that is.
func TestLoadTimeout(t *testing.T) {
	t.Parallel()
	g := newGate(t)
	i := start(t, func(s *setup) {
		atGate(g)(s)
		s.Config.LoadTimeout = config.Duration(300 * time.Millisecond)
	})
	wantAnswer(t, engineAsk(t, i.target, getState(t, key(t, "llama-tp1r0"))),
		"error: load model: it took longer than 300ms (load_timeout in wcache.toml allows more; after a change of wcache.toml: systemctl --user reload wcache@host.service, or SIGHUP)")
}

// A loader that can't be started is said to be so.
func TestNoLoader(t *testing.T) {
	t.Parallel()
	i := start(t, func(s *setup) { s.Loader.Command = []string{"/none/wcache", "load"} })
	wantAnswer(t, engineAsk(t, i.target, getState(t, key(t, "llama-tp1r0"))),
		`error: load model: start "/none/wcache": fork/exec /none/wcache: no such file or directory (see the service's log, and on a GPU nvidia-smi)`)
}

// A load over the budget evicts unused entries; if that isn't enough, the error names the
// entries and their engines.
func TestBudget(t *testing.T) {
	t.Parallel()
	i := start(t, func(s *setup) { s.Config.Budget = 400_000 })
	engine := startProcess(t, "engine", i.target)
	engine.send(t, getState(t, key(t, "llama-tp1r0")))
	if got := engine.line(t); got != "ok" {
		t.Fatal(got)
	}
	wantAnswer(t, engineAsk(t, i.target, getState(t, key(t, "qwen2-tp1r0"))),
		fmt.Sprintf("error: make room: the model takes 212736 bytes and the budget is 400000; held are 212992 bytes of …/llama (…, exe pid %d) (wcache evict frees what is held, budget in wcache.toml allows more; after a change of wcache.toml: systemctl --user reload wcache@host.service, or SIGHUP)", engine.Process.Pid))
	engine.kill()
	testmain.Eventually(t, "the engine is noticed to be gone", func() bool { return len(i.entry(t, key(t, "llama-tp1r0")).Engines) == 0 })
	wantAnswer(t, engineAsk(t, i.target, getState(t, key(t, "qwen2-tp1r0"))), "ok")
	if e := i.entry(t, key(t, "llama-tp1r0")); e != nil {
		t.Errorf("still there: %+v", e)
	}
}

// On a full device the daemon evicts unused entries for the missing bytes, and not for the whole
// model.
func TestMakesRoom(t *testing.T) {
	// No other test's memory may count: the loader looks at all of this process.
	i := start(t, func(s *setup) { s.Loader.Command = []string{"/proc/self/exe", "small load", "300000"} })
	half := key(t, "llama-tp2r1")
	engine := startProcess(t, "engine", i.target)
	engine.send(t, getState(t, half))
	if got := engine.line(t); got != "ok" {
		t.Fatal(got)
	}
	engine.kill()
	testmain.Eventually(t, "the engine is noticed to be gone", func() bool { return len(i.entry(t, half).Engines) == 0 })
	if e := i.entry(t, half); e.Bytes > 200_000 {
		t.Fatalf("%d bytes are no less than the whole model", e.Bytes)
	}
	wantAnswer(t, engineAsk(t, i.target, getState(t, key(t, "llama-tp1r0"))), "ok")
	if e := i.entry(t, half); e != nil {
		t.Errorf("still there: %+v", e)
	}
}

// Warming says how far it is, ends with the entry, and ends its wait when its
// client goes.
func TestWarm(t *testing.T) {
	t.Parallel()
	g := newGate(t)
	i := start(t, atGate(g))
	model, err := filepath.Abs(filepath.Join(checkpoints, "qwen2"))
	do(t, err)
	type result struct {
		reply    *control.Reply
		progress int
		err      error
	}
	done := make(chan result, 1)
	told := make(chan struct{})
	go func() {
		n := 0
		r, err := client.Do(t.Context(), i.control, control.Request{Method: control.MethodWarm, Warm: &control.Warm{Model: model}}, func(r control.Reply) {
			if r.Progress != nil && r.Progress.Total == 210080 {
				if n++; n == 1 {
					close(told)
				}
			}
		})
		done <- result{r, n, err}
	}()
	open := g.arrived(t)
	select {
	case <-told:
	case r := <-done:
		t.Fatalf("done before the load: %+v", r)
	}
	open()
	r := <-done
	if r.err != nil || r.reply.Entry == nil || r.progress == 0 {
		t.Fatalf("got %+v", r)
	}
	if e := r.reply.Entry; e.State != "ready" || e.Model != model || e.Key != key(t, "qwen2-tp1r0").ID() || len(e.Engines) != 0 {
		t.Errorf("got %+v", e)
	}
	wantAnswer(t, engineAsk(t, i.target, getState(t, key(t, "qwen2-tp1r0"))), "ok")

	for _, w := range []struct{ model, want string }{
		{"none/none", `find model "none/none": is not in the cache; fetch the model; tried …`},
		{"/none", `find model "/none": no such directory…`},
		{filepath.Dir(model), `read weights …config.json": does not exist…`},
	} {
		_, err := client.Do(t.Context(), i.control, control.Request{Method: control.MethodWarm, Warm: &control.Warm{Model: w.model}}, nil)
		var no *control.Error
		if !errors.As(err, &no) || no.Code != control.CodeFailed || !strings.HasPrefix(no.Message, strings.Split(w.want, "…")[0]) {
			t.Errorf("warm %s: got %v, want %s", w.model, err, w.want)
		}
	}
}
