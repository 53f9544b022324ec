// SPDX-FileCopyrightText: The wcache authors
// SPDX-License-Identifier: MIT

package main

import (
	"errors"
	"flag"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/rogpeppe/go-internal/testscript"
	"golang.org/x/sys/unix"

	"github.com/wcache/wcache/client"
	"github.com/wcache/wcache/internal/fd"
	"github.com/wcache/wcache/internal/testmain"
)

var update = flag.Bool("update", false, "rewrite the outputs in testdata/script")

func TestScript(t *testing.T) {
	data, err := filepath.Abs("../../testdata")
	if err != nil {
		t.Fatal(err)
	}
	testscript.Run(t, testscript.Params{
		Dir:                 "testdata/script",
		UpdateScripts:       *update,
		RequireExplicitExec: true,
		Setup: func(e *testscript.Env) error {
			bin := filepath.Join(e.WorkDir, "bin")
			e.Setenv("PATH", bin+":"+e.Getenv("PATH"))
			e.Setenv("GORACE", "atexit_sleep_ms=0") // a second for each command
			e.Setenv("XDG_RUNTIME_DIR", filepath.Join(e.WorkDir, "run"))
			e.Setenv("XDG_STATE_HOME", filepath.Join(e.WorkDir, "state"))
			e.Setenv("XDG_CONFIG_HOME", filepath.Join(e.WorkDir, "config"))
			e.Setenv("HF_HUB_CACHE", filepath.Join(e.WorkDir, "hub"))
			e.Setenv("ME", (&app{}).userName())
			e.Setenv("WIRE", filepath.Join(data, "wire"))
			e.Setenv("CHECKPOINTS", filepath.Join(data, "checkpoints"))
			e.Setenv("CONTROL", filepath.Join(data, "../control"))
			e.Setenv("SCREENS", filepath.Join(data, "../docs/screens"))
			e.Setenv("S", filepath.Join(e.WorkDir, "s", "host.sock"))
			self, err := os.Executable()
			return errors.Join(
				err,
				os.Mkdir(bin, 0o700),
				os.Symlink(self, filepath.Join(bin, "wcache")),
				os.Symlink(self, filepath.Join(bin, "engine")),
				os.Symlink(self, filepath.Join(bin, "activate")),
				os.CopyFS(filepath.Join(e.WorkDir, "models", "llama"), os.DirFS(filepath.Join(data, "checkpoints", "llama"))),
				os.CopyFS(filepath.Join(e.WorkDir, "models", "qwen2"), os.DirFS(filepath.Join(data, "checkpoints", "qwen2"))),
			)
		},
		Cmds: map[string]func(*testscript.TestScript, bool, []string){
			"exits":     exits,
			"like":      like,
			"listens":   listens,
			"metrics":   metricsCommand,
			"retry":     retry,
			"screen":    screenCommand,
			"shows":     shows,
			"says":      says,
			"signal":    signalCommand,
			"untouched": untouched,
			"valid":     valid,
		},
	})
}

// exits STATUS COMMAND... runs a command that has to end with a status.
func exits(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) < 2 {
		ts.Fatalf("usage: exits STATUS COMMAND...")
	}
	err := ts.Exec(args[1], args[2:]...)
	got := 0
	var status *exec.ExitError
	if errors.As(err, &status) {
		got = status.ExitCode()
	} else {
		ts.Check(err)
	}
	if strconv.Itoa(got) != args[0] {
		ts.Fatalf("%s exits with %d, not %s:\n%s%s", args[1], got, args[0], ts.ReadFile("stdout"), ts.ReadFile("stderr"))
	}
}

// like FILE WANT compares whole texts, in which "…" stands for anything within a line, a
// line "⋮" for any lines, and variables are replaced.
func like(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 2 {
		ts.Fatalf("usage: like FILE WANT")
	}
	got, want := ts.ReadFile(args[0]), os.Expand(ts.ReadFile(args[1]), ts.Getenv)
	pattern := strings.ReplaceAll(regexp.QuoteMeta(want), "…", "[^\n]*?")
	pattern = "^" + strings.ReplaceAll(pattern, "⋮\n", "(?:[^\n]*\n)*?") + "$" // any lines
	if !regexp.MustCompile(pattern).MatchString(got) {
		ts.Fatalf("got\n%swant\n%s", got, want)
	}
}

// listens SOCKET waits until a process listens.
func listens(ts *testscript.TestScript, _ bool, args []string) {
	until(ts, args[0]+" is listened on", func() bool { return client.Listening(args[0]) })
}

// says FILE TEXT waits until a file, which a background command writes, has a text.
func says(ts *testscript.TestScript, _ bool, args []string) {
	until(ts, args[0]+" says "+args[1], func() bool {
		b, err := os.ReadFile(ts.MkAbs(args[0]))
		return err == nil && strings.Contains(string(b), args[1])
	})
}

// retry COMMAND... runs a command until it succeeds.
func retry(ts *testscript.TestScript, _ bool, args []string) {
	until(ts, strings.Join(args, " ")+" succeeds", func() bool { return ts.Exec(args[0], args[1:]...) == nil })
}

// shows COMMAND... TEXT runs a command until its output has a text.
func shows(ts *testscript.TestScript, _ bool, args []string) {
	last := len(args) - 1
	until(ts, strings.Join(args[:last], " ")+" shows "+args[last], func() bool {
		return ts.Exec(args[0], args[1:last]...) == nil && strings.Contains(ts.ReadFile("stdout"), args[last])
	})
}

// until is testmain.Eventually in a script.
func until(ts *testscript.TestScript, what string, ok func() bool) {
	if !testmain.Within(ok) {
		ts.Fatalf("timed out waiting until %s", what)
	}
}

// signal SIGNAL SOCKET sends a signal to the process that listens on a socket.
func signalCommand(ts *testscript.TestScript, _ bool, args []string) {
	ts.Check(sendSignal(args[0], args[1]))
}

// sendSignal finds the process by the credentials of its socket, which are those of the
// process that called listen.
func sendSignal(name, socket string) error {
	c, err := net.Dial("unix", socket)
	if err != nil {
		return err
	}
	defer c.Close()
	cred, err := fd.Peer(c.(*net.UnixConn))
	if err != nil {
		return err
	}
	number := unix.SignalNum(name)
	if number == 0 {
		return fmt.Errorf("no signal %q", name)
	}
	return unix.Kill(int(cred.Pid), number)
}
