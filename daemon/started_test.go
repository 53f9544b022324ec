// SPDX-FileCopyrightText: The wcache authors
// SPDX-License-Identifier: MIT

package daemon

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/wcache/wcache/daemon/peer"
	"github.com/wcache/wcache/internal/testmain"
	"github.com/wcache/wcache/resolve"
)

// serves runs a process that looks like "vllm serve MODEL", by way of a program that it
// is an argument of, if one is given.
func serves(t *testing.T, model string, by ...string) int {
	t.Helper()
	self, err := os.Executable()
	do(t, err)
	cmd := exec.Command(self)
	cmd.Args = []string{"vllm", "serve", model, "--load-format", "ipc_cache"}
	if len(by) > 0 {
		cmd = exec.Command(by[0], append(by[1:], self, model)...)
	}
	cmd.Stderr = os.Stderr
	in, err := cmd.StdinPipe()
	do(t, err, cmd.Start())
	t.Cleanup(func() { _, _ = in.Close(), cmd.Wait() })
	testmain.Eventually(t, "the process is what it is to look like", func() bool {
		b, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", cmd.Process.Pid))
		return err == nil && strings.HasPrefix(string(b), "vllm\x00serve\x00")
	})
	return cmd.Process.Pid
}

// Twins are told apart by what the engine was started with.
func TestStarted(t *testing.T) {
	root := private(t)
	a, b := model(t, root, "llama", "a"), model(t, root, "llama", "b")
	rewrite(t, filepath.Join(b, "model-00003-of-00004.safetensors"))
	i := start(t, on(root))
	k := key(t, "llama-tp1r0")
	link := filepath.Join(root, "current")
	do(t, os.Symlink(b, link))
	for name, want := range map[string]string{a: a, b: b, link: b} {
		pid := serves(t, name)
		said, err := i.finder.started(peer.Process{PID: pid}, k)
		if err != nil {
			t.Fatal(err)
		}
		choice, err := resolve.Choose(t.Context(), i.finder.options(i.configuration()), k, said)
		if err != nil || choice.Dir != want || choice.Sure != resolve.ByEngine || said.By != fmt.Sprintf("vllm serve (pid %d)", pid) {
			t.Errorf("an engine on %s means %s by %q of %s, %v", name, choice.Dir, choice.Sure, said.By, err)
		}
	}
	if said, err := i.finder.started(peer.Process{PID: os.Getpid()}, k); said != nil || err != nil {
		t.Errorf("another program says %+v, %v", said, err)
	}
	if said, err := i.finder.started(peer.Process{}, k); said != nil || err != nil {
		t.Errorf("a process that can't be seen says %+v, %v", said, err)
	}
	gone := serves(t, b)
	do(t, os.RemoveAll(b))
	_, err := i.finder.started(peer.Process{PID: gone}, k)
	var no *resolve.Refusal
	if want := fmt.Sprintf("vllm serve (pid %d) was started with %q, which no longer exists: ", gone, b); !errors.As(err, &no) || !strings.HasPrefix(no.Reason, want) {
		t.Errorf("got %v, want %s…", err, want)
	}
}

// An engine in another mount namespace means what it sees there.
func TestStartedElsewhere(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("mount namespaces are root's; package evidence has what any user can try")
	}
	root, outside := private(t), private(t)
	known, unknown := model(t, root, "llama", "known"), model(t, outside, "llama", "unknown")
	place := filepath.Join(outside, "models") // where both are seen
	do(t, os.Mkdir(place, 0o700))
	i := start(t, on(root))
	k := key(t, "llama-tp1r0")
	testmain.Eventually(t, "the index knows the model", func() bool { return len(i.o.Index.Known(k.Str("checkpoint"))) == 1 })
	bound := func(dir string) int {
		return serves(t, place, "unshare", "-m", "bash", "-c", `mount --bind `+dir+` "$1" && exec -a vllm "$0" serve "$1"`)
	}
	said, err := i.finder.started(peer.Process{PID: bound(known)}, k)
	if err != nil || said == nil || said.Dir != known {
		t.Errorf("got %+v, %v; want %s, which it is on this side", said, err, known)
	}
	pid := bound(unknown)
	_, err = i.finder.started(peer.Process{PID: pid}, k)
	wantRefusal := fmt.Sprintf("vllm serve (pid %d) was started with %s, which it sees as %s; the daemon knows no path to it", pid, place, place)
	var no *resolve.Refusal
	if !errors.As(err, &no) || no.Reason != wantRefusal {
		t.Errorf("got %v, want %s", err, wantRefusal)
	}
}
