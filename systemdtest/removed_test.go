// SPDX-FileCopyrightText: The wcache authors
// SPDX-License-Identifier: MIT

package systemdtest

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/wcache/wcache/internal/testmain"
)

// If a socket, or its whole folder, is removed while the daemon runs, the status and doctor
// say so, and their advice mends it without losing weights. T3.
func TestRemovedSocket(t *testing.T) {
	begin(t, "")
	want := digests(t, ask(t, socket(), recorded(t, llama)))
	const mend = "systemctl --user restart " + sockets
	for what, remove := range map[string]func() error{
		"the socket": func() error { return os.Remove(socket()) },
		"the folder": func() error { return os.RemoveAll(filepath.Dir(socket())) },
	} {
		pid := mainPID(t)
		if err := remove(); err != nil {
			t.Fatal(err)
		}
		said := fmt.Sprintf("socket %s was removed, so engines can't reach the daemon: %s makes it anew, and keeps what is held", socket(), mend)
		testmain.Eventually(t, "status says that "+what+" was removed", func() bool {
			out, exit := wcache(t, "status", "--json")
			return exit == 0 && strings.Contains(out, said)
		})
		out, exit := wcache(t, "doctor")
		if exit != 1 || !strings.Contains(out, "was removed: the socket unit listens on it, and no engine can connect   -> "+mend+", which keeps what is held") {
			t.Errorf("%s: doctor exits %d\n%s", what, exit, out)
		}
		systemctl(t, "restart", sockets)
		if diff := cmp.Diff(want, digests(t, ask(t, socket(), recorded(t, llama)))); diff != "" {
			t.Errorf("%s: weights differ:\n%s", what, diff)
		}
		s := status(t)
		if s.Counts.Loads != 0 || s.Counts.Hits != 1 || len(s.Problems) != 0 || mainPID(t) == pid {
			t.Errorf("%s: it was not mended with the weights kept: %+v, %q", what, s.Counts, s.Problems)
		}
		if out, exit := wcache(t, "doctor"); exit != 0 {
			t.Errorf("%s: doctor exits %d\n%s", what, exit, out)
		}
	}
}

// The same for a socket that waits without a daemon.
func TestRemovedIdleSocket(t *testing.T) {
	begin(t, "")
	if err := os.RemoveAll(filepath.Dir(socket())); err != nil {
		t.Fatal(err)
	}
	out, exit := wcache(t, "status")
	if exit != 3 || !strings.Contains(out, socket()+" was removed, and a process still listens on it") || !strings.Contains(out, "systemctl --user restart "+sockets) {
		t.Errorf("exit %d\n%s", exit, out)
	}
	systemctl(t, "restart", sockets)
	if reply := ask(t, socket(), recorded(t, "0.33.0-get_memory")); !reply.HasMemory {
		t.Errorf("got %+v", reply)
	}
}

// A daemon that is stopped by a signal keeps all that it held, and no advice ends it: T1.
func TestStoppedService(t *testing.T) {
	begin(t, "")
	ask(t, socket(), recorded(t, llama))
	pid := mainPID(t)
	kill(t, pid, syscall.SIGSTOP)
	out, exit := wcache(t, "doctor") // takes less time than the watchdog
	kill(t, pid, syscall.SIGCONT)
	want := fmt.Sprintf("it does not answer: process %d is stopped, by SIGSTOP or by Ctrl-Z   -> kill -CONT %d continues it; nothing is lost", pid, pid)
	if exit != 1 || !strings.Contains(out, want) || strings.Contains(out, "kill "+fmt.Sprint(pid)) {
		t.Errorf("exit %d\n%s", exit, out)
	}
	if s := status(t); s.PID != pid || len(s.Entries) != 1 {
		t.Errorf("afterwards: %+v", s)
	}
}

// A condition of the units that isn't met, as for root: systemctl does nothing and exits
// with 0. T2.
func TestConditionNotMet(t *testing.T) {
	begin(t, "")
	systemctl(t, "disable", "--now", sockets)
	dir := filepath.Join(os.Getenv("HOME"), ".config/systemd/user", sockets+".d")
	if err := os.MkdirAll(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = os.RemoveAll(dir)
		_ = exec.Command("systemctl", "--user", "daemon-reload").Run()
	})
	if err := os.WriteFile(filepath.Join(dir, "test.conf"), []byte("[Unit]\nConditionUser=root\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	systemctl(t, "daemon-reload")
	systemctl(t, "enable", "--now", sockets)
	out, exit := wcache(t, "doctor")
	lines := slices.Collect(strings.Lines(out))
	want := "fail   socket unit         " + sockets + " is inactive: one of its conditions is not met   -> systemctl --user status " + sockets + " says which\n"
	if exit != 1 || !slices.Contains(lines, want) {
		t.Errorf("exit %d\n%s", exit, out)
	}
}
