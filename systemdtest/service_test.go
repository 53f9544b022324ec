// SPDX-FileCopyrightText: The wcache authors
// SPDX-License-Identifier: MIT

package systemdtest

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/wcache/wcache/client"
	"github.com/wcache/wcache/internal/testmain"
	"github.com/wcache/wcache/protocol"
)

// A user only enables the socket: the first connection does the rest.
func TestEnable(t *testing.T) {
	begin(t, "")
	if got := systemctl(t, "is-enabled", sockets); got != "enabled" {
		t.Errorf("is-enabled: %s", got)
	}
	out, exit := wcache(t, "status")
	if want := "wcache@host   idle: nothing is cached; the socket starts it on the first request\n"; out != want || exit != 3 {
		t.Errorf("status: exit %d\n%s", exit, out)
	}
	if got := property(t, "ActiveState"); got != "inactive" {
		t.Errorf("asking for status made the service %s", got)
	}
	start := time.Now()
	reply := ask(t, socket(), recorded(t, "0.33.0-get_memory"))
	t.Logf("first connection of an idle service to reply: %d ms", time.Since(start).Milliseconds())
	if !reply.HasMemory || reply.MemoryBytes != 0 {
		t.Errorf("get_memory: %+v", reply)
	}
	if reply = ask(t, socket(), recorded(t, llama)); reply.Status != protocol.StatusOK || len(reply.Entries) != 24 {
		t.Fatalf("get_state: %s %s %v", reply.Status, reply.Message, reply.Fields)
	}
	if got := property(t, "ActiveState"); got != "active" {
		t.Errorf("service: %s", got)
	}
	testmain.Eventually(t, "the status text", func() bool {
		return strings.HasPrefix(property(t, "StatusText"), "1 model, 0.0 GiB, 1 engine attached")
	})
	t.Log("StatusText: " + property(t, "StatusText"))
	if out, exit := wcache(t, "status"); exit != 0 || !strings.Contains(out, "llama") {
		t.Errorf("status: exit %d\n%s", exit, out)
	}
	if said := journal(t, "msg=get_state"); strings.Contains(said, "level=INFO") {
		t.Errorf("journal:\n%s", said)
	}
	for path, mode := range map[string]os.FileMode{socket(): 0o600, draftSocket(): 0o600, filepath.Dir(socket()): 0o700} {
		if st, err := os.Stat(path); err != nil || st.Mode().Perm() != mode {
			t.Errorf("%s: mode %v, %v, want %v", path, st.Mode().Perm(), err, mode)
		}
	}
}

func TestDraft(t *testing.T) {
	begin(t, "")
	reply := ask(t, draftSocket(), recorded(t, llama))
	if diff := cmp.Diff([]string{"is_draft"}, reply.Fields); diff != "" {
		t.Errorf("a target's key at the draft's socket (-want +got):\n%s", diff)
	}
	draft := recorded(t, "0.33.0-get_state-allfields") // its key says is_draft
	if reply = ask(t, socket(), draft); cmp.Diff([]string{"is_draft"}, reply.Fields) != "" {
		t.Errorf("a draft's key at the target's socket: %v", reply.Fields)
	}
	if reply = ask(t, draftSocket(), draft); reply.Status != protocol.StatusMismatch || len(reply.Fields) != 2 {
		t.Errorf("a draft's key at its own socket: %+v", reply)
	}
	if reply = ask(t, draftSocket(), recorded(t, "0.33.0-get_memory")); reply.MemoryBytes != 0 {
		t.Errorf("get_memory: %+v", reply)
	}
}

// A daemon that holds nothing ends when idle. An engine that connects in that moment gets
// an answer.
func TestIdleExit(t *testing.T) {
	begin(t, "idle_exit = \"400ms\"")
	memory := recorded(t, "0.33.0-get_memory")
	var answered atomic.Int64
	for round := range 10 {
		ask(t, socket(), memory)
		time.Sleep(time.Duration(350+round*75) * time.Millisecond)
		var wait sync.WaitGroup
		for range 4 {
			wait.Go(func() {
				reply, conn, err := client.Engine(t.Context(), socket(), memory)
				if err != nil || !reply.HasMemory {
					t.Errorf("round %d: %v", round, err)
					return
				}
				_ = conn.Close()
				answered.Add(1)
			})
		}
		wait.Wait()
	}
	t.Logf("%d of 40 connects were answered", answered.Load())
	testmain.Eventually(t, "the end of an idle service", func() bool { return property(t, "ActiveState") == "inactive" })
	if got := property(t, "Result"); got != "success" {
		t.Errorf("result of an idle exit: %s", got)
	}
	ask(t, socket(), recorded(t, llama))
	time.Sleep(1500 * time.Millisecond)
	if got := property(t, "ActiveState"); got != "active" {
		t.Errorf("a service that holds weights is %s", got)
	}
}

func TestManyStarts(t *testing.T) {
	begin(t, "idle_exit = \"1ms\"")
	start := time.Now()
	memory := recorded(t, "0.33.0-get_memory")
	for range 100 {
		ask(t, socket(), memory)
		systemctl(t, "stop", unit)
	}
	t.Logf("100 starts in %.1f s", time.Since(start).Seconds())
	if got := systemctl(t, "is-active", sockets); got != "active" {
		t.Errorf("the socket is %s", got)
	}
	ask(t, socket(), memory)
}

func TestBrokenConfiguration(t *testing.T) {
	begin(t, "bugdet = \"1GiB\"")
	file := filepath.Join(os.Getenv("HOME"), ".config/wcache/wcache.toml")
	fault := file + `:2: unknown key "bugdet"`
	reply := ask(t, socket(), recorded(t, llama))
	if reply.Status != protocol.StatusError || !strings.Contains(reply.Message, fault) {
		t.Errorf("engines are told: %+v", reply)
	}
	if out, exit := wcache(t, "status"); exit != 0 || !strings.Contains(out, fault) {
		t.Errorf("status: exit %d\n%s", exit, out)
	}
	if got := property(t, "ActiveState"); got != "active" {
		t.Errorf("the service is %s", got)
	}
	configure(t, "")
	systemctl(t, "reload", unit)
	testmain.Eventually(t, "the mended configuration", func() bool { return len(status(t).Problems) == 0 })
	if reply = ask(t, socket(), recorded(t, llama)); reply.Status != protocol.StatusOK {
		t.Errorf("mended: %+v", reply)
	}
}

// held returns the bytes of all segments that processes of this user have, and the number
// of these processes. Memory of other programs doesn't count.
func held(t *testing.T) (bytes int64, holders int) {
	t.Helper()
	links, err := filepath.Glob("/proc/[0-9]*/fd/*")
	if err != nil {
		t.Fatal(err)
	}
	seen, of := make(map[uint64]bool), make(map[string]bool)
	for _, link := range links {
		if to, err := os.Readlink(link); err != nil || !strings.HasPrefix(to, "/memfd:wcache-segment") {
			continue
		}
		st, err := os.Stat(link)
		if err != nil {
			continue // closed meanwhile
		}
		of[strings.Split(link, "/")[2]] = true
		if x := st.Sys().(*syscall.Stat_t); !seen[x.Ino] {
			seen[x.Ino] = true
			bytes += x.Blocks * 512
		}
	}
	return bytes, len(of)
}

func TestStopFrees(t *testing.T) {
	begin(t, "")
	dir := filepath.Join(t.TempDir(), "big")
	sparse(t, dir, 1<<30)
	ask(t, socket(), recorded(t, "0.33.0-get_memory"))
	out, exit := wcache(t, "warm", dir)
	if exit != 0 {
		t.Fatal(out)
	}
	const model = 800 << 20 // it has more
	testmain.Eventually(t, "daemon and manager have the model", func() bool {
		bytes, holders := held(t) // its loader may have it too, yet
		return bytes > model && holders == 2
	})
	kill(t, mainPID(t), 9)
	testmain.Eventually(t, "the next daemon", func() bool { return property(t, "ActiveState") == "active" && len(status(t).Entries) == 1 })
	if bytes, _ := held(t); bytes < model {
		t.Errorf("%d bytes have survived", bytes)
	}
	systemctl(t, "stop", unit)
	testmain.Eventually(t, "the memory back", func() bool { bytes, _ := held(t); return bytes == 0 })
}

// The engine itself, with only the option for the load format: it connects where the
// generator has made the socket of a simulated GPU listen.
func TestEngineOnDefaultPath(t *testing.T) {
	bed := os.Getenv("WCACHE_ENGINE")
	if bed == "" {
		t.Skip("no engine here; make test-systemd has it, and TestEnable its recorded request")
	}
	home := os.Getenv("HOME")
	write := func(path, text string) {
		t.Helper()
		if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o700), os.WriteFile(path, []byte(text), 0o600)); err != nil {
			t.Fatal(err)
		}
	}
	configure(t, "")
	write(filepath.Join(home, ".config/environment.d/wcache.conf"), "WCACHE_ROOT="+stage()+"\n")
	// GPU 0 is simulated, so its instance keeps weights in host memory.
	write(filepath.Join(home, ".config/systemd/user/wcache@0.service.d/test.conf"), `[Service]
ExecStart=
ExecStart=/usr/bin/wcache serve --instance=%i --device=host --uuid=GPU-00000000-0000-0000-0000-000000000000
`)
	systemctl(t, "daemon-reload")
	systemctl(t, "enable", "--now", "wcache@0.socket")
	t.Cleanup(func() { _ = exec.Command("systemctl", "--user", "disable", "--now", "wcache@0.socket").Run() })
	t.Log(systemctl(t, "show", "-P", "Listen", "wcache@0.socket"))
	out, err := exec.Command(filepath.Join(bed, "run.sh"), "engine", "--model", filepath.Join(stage(), "testdata/checkpoints/llama")).Output()
	t.Logf("%s", out)
	if err != nil {
		var exit *exec.ExitError
		if errors.As(err, &exit) {
			t.Logf("%s", exit.Stderr)
		}
		t.Fatal(err)
	}
	for _, want := range []string{`"ok": true`, `"loader": "ipc"`, fmt.Sprintf(`"socket": "/tmp/vllm_weight_cache_%d/`, os.Getuid())} {
		if !strings.Contains(string(out), want) {
			t.Errorf("the engine doesn't say %s", want)
		}
	}
}

// doctor's output on a machine where only lingering is missing, and on one where the
// socket is off.
func TestDoctor(t *testing.T) {
	begin(t, "")
	ask(t, socket(), recorded(t, llama))
	out, exit := wcache(t, "doctor")
	if exit != 0 || !strings.Contains(out, "wcache@host.socket is enabled and listening") || !strings.Contains(out, "it keeps up to 2048 descriptors") ||
		!strings.Contains(out, "-> loginctl enable-linger") {
		t.Errorf("exit %d\n%s", exit, out)
	}
	t.Log("\n" + out)
	systemctl(t, "disable", "--now", sockets)
	out, exit = wcache(t, "doctor")
	if exit != 1 || !strings.Contains(out, "-> systemctl --user enable --now wcache@host.socket") {
		t.Errorf("exit %d\n%s", exit, out)
	}
}

// systemd-analyze prints nothing about the installed units, for any form of instance.
// For an unknown key it prints a line and exits with 0, so any output is an error.
func TestVerify(t *testing.T) {
	args := []string{"--user", "--man=no", "verify"}
	for _, name := range []string{"wcache@%s.socket", "wcache-draft@%s.socket", "wcache@%s.service"} {
		for _, instance := range []string{"host", "0", "GPU-00000000-0000-0000-0000-000000000000"} {
			args = append(args, fmt.Sprintf(name, instance))
		}
	}
	out, err := exec.Command("systemd-analyze", args...).CombinedOutput()
	if err != nil || len(out) > 0 {
		t.Errorf("systemd-analyze verify: %v\n%s", err, out)
	}
}

// If the store is too small, the daemon says so before a load starts, with the numbers.
func TestStoreFull(t *testing.T) {
	begin(t, "")
	dropIn(t, "[Service]\nFileDescriptorStoreMax=1\nEnvironment=WCACHE_FDSTORE=1\n")
	reply := ask(t, socket(), recorded(t, llama))
	want := "make room: keep descriptors: 3 are needed and FileDescriptorStoreMax=1: raise it in a drop-in (systemctl --user edit wcache@.service)"
	if reply.Status != protocol.StatusError || !strings.Contains(reply.Message, want) {
		t.Errorf("got %s %q\nwant %q", reply.Status, reply.Message, want)
	}
	if s := status(t); len(s.Entries) != 0 || s.Counts.Loads != 0 {
		t.Errorf("loaded all the same: %+v", s)
	}
}
