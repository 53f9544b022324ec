// SPDX-FileCopyrightText: The wcache authors
// SPDX-License-Identifier: MIT

package main

import (
	"errors"
	"fmt"
	"maps"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"github.com/google/go-cmp/cmp"
	"github.com/rogpeppe/go-internal/testscript"
	"golang.org/x/sys/unix"

	"github.com/wcache/wcache/control/schematest"
)

// untouched SOCKET COMMAND... runs a command while a socket is open on which no process
// accepts, and fails if a client connects to it.
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
	f, err := l.File()
	ts.Check(err)
	defer f.Close()
	waits, err := unix.Poll([]unix.PollFd{{Fd: int32(f.Fd()), Events: unix.POLLIN}}, 0)
	ts.Check(err)
	if waits > 0 {
		ts.Fatalf("somebody has connected")
	}
}

// valid FILE checks a status in JSON against its schema.
func valid(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 1 {
		ts.Fatalf("usage: valid FILE")
	}
	schema, err := schematest.Read(filepath.Join(ts.Getenv("CONTROL"), "status.schema.json"))
	ts.Check(err)
	ts.Check(schematest.Validate(schema, []byte(ts.ReadFile(args[0]))))
}

// metricsCommand FILE checks metrics against their format.
func metricsCommand(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 1 {
		ts.Fatalf("usage: metrics FILE")
	}
	ts.Check(checkMetrics(ts.ReadFile(args[0])))
}

// screenCommand NAME COMMAND compares the last output with a screen.
func screenCommand(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 2 {
		ts.Fatalf("usage: screen NAME COMMAND")
	}
	got := "$ " + args[1] + "\n" + ts.ReadFile("stdout") + ts.ReadFile("stderr")
	ts.Check(compareScreen(ts.Getenv("SCREENS"), args[0], sameEachDay(got, map[string]string{
		ts.Getenv("XDG_RUNTIME_DIR"): "/run/user/1000", ts.Getenv("WORK"): "/home/ada",
	})))
}

// compareScreen compares a screen, which begins with the typed command, with the file in
// docs/screens; -update writes that file.
func compareScreen(folder, name, got string) error {
	path := filepath.Join(folder, name+".txt")
	if *update {
		if err := errors.Join(os.MkdirAll(folder, 0o755), os.WriteFile(path, []byte(got), 0o644)); err != nil {
			return err
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	if diff := cmp.Diff(string(want), got); diff != "" {
		return fmt.Errorf("%s: -want +got:\n%s", path, diff)
	}
	return nil
}

// sameEachDay replaces paths, processes, times and rates by those of the stored screens.
func sameEachDay(text string, replace map[string]string) string {
	// The longest first: one path may lie in another.
	for _, old := range slices.SortedFunc(maps.Keys(replace), func(a, b string) int { return len(b) - len(a) }) {
		text = strings.ReplaceAll(text, old, replace[old])
	}
	for _, r := range []struct{ old, with string }{
		{regexp.QuoteMeta(ownVersion()), "0.4.0"},
		{`\b(exe|engine) \(pid \d+\)`, "python3 (pid 5120)"},
		{`(python3 \(pid 5120\)) {2,}`, "$1   "}, // a column is as wide as the longest pid
		{`(BEFORE   ENGINE) +KEY`, "$1               KEY"},
		{`, \d+ (s|min), pid \d+`, ", 2 min, pid 4711"},
		{`process \d+, can`, "process 4711, can"},
		{`in \d+(\.\d+)? m?s\b`, "in 18.4 s"},
		{`(equal|differs), \d+(\.\d+)? m?s\b`, "$1, 18.4 s"},
		{`now, [\d.]+ [KMG]?i?B/s`, "now, 1.9 GiB/s"},
		{`, [\d.]+ [KMG]?i?B/s`, ", 1.9 GiB/s"},
		{`user="[^"]*"`, `user="ada"`},
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
