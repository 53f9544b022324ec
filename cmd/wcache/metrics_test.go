// SPDX-FileCopyrightText: The wcache authors
// SPDX-License-Identifier: MIT

package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/wcache/wcache/control"
	"github.com/wcache/wcache/device"
)

// checkMetrics holds a text against the format of Prometheus, 0.0.4, and what
// "promtool check metrics" asks of names: each metric once, with a help and a
// type before its samples, no sample twice, counters named _total.
func checkMetrics(text string) error {
	comment := regexp.MustCompile(`^# (HELP|TYPE) ([a-z_]+) (\S.*)$`)
	sample := regexp.MustCompile(`^([a-z_]+)\{((?:[a-z_]+="(?:[^"\\\n]|\\["\\n])*",?)+)\} (\S+)$`)
	help, kind, seen := map[string]bool{}, map[string]string{}, map[string]bool{}
	last := ""
	for n, line := range strings.Split(strings.TrimSuffix(text, "\n"), "\n") {
		wrong := func(what string) error { return fmt.Errorf("line %d: %s: %s", n+1, what, line) }
		if m := comment.FindStringSubmatch(line); m != nil {
			switch name := m[2]; {
			case m[1] == "HELP" && help[name], m[1] == "TYPE" && kind[name] != "":
				return wrong("twice")
			case m[1] == "HELP":
				help[name] = true
			case !slices.Contains([]string{"counter", "gauge"}, m[3]):
				return wrong("unknown type")
			case strings.HasSuffix(name, "_total") != (m[3] == "counter"):
				return wrong("counters, and they alone, end with _total")
			default:
				kind[name], last = m[3], name
			}
			continue
		}
		m := sample.FindStringSubmatch(line)
		switch {
		case m == nil:
			return wrong("no sample")
		case m[1] != last || !help[last]:
			return wrong("no help and type before it")
		case seen[m[1]+m[2]]:
			return wrong("a second time")
		case !regexp.MustCompile(`^cache="[^"]+",user="[^"]+"`).MatchString(m[2]):
			return wrong("of no instance and user")
		}
		seen[m[1]+m[2]] = true
		if _, err := strconv.ParseFloat(m[3], 64); err != nil {
			return wrong("no number")
		}
	}
	return nil
}

func TestMetrics(t *testing.T) {
	engine := control.Engine{PID: 5120}
	s := control.Status{
		Instance: "0", Since: time.UnixMilli(1_796_000_000_500), Version: control.Version{Daemon: `0.4 "x"\`}, Device: control.Device{Kind: "GPU-1"},
		Problems: []string{"a"}, Findings: []control.Problem{{Code: control.GPUUnusable, Text: "a"}}, Bytes: 61_096_329_216,
		Counts:  control.Counts{Hits: 4, Loads: 3, Failed: 2, LoadedBytes: 1 << 40, LoadSeconds: 18.5, Misses: everyReason(map[string]int64{"new": 3})},
		Entries: []control.Entry{{State: "ready", Engines: []control.Engine{engine, {PID: 7}}}, {State: "loading", Waiting: 2, Engines: []control.Engine{engine}}},
		GPU:     &device.GPU{UUID: "GPU-1", Name: "NVIDIA H200", Driver: "580.1", State: "ok", Total: 100, Used: 60, Free: 40, Unowned: 50, Processes: []device.GPUProcess{{}}},
	}
	var out bytes.Buffer
	a := &app{out: &out, gpu: "0"}
	if err := a.writeMetrics(metricsOf(s)); err != nil {
		t.Fatal(err)
	}
	if err := checkMetrics(out.String()); err != nil {
		t.Error(err)
	}
	var samples []string
	for line := range strings.Lines(out.String()) {
		if !strings.HasPrefix(line, "#") {
			samples = append(samples, strings.TrimSuffix(strings.ReplaceAll(line, fmt.Sprintf(`cache="0",user="%s"`, a.userName()), ""), "\n"))
		}
	}
	want := []string{
		`wcache_up{} 1`,
		`wcache_info{,version="0.4 \"x\"\\",device="GPU-1"} 1`,
		`wcache_start_time_seconds{} 1796000000.5`,
		`wcache_problems{} 1`,
		`wcache_hits_total{} 4`,
		`wcache_misses_total{,reason="changed"} 0`,
		`wcache_misses_total{,reason="failed"} 0`,
		`wcache_misses_total{,reason="loading"} 0`,
		`wcache_misses_total{,reason="new"} 3`,
		`wcache_misses_total{,reason="options"} 0`,
		`wcache_misses_total{,reason="refused"} 0`,
		`wcache_loads_total{} 3`,
		`wcache_load_failures_total{} 2`,
		`wcache_load_seconds_total{} 18.5`,
		`wcache_loaded_bytes_total{} 1099511627776`,
		`wcache_held_bytes{} 61096329216`,
		`wcache_entries{,state="leaving"} 0`,
		`wcache_entries{,state="loading"} 1`,
		`wcache_entries{,state="ready"} 1`,
		`wcache_attached_engines{} 2`,
		`wcache_waiting_requests{} 2`,
		`wcache_findings{,code="config-broken"} 0`,
		`wcache_findings{,code="device-missing"} 0`,
		`wcache_findings{,code="entry-not-kept"} 0`,
		`wcache_findings{,code="file-damaged"} 0`,
		`wcache_findings{,code="gpu-health-unknown"} 0`,
		`wcache_findings{,code="gpu-unusable"} 1`,
		`wcache_findings{,code="log-not-read"} 0`,
		`wcache_findings{,code="manifest-not-written"} 0`,
		`wcache_findings{,code="root-not-searched"} 0`,
		`wcache_findings{,code="socket-wrong"} 0`,
		`wcache_gpu_info{,uuid="GPU-1",name="NVIDIA H200",driver="580.1"} 1`,
		`wcache_gpu_ok{} 1`,
		`wcache_gpu_memory_bytes{,state="free"} 40`,
		`wcache_gpu_memory_bytes{,state="used"} 60`,
		`wcache_gpu_memory_size_bytes{} 100`,
		`wcache_gpu_memory_unowned_bytes{} 50`,
		`wcache_gpu_processes{} 1`,
		`wcache_gpu_uncorrected_memory_errors{} 0`,
	}
	if diff := cmp.Diff(want, samples); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
}

// A series is the same whether the daemon answers or not, by whatever it was asked for: T8.
// Another user's is another one: T7.
func TestMetricsIdentity(t *testing.T) {
	up := regexp.MustCompile(`(?m)^wcache_up(\{.*\}) ([01])$`)
	series := func(args ...string) (labels, value string) {
		t.Helper()
		said, exit := command(t.Context(), append(args, "status", "--prometheus")...)
		m := up.FindStringSubmatch(said)
		if exit != 0 || m == nil {
			t.Fatalf("exit %d\n%s", exit, said)
		}
		return m[1], m[2]
	}
	for _, instance := range []string{"host", "0", "something else"} { // as the daemon calls itself
		line, err := json.Marshal(control.Reply{Final: true, Status: &control.Status{Instance: instance}})
		if err != nil {
			t.Fatal(err)
		}
		socket := serveOne(t, string(line))
		running, one := series("--socket", socket)
		absent, zero := series("--socket", socket) // which answers once
		want := fmt.Sprintf(`{cache="s",user=%q}`, (&app{}).userName())
		if running != want || absent != want || one != "1" || zero != "0" {
			t.Errorf("%s: up %s %s, down %s %s, want %s", instance, running, one, absent, zero, want)
		}
	}
	if labels, value := series("--gpu", "7"); labels != fmt.Sprintf(`{cache="7",user=%q}`, (&app{}).userName()) || value != "0" {
		t.Errorf("by its number: %s %s", labels, value)
	}
}

// The check tells what isn't the format.
func TestCheckMetrics(t *testing.T) {
	for _, text := range []string{
		"wcache_up{cache=\"0\",user=\"ada\"} 1\n",
		"# HELP a b\n# TYPE a counter\na{cache=\"0\",user=\"ada\"} 1\n",
		"# HELP a b\n# TYPE a gauge\na{cache=\"0\",user=\"ada\"} 1\na{cache=\"0\",user=\"ada\"} 1\n",
		"# HELP a b\n# TYPE a gauge\na{cache=\"0\",user=\"ada\"} one\n",
		"# HELP a b\n# TYPE a gauge\na{cache=\"0\"} 1\n",
		"# HELP a b\n# TYPE a gauge\na{} 1\n",
		"# HELP a b\n# HELP a b\n",
	} {
		if checkMetrics(text) == nil {
			t.Errorf("accepted: %q", text)
		}
	}
}
