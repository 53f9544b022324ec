// SPDX-FileCopyrightText: The wcache authors
// SPDX-License-Identifier: MIT

package main

import (
	"errors"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/rogpeppe/go-internal/testscript"

	"github.com/wcache/wcache/control/schematest"
)

// untouched SOCKET COMMAND... runs a command while a socket is listened on where
// nobody accepts, and fails if somebody connects to it.
func untouched(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) < 2 {
		ts.Fatalf("usage: untouched SOCKET COMMAND...")
	}
	ts.Check(os.MkdirAll(filepath.Dir(args[0]), 0o700))
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: args[0], Net: "unix"})
	ts.Check(err)
	defer l.Close()
	var status *exec.ExitError
	if err := ts.Exec(args[1], args[2:]...); err != nil && !errors.As(err, &status) {
		ts.Check(err)
	}
	ts.Check(l.SetDeadline(time.Now().Add(time.Millisecond)))
	if c, err := l.Accept(); err == nil {
		_ = c.Close()
		ts.Fatalf("somebody has connected")
	}
}

// valid FILE holds a status in JSON against its schema.
func valid(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 1 {
		ts.Fatalf("usage: valid FILE")
	}
	text, err := os.ReadFile(filepath.Join(ts.Getenv("CONTROL"), "status.schema.json"))
	ts.Check(err)
	schema, err := schematest.Parse(text)
	ts.Check(err)
	ts.Check(schema.Validate([]byte(ts.ReadFile(args[0]))))
}

// metricsCommand FILE holds metrics against their format.
func metricsCommand(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 1 {
		ts.Fatalf("usage: metrics FILE")
	}
	ts.Check(checkMetrics(ts.ReadFile(args[0])))
}

// screenCommand NAME COMMAND compares what was printed last with a screen of
// docs/screens, which shows the command as it was typed. What differs from run to
// run is what it was on the day when the screens were made.
func screenCommand(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 2 {
		ts.Fatalf("usage: screen NAME COMMAND")
	}
	got := "$ " + args[1] + "\n" + sameEachDay(ts, ts.ReadFile("stdout")+ts.ReadFile("stderr"))
	path := filepath.Join(ts.Getenv("SCREENS"), args[0]+".txt")
	if *update {
		ts.Check(os.MkdirAll(filepath.Dir(path), 0o755))
		ts.Check(os.WriteFile(path, []byte(got), 0o644))
	}
	want, err := os.ReadFile(path)
	ts.Check(err)
	if diff := cmp.Diff(string(want), got); diff != "" {
		ts.Fatalf("%s: -want +got:\n%s", path, diff)
	}
}

// sameEachDay replaces paths, processes, times and rates. Columns are written anew,
// as far as they have become wider or narrower by that.
func sameEachDay(ts *testscript.TestScript, text string) string {
	for _, r := range []struct{ old, with string }{
		{regexp.QuoteMeta(filepath.Join(ts.Getenv("XDG_RUNTIME_DIR"))), "/run/user/1000"},
		{regexp.QuoteMeta(ts.Getenv("WORK")), "/home/ada"},
		{regexp.QuoteMeta(ownVersion()), "0.4.0"},
		{`\bexe \(pid \d+\)|\bengine \(pid \d+\)`, "python3 (pid 5120)"},
		{`, \d+ s, pid \d+`, ", 2 min, pid 4711"},
		{`in \d+(\.\d+)?m?s\b`, "in 18.4s"},
		{`now, [\d.]+ [KMG]?i?B/s`, "now, 1.9 GiB/s"},
		{`, [\d.]+ [KMG]?i?B/s`, ", 1.9 GiB/s"},
		{`(wcache_start_time_seconds\{[^}]*\}) \S+`, "$1 1796000000.5"},
		{`(wcache_load_seconds_total\{[^}]*\}) \S+`, "$1 18.4"},
	} {
		text = regexp.MustCompile(r.old).ReplaceAllString(text, r.with)
	}
	var lines []string
	for line := range strings.Lines(text) {
		lines = append(lines, strings.TrimRight(line, " \n"))
	}
	return strings.Join(lines, "\n") + "\n"
}
