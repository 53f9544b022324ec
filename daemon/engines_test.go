// SPDX-FileCopyrightText: The wcache authors
// SPDX-License-Identifier: MIT

package daemon

import (
	"fmt"
	"io"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/wcache/wcache/client"
	"github.com/wcache/wcache/config"
	"github.com/wcache/wcache/control"
	"github.com/wcache/wcache/fingerprint"
	"github.com/wcache/wcache/internal/testmain"
)

// engines of an entry by pid.
func (i *instance) enginesOf(t *testing.T, k fingerprint.Key) []int {
	t.Helper()
	var list []int
	if e := i.entry(t, k); e != nil {
		for _, x := range e.Engines {
			list = append(list, x.PID)
		}
	}
	return list
}

// An engine is attached from its answer to its end, whatever it says meanwhile;
// its entry stays and serves the next one.
func TestAttached(t *testing.T) {
	t.Parallel()
	i := start(t, nil)
	k := key(t, "llama-tp1r0")
	a, b := startProcess(t, "engine", i.target), startProcess(t, "engine", i.target)
	for _, p := range []*process{a, b} {
		p.send(t, getState(t, k))
		if got := p.line(t); got != "ok" {
			t.Fatal(got)
		}
		p.send(t, recorded(t, "0.33.0-watch"))
		if got := p.line(t); got != "ok" {
			t.Fatal(got)
		}
	}
	e := i.entry(t, k)
	if len(e.Engines) != 2 || e.Engines[0].Comm != "exe" {
		t.Errorf("attached are %+v", e.Engines)
	}
	_, err := client.Do(t.Context(), i.control, control.Request{Method: control.MethodEvict, Evict: &control.Evict{Key: k.ID()}}, nil)
	pids := i.enginesOf(t, k) // in order
	want := &control.Error{
		Code: control.CodeInUse, Message: fmt.Sprintf("evict entry %.12s: it may still be mapped by exe (pid %d), exe (pid %d)", k.ID(), pids[0], pids[1]),
		Hint: "end the engines, or evict with --force: they keep what they have mapped",
	}
	if diff := cmp.Diff(error(want), err); diff != "" {
		t.Errorf("evict -want +got:\n%s", diff)
	}
	a.kill()
	testmain.Eventually(t, "the first is gone", func() bool { return cmp.Equal(i.enginesOf(t, k), []int{b.Process.Pid}) })
	b.end()
	testmain.Eventually(t, "the second is gone", func() bool { return len(i.enginesOf(t, k)) == 0 })
	if s := i.status(t); len(s.Entries) != 1 || s.Counts.Loads != 1 {
		t.Errorf("the entry went with its engine: %+v", s)
	}
	testmain.Eventually(t, "the watches have ended", func() bool { return i.crowd.open.Load() == 0 })
}

// An engine that copies and releases takes nothing from one that is attached, and
// is given the weights again when it asks again.
func TestRelease(t *testing.T) {
	t.Parallel()
	i := start(t, nil)
	k := key(t, "llama-tp1r0")
	a, b := startProcess(t, "engine", i.target), startProcess(t, "engine", i.target)
	say := func(p *process, payload []byte) {
		t.Helper()
		p.send(t, payload)
		if got := p.line(t); got != "ok" {
			t.Fatal(got)
		}
	}
	release := recorded(t, "0.33.0-release")
	say(a, getState(t, k))
	say(b, getState(t, k))
	for range 2 {
		say(a, release)
		if got := i.enginesOf(t, k); !cmp.Equal(got, []int{b.Process.Pid}) {
			t.Errorf("attached are %v", got)
		}
	}
	say(a, getState(t, k))
	say(a, release)
	say(b, release)
	if e := i.entry(t, k); e != nil {
		t.Errorf("nobody uses it, and it is there: %+v", e)
	}
	say(b, getState(t, k))
	if c := i.status(t).Counts; c.Loads != 2 || c.Hits != 2 {
		t.Errorf("counts are %+v", c)
	}
	// It releases what it has by this socket's role, and nothing else.
	say(b, getState(t, key(t, "qwen2-tp1r0")))
	do(t, sendRelease(t, i.draft))
	say(b, release)
	if s := i.status(t); len(s.Entries) != 0 {
		t.Errorf("left are %d entries", len(s.Entries))
	}
}

func sendRelease(t *testing.T, socket string) error {
	_, err := tryEngine(t.Context(), socket, recorded(t, "0.33.0-release"))
	return err
}

// An engine that ends while it waits, before it reads its answer, or right after,
// leaves nothing: no descriptor, no waiter, no engine at an entry.
func TestEngineDies(t *testing.T) {
	g := newGate(t)
	i := start(t, atGate(g))
	k := key(t, "llama-tp1r0")

	waiting := startProcess(t, "engine", i.target)
	waiting.send(t, getState(t, k))
	open := g.arrived(t)
	testmain.Eventually(t, "it waits", func() bool { e := i.entry(t, k); return e != nil && e.Waiting == 1 })
	waiting.kill()
	testmain.Eventually(t, "nobody waits", func() bool { e := i.entry(t, k); return e != nil && e.Waiting == 0 })
	open()
	testmain.Eventually(t, "the load is done for the next one", func() bool { e := i.entry(t, k); return e != nil && e.State == "ready" })
	if got := i.enginesOf(t, k); len(got) != 0 {
		t.Errorf("attached are %v", got)
	}
	testmain.Eventually(t, "no connection is left", func() bool { return i.crowd.open.Load() == 0 })
	runtime.GC()
	before := settled(t)

	for n := range 40 {
		// The request is sent, and the process ends at once: on its way it may be
		// refused, attached, or gone before it can be.
		cmd := exec.Command("/proc/self/exe", "hasty", i.target)
		cmd.Stdin = strings.NewReader(string(frame(getState(t, k))))
		cmd.Stderr = os.Stderr
		if err := cmd.Run(); err != nil {
			t.Fatal(n, err)
		}
	}
	testmain.Eventually(t, "no connection is left", func() bool { return i.crowd.open.Load() == 0 })
	testmain.Eventually(t, "no engine is left", func() bool { return len(i.enginesOf(t, k)) == 0 })
	testmain.Eventually(t, "no descriptor is left", func() bool { return noMore(before, descriptors(t)) })

	for _, hold := range []bool{false, true} { // attached, and killed
		p := startProcess(t, "engine", i.target)
		p.send(t, getState(t, k))
		if got := p.line(t); got != "ok" {
			t.Fatal(got)
		}
		if hold {
			p.send(t, recorded(t, "0.33.0-watch"))
			p.line(t)
		}
		p.kill()
	}
	testmain.Eventually(t, "no engine is left", func() bool { return len(i.enginesOf(t, k)) == 0 })
	testmain.Eventually(t, "no descriptor is left", func() bool { return noMore(before, descriptors(t)) })
}

// What is evicted by force is not served any more. Who has mapped it keeps it.
func TestForcedEviction(t *testing.T) {
	t.Parallel()
	i := start(t, nil)
	k := key(t, "llama-tp1r0")
	r := engineAsk(t, i.target, getState(t, k))
	f, err := os.Open(r.Entries[0].Path) // as an engine maps it
	do(t, err)
	defer func() { _ = f.Close() }()
	reply, err := client.Do(t.Context(), i.control, control.Request{Method: control.MethodEvict, Evict: &control.Evict{Force: true}}, nil)
	do(t, err)
	if diff := cmp.Diff([]string{k.ID()}, reply.Evicted); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
	if n, err := io.Copy(io.Discard, f); err != nil || n < 207520 {
		t.Errorf("read %d bytes of what was mapped: %v", n, err)
	}
	again := engineAsk(t, i.target, getState(t, k))
	if again.Entries[0].Path == r.Entries[0].Path {
		t.Errorf("the path %s has come to mean other memory", r.Entries[0].Path)
	}
}

// Engines that can't look into this process are told so before they are given
// anything: one in another pid namespace would open another process's files under
// this process's number. What holds the bytes itself any of them can have.
func TestBarriers(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("needs root, to be of other groups and namespaces, and .ci/run is root; engines without barriers need none")
	}
	mapped := start(t, nil)
	value := start(t, func(s *setup) { s.Config.Handles = config.HandlesValue })
	wantAnswer(t, engineAsk(t, mapped.target, getState(t, key(t, "llama-tp1r0"))), "ok")
	var refused atomic.Int64
	t.Run("each", func(t *testing.T) {
		for _, tt := range []struct {
			name, role string
			how        *syscall.SysProcAttr
			want       string
		}{
			{"group", "weak engine", &syscall.SysProcAttr{Credential: &syscall.Credential{Gid: 12345}},
				"the engine is of group 12345 and this process of 0, so that it can't reach this process's memory: start both as the same group, without newgrp, or set handles = \"value\" in wcache.toml"},
			{"capabilities", "weak engine", nil,
				"the engine has fewer capabilities than this process, so that it can't reach this process's memory: start both with the same, or set handles = \"value\" in wcache.toml"},
			{"pid", "engine", &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWPID},
				"the engine is in another pid namespace, where it can't reach this process's memory: run the two in one, such as with --pid=host, or set handles = \"value\" in wcache.toml"},
			{"user", "engine", within(syscall.CLONE_NEWUSER, 0),
				"the engine is in another user namespace, where it can't reach this process's memory: run the two in one, or set handles = \"value\" in wcache.toml"},
		} {
			t.Run(tt.name, func(t *testing.T) {
				t.Parallel()
				ask := func(socket string) *process {
					p := &process{Cmd: exec.Command("/proc/self/exe", tt.role, socket), dir: t.TempDir()}
					p.SysProcAttr = tt.how
					if err := p.begin(); err != nil {
						t.Skipf("no such process can be made here: %v; the others are tried", err)
					}
					t.Cleanup(p.end)
					p.send(t, getState(t, key(t, "llama-tp1r0")))
					return p
				}
				if got := ask(value.target).line(t); got != "ok" {
					t.Error("by value:", got)
				}
				p := ask(mapped.target)
				refused.Add(1)
				if got := p.line(t); got != "mismatch  ["+tt.want {
					t.Error(got)
				}
				// It maps nothing of what is there, and charges itself for no more.
				p.send(t, recorded(t, "0.33.0-get_memory"))
				if got := p.line(t); got != "ok 0 bytes" {
					t.Error(got)
				}
			})
		}
	})
	// They count as others that are refused do, and the last is remembered: T19.
	counts := mapped.status(t).Counts
	if n := refused.Load(); counts.Refused != n || counts.Misses[control.MissRefused] != n || counts.Hits != 0 {
		t.Errorf("of %d that were refused are counted %+v", n, counts)
	}
	reply, err := client.Do(t.Context(), mapped.control, control.Request{Method: control.MethodMisses}, nil)
	do(t, err)
	if m := reply.Misses[0]; m.Reason != control.MissRefused || !strings.HasPrefix(m.Message, "the engine ") || !strings.Contains(m.Message, "can't reach this process's memory") {
		t.Errorf("remembered is %+v", m)
	}
}

// An engine beside the container of its own user can look into it, without any of the
// capabilities that the daemon has there.
func TestNoBarrier(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("needs root, to be another user, and .ci/run is root; TestBarriers has what is refused")
	}
	const nobody = 65534
	c := exec.Command("/proc/self/exe", "above")
	c.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: nobody, Gid: nobody}}
	c.Stderr = os.Stderr
	out, err := c.Output()
	if err != nil {
		t.Skipf("no such process can be made here: %v; the others are tried", err)
	}
	if got, want := string(out), "barrier \"\", <nil>\n"; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
}
