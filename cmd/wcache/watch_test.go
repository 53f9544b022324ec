// SPDX-FileCopyrightText: The wcache authors
// SPDX-License-Identifier: MIT

package main

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/wcache/wcache/control"
)

// numbered is a daemon that answers a number of status requests, counts them as hits, and
// then ends.
func numbered(t *testing.T, times int) (socket string) {
	t.Helper()
	l, socket := listenControl(t)
	go func() {
		for n := range times {
			c, err := l.Accept()
			if err != nil {
				return
			}
			if n == times-1 {
				_ = l.Close() // gone before the last answer, so that no client connects in between
			}
			if _, err := bufio.NewReader(c).ReadString('\n'); err == nil {
				_ = control.Write(c, control.Reply{Final: true, Status: &control.Status{
					Schema: control.Schema, Instance: "host", State: "serving", PID: 7, Since: time.Now(), Socket: "/s",
					Version: control.Version{Daemon: ownVersion()}, Device: control.Device{Kind: "host"},
					Problems: []string{}, Entries: []control.Entry{}, Counts: control.Counts{Hits: int64(n)},
				}})
			}
			_ = c.Close()
		}
	}()
	return socket
}

// sinceStart is how long a daemon has run, which says how busy the machine is.
var sinceStart = regexp.MustCompile(`(serving(?:\x1b\[0m)?, )\d+ s`)

// fresh is a text in which each daemon has just been started.
func fresh(text string) string { return sinceStart.ReplaceAllString(text, "${1}0 s") }

// block is one status of the numbered daemon.
func block(n int) string {
	return fmt.Sprintf("wcache@host   serving, 0 s, pid 7   wcache %s\nsocket        /s\nmemory        0 B cached in host memory\n"+
		"requests      %d from memory, 0 loaded, 0 failed, 0 refused\n", ownVersion(), n)
}

func TestWatchPlain(t *testing.T) {
	var out, err bytes.Buffer
	a := app{out: &out, err: &err, env: noEnv, socket: numbered(t, 3)}
	if code := a.exitOf(a.watch(t.Context(), time.Millisecond)); code != exitNotRunning {
		t.Errorf("exit status %d", code)
	}
	if diff := cmp.Diff(block(0)+"\n"+block(1)+"\n"+block(2), fresh(out.String())); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
	if want := "wcache: " + a.socket + " has ended\n"; err.String() != want {
		t.Errorf("got %q, want %q", &err, want)
	}
}

// In JSON each status is a line.
func TestWatchJSON(t *testing.T) {
	var out bytes.Buffer
	a := app{out: &out, err: io.Discard, env: noEnv, socket: numbered(t, 2), json: true}
	_ = a.exitOf(a.watch(t.Context(), time.Millisecond))
	var hits []int64
	for line := range strings.Lines(out.String()) {
		var s control.Status
		if err := json.Unmarshal([]byte(line), &s); err != nil {
			t.Fatal(err)
		}
		hits = append(hits, s.Counts.Hits)
	}
	if diff := cmp.Diff([]int64{0, 1}, hits); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
}

// On a terminal the status is drawn in place, in colours, until the user types q; then the
// terminal is reset, and the last status stays readable.
func TestWatchTerminal(t *testing.T) {
	master, slave := terminalPair(t)
	before, err := unix.IoctlGetTermios(int(slave.Fd()), unix.TCGETS)
	if err != nil {
		t.Fatal(err)
	}
	a := app{in: slave, out: slave, err: io.Discard, env: noEnv, socket: numbered(t, 10)}
	done := make(chan error, 1)
	go func() { done <- a.watch(t.Context(), time.Hour) }()
	shown := bufio.NewReader(master)
	page := readUntil(t, shown, restOfPage)
	if _, err := master.WriteString("xq"); err != nil {
		t.Fatal(err)
	}
	if err := <-done; err != nil {
		t.Error(err)
	}
	rest := readUntil(t, shown, "refused\r\n")
	after, err := unix.IoctlGetTermios(int(slave.Fd()), unix.TCGETS)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(before, after); diff != "" {
		t.Errorf("the terminal is changed:\n%s", diff)
	}
	colours := strings.NewReplacer("wcache@host", "\x1b[1mwcache@host\x1b[0m", "serving", "\x1b[32mserving\x1b[0m").Replace(block(0))
	drawn := enterScreen + topLeft + strings.ReplaceAll(colours, "\n", restOfLine+"\r\n") + restOfPage
	if diff := cmp.Diff(drawn, fresh(page)); diff != "" {
		t.Errorf("page: -want +got:\n%s", diff)
	}
	if diff := cmp.Diff(leaveScreen+strings.ReplaceAll(colours, "\n", "\r\n"), fresh(rest)); diff != "" {
		t.Errorf("afterwards: -want +got:\n%s", diff)
	}
}

func readUntil(t *testing.T, r *bufio.Reader, end string) string {
	t.Helper()
	var b strings.Builder
	for !strings.HasSuffix(b.String(), end) {
		c, err := r.ReadByte()
		if err != nil {
			t.Fatalf("after %q: %v", &b, err)
		}
		b.WriteByte(c)
	}
	return b.String()
}

// Colours are for terminals that can show them and users who want them.
func TestPalette(t *testing.T) {
	_, slave := terminalPair(t)
	for _, tt := range []struct {
		out  io.Writer
		env  map[string]string
		want palette
	}{
		{slave, nil, true},
		{slave, map[string]string{"NO_COLOR": "1"}, false},
		{slave, map[string]string{"TERM": "dumb"}, false},
		{new(bytes.Buffer), nil, false},
	} {
		a := app{env: func(name string) string { return tt.env[name] }}
		if got := a.palette(tt.out); got != tt.want {
			t.Errorf("%T with %v: %v", tt.out, tt.env, got)
		}
	}
}

// A page has as many rows as the terminal.
func TestPage(t *testing.T) {
	for rows, want := range map[int]string{0: "a\nb\nc\n", 1: "a\nb\nc\n", 3: "a\nb\n", 4: "a\nb\nc\n"} {
		got := page("a\nb\nc\n", rows)
		got = regexp.MustCompile(`\r|\x1b\[[HKJ]`).ReplaceAllString(got, "")
		if got != want {
			t.Errorf("%d rows: got %q, want %q", rows, got, want)
		}
	}
}

func noEnv(string) string { return "" }
