// SPDX-FileCopyrightText: The wcache authors
// SPDX-License-Identifier: MIT

package main

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/wcache/wcache/control"
	"github.com/wcache/wcache/fingerprint"
)

func TestPrintStatus(t *testing.T) {
	now := time.Date(2026, 11, 29, 14, 45, 0, 0, time.UTC)
	key, err := fingerprint.NewKey([]fingerprint.Field{
		{Name: "tp_size", Value: int64(2)}, {Name: "tp_rank", Value: int64(1)},
		{Name: "pp_size", Value: int64(2)}, {Name: "pp_rank", Value: int64(0)},
	})
	if err != nil {
		t.Fatal(err)
	}
	engine := []control.Engine{{PID: 5120, Comm: "python3", Since: now}}
	s := control.Status{
		Schema: control.Schema, Instance: "host", State: "serving", PID: 4711, Since: now.Add(-134 * time.Minute),
		Version: control.Version{Client: "0.3.1", Daemon: "0.3.0"}, Restart: control.RestartKeeps, Socket: "/run/user/1000/vllm_weight_cache/host.sock",
		Device: control.Device{Kind: "host"}, Bytes: 79 << 30, Counts: control.Counts{Hits: 4, Loads: 3, Failed: 2, Refused: 1},
		Problems: []string{"read configuration: /etc/wcache/wcache.toml:3: unknown key \"bugdet\""},
		Entries: []control.Entry{
			{Key: strings.Repeat("7c", 32), Model: "/models/Qwen3-30B-A3B", Sure: "engine", State: "ready", Bytes: 57 << 30, Pinned: true, Engines: engine, Used: now.Add(-time.Second)},
			{Key: strings.Repeat("b0", 32), Model: "/models/bge-m3", State: "leaving", Bytes: 1 << 30, Used: now.Add(-41 * time.Minute)},
			{Key: strings.Repeat("e9", 32), Model: "/models/Llama-3.1-8B", Sure: "pin", State: "loading", Bytes: 15 << 30, Used: now, Fingerprint: key,
				Progress: &control.Progress{Done: 62 << 30, Total: 100 << 30, Seconds: 31}},
		},
	}
	var out bytes.Buffer
	a := app{env: func(string) string { return "" }}
	s.Version.Client = "0.3.1"
	screen{out: &out, now: now, notes: a.notes(s)}.status(s)
	want := `
wcache@host   serving, 2 h 14 min, pid 4711   wcache 0.3.0
socket        /run/user/1000/vllm_weight_cache/host.sock
memory        79.0 GiB cached in host memory
requests      4 from memory, 3 loaded, 2 failed, 1 refused

KEY            MODEL           SURE BY   RANK            SIZE       STATE           ENGINES   USED
7c7c7c7c7c7c   Qwen3-30B-A3B   engine    tp 0/1          57.0 GiB   ready, pinned   1         now
b0b0b0b0b0b0   bge-m3          -         tp 0/1          1.0 GiB    leaving         0         41 min ago
e9e9e9e9e9e9   Llama-3.1-8B    pin       tp 1/2 pp 0/2   15.0 GiB   loading 62 %    0         now, 2.0 GiB/s

# read configuration: /etc/wcache/wcache.toml:3: unknown key "bugdet"
# daemon 0.3.0, client 0.3.1: systemctl --user restart wcache@host.service runs the version that is installed and keeps what is held
`[1:]
	if diff := cmp.Diff(want, out.String()); diff != "" {
		t.Errorf("status (-want +got):\n%s", diff)
	}
}

func TestWords(t *testing.T) {
	for _, tt := range []struct{ got, want string }{
		{size(0), "0 B"}, {size(999), "999 B"}, {size(1000), "1.0 KiB"}, {size(1 << 20), "1.0 MiB"}, {size(999 << 20), "999.0 MiB"},
		{size(1 << 40), "1.0 TiB"}, {size(1 << 60), "1048576.0 TiB"},
		{period(0), "0 s"}, {period(59 * time.Second), "59 s"}, {period(time.Minute), "1 min"}, {period(61 * time.Minute), "1 h 1 min"},
		{period(49 * time.Hour), "2 days"},
		{word(nil), "None"}, {word(true), "True"}, {word(false), "False"}, {word(int64(3)), "3"},
		{word(fingerprint.Tuple{"a", int64(1), fingerprint.Tuple{}}), "(a, 1, ())"},
	} {
		if tt.got != tt.want {
			t.Errorf("got %q, want %q", tt.got, tt.want)
		}
	}
}

// Each advice to restart a daemon says what happens to the held weights.
func TestRenewal(t *testing.T) {
	const restart = "systemctl --user restart wcache@0.service runs the version that is installed"
	for how, want := range map[string]string{
		control.RestartKeeps:     restart + " and keeps what is held",
		control.RestartFrees:     restart + " and frees what is held",
		control.RestartUnmanaged: "no service manager runs the daemon: end it and start it again, which frees what is held",
		"":                       restart + "; it keeps what is held, unless that is by legacy handles",
	} {
		if got := renewal(control.Status{Instance: "0", Restart: how}); got != want {
			t.Errorf("%q: got %q, want %q", how, got, want)
		}
	}
}

// Progress is drawn only on a terminal; the requested data goes to standard output in any
// case.
func TestWarmProgress(t *testing.T) {
	const progress = `{"progress":{"done":%d,"total":2147483648,"seconds":2}}`
	lines := []string{
		fmt.Sprintf(progress, 0), fmt.Sprintf(progress, 1<<30),
		`{"final":true,"entry":{"key":"` + strings.Repeat("7c", 32) + `","model":"/models/m","state":"ready","bytes":2147483648,"load_seconds":4}}`,
	}
	const line = "7c7c7c7c7c7c   /models/m   2.0 GiB in 4.0 s, 512.0 MiB/s\n"
	const bars = "\rm [..............................]   0 % of 2.0 GiB, 0 B/s\x1b[K" +
		"\rm [###############...............]  50 % of 2.0 GiB, 512.0 MiB/s\x1b[K" +
		"\r\x1b[K"
	t.Run("terminal", func(t *testing.T) {
		master, slave := terminalPair(t)
		var out bytes.Buffer
		a := app{out: &out, err: slave, env: func(string) string { return "" }}
		if code := a.execute(t.Context(), []string{"--socket", serveOne(t, lines...), "warm", "/models/m"}); code != 0 {
			t.Errorf("exit status %d", code)
		}
		got := make([]byte, len(bars))
		if _, err := io.ReadFull(master, got); err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(bars, string(got)); diff != "" {
			t.Errorf("terminal (-want +got):\n%s", diff)
		}
		if out.String() != line {
			t.Errorf("got %q, want %q", &out, line)
		}
	})
	t.Run("file", func(t *testing.T) {
		null, err := os.OpenFile(os.DevNull, os.O_WRONLY, 0)
		if err != nil {
			t.Fatal(err)
		}
		defer null.Close()
		for _, w := range []io.Writer{new(bytes.Buffer), null} {
			var out bytes.Buffer
			a := app{out: &out, err: w, env: func(string) string { return "" }}
			if code := a.execute(t.Context(), []string{"--socket", serveOne(t, lines...), "warm", "/models/m"}); code != 0 {
				t.Errorf("exit status %d", code)
			}
			if b, ok := w.(*bytes.Buffer); ok && b.Len() > 0 {
				t.Errorf("standard error has %q", b)
			}
			if out.String() != line {
				t.Errorf("got %q, want %q", &out, line)
			}
		}
	})
}
