// SPDX-FileCopyrightText: The wcache authors
// SPDX-License-Identifier: MIT

package main

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/wcache/wcache/cache"
	"github.com/wcache/wcache/control"
	"github.com/wcache/wcache/device"
	"github.com/wcache/wcache/internal/visible"
)

// metric is a metric in the text format of Prometheus, with its help.
// https://prometheus.io/docs/instrumenting/exposition_formats/
type metric struct {
	name, kind, help string
	samples          []sample
}

type sample struct {
	labels []string // alternating names and values, besides the instance and the user
	value  float64
}

// metrics writes the status for node_exporter's textfile collector. It is not an error if
// the instance doesn't run.
func (a *app) metrics(ctx context.Context) error {
	s, err := a.ownStatus(ctx)
	var no *control.Error
	switch {
	case err == nil:
		return a.writeMetrics(metricsOf(*s))
	case ctx.Err() != nil:
		return err
	case !errors.As(err, &no) || no.Code != control.CodeNotRunning:
		say(a.err, "wcache: %s\n", a.describe(err).Message) // the daemon exists, but isn't up
	}
	return a.writeMetrics([]metric{up(0)})
}

func up(value float64) metric {
	return metric{"wcache_up", "gauge", "1 if the daemon answers, 0 if it doesn't run or is stuck.", []sample{{nil, value}}}
}

// one is a metric with one sample.
func one(name, kind, help string, value float64) metric {
	return metric{name, kind, help, []sample{{nil, value}}}
}

// metricsOf gives all metrics of a running daemon. Names and labels are only ever
// added to.
func metricsOf(s control.Status) []metric {
	c := s.Counts
	states := map[string]float64{string(cache.Loading): 0, string(cache.Ready): 0, string(cache.Leaving): 0}
	engines := make(map[int]bool)
	waiting := 0
	for _, e := range s.Entries {
		states[e.State]++
		waiting += e.Waiting
		for _, x := range e.Engines {
			engines[x.PID] = true
		}
	}
	misses := metric{name: "wcache_misses_total", kind: "counter", help: "Requests for weights that were not answered from memory."}
	for _, reason := range slices.Sorted(maps.Keys(c.Misses)) {
		misses.samples = append(misses.samples, sample{[]string{"reason", reason}, float64(c.Misses[reason])})
	}
	entries := metric{name: "wcache_entries", kind: "gauge", help: "Entries, each one rank of a model."}
	for _, state := range slices.Sorted(maps.Keys(states)) {
		entries.samples = append(entries.samples, sample{[]string{"state", state}, states[state]})
	}
	list := []metric{
		up(1),
		{"wcache_info", "gauge", "1, with the daemon's version and where it keeps weights.", []sample{{[]string{"version", s.Version.Daemon, "device", s.Device.Kind}, 1}}},
		one("wcache_start_time_seconds", "gauge", "When the daemon started, in seconds since 1970.", float64(s.Since.UnixMilli())/1000),
		one("wcache_problems", "gauge", "What is wrong now, such as a broken configuration; wcache status says it.", float64(len(s.Problems))),
		one("wcache_hits_total", "counter", "Requests for weights that were answered from memory.", float64(c.Hits)),
		misses,
		one("wcache_loads_total", "counter", "Loads that ended well.", float64(c.Loads)),
		one("wcache_load_failures_total", "counter", "Loads that did not.", float64(c.Failed)),
		one("wcache_load_seconds_total", "counter", "Time that loads took which ended well, in seconds.", c.LoadSeconds),
		one("wcache_loaded_bytes_total", "counter", "Bytes that those loads have filled.", float64(c.LoadedBytes)),
		one("wcache_held_bytes", "gauge", "Bytes on the device, of all entries.", float64(s.Bytes)),
		entries,
		one("wcache_attached_engines", "gauge", "Processes that may have mapped an entry.", float64(len(engines))),
		one("wcache_waiting_requests", "gauge", "Requests that wait for a load.", float64(waiting)),
	}
	if s.Findings != nil { // an older daemon says nothing of codes
		list = append(list, findings(s.Findings))
	}
	if g := s.GPU; g != nil {
		list = append(list, gpuMetrics(*g)...)
	}
	return list
}

// findings counts problems by code, with 0 for those that are not there.
func findings(list []control.Problem) metric {
	m := metric{name: "wcache_findings", kind: "gauge", help: "Problems by their code, as in wcache status --json; wcache(1) lists the codes."}
	found := make(map[string]float64)
	for _, code := range control.ProblemCodes() {
		found[string(code)] = 0
	}
	for _, p := range list { // of a newer daemon also codes that are not known here
		found[string(p.Code)]++
	}
	for _, code := range slices.Sorted(maps.Keys(found)) {
		m.samples = append(m.samples, sample{[]string{"code", code}, found[code]})
	}
	return m
}

func gpuMetrics(g device.GPU) []metric {
	ok := 0.0
	if g.State == "ok" {
		ok = 1
	}
	list := []metric{
		{"wcache_gpu_info", "gauge", "1, with what the GPU is.", []sample{{[]string{"uuid", g.UUID, "name", g.Name, "driver", g.Driver}, 1}}},
		one("wcache_gpu_ok", "gauge", "1 if the driver says that the GPU is well.", ok),
	}
	if g.Total > 0 {
		list = append(list,
			metric{"wcache_gpu_memory_bytes", "gauge", "Memory of the GPU, of all programs.", []sample{
				{[]string{"state", "free"}, float64(g.Free)}, {[]string{"state", "used"}, float64(g.Used)},
			}},
			one("wcache_gpu_memory_size_bytes", "gauge", "Memory that the GPU has.", float64(g.Total)),
			one("wcache_gpu_memory_unowned_bytes", "gauge", "The part of what is used that is no process's: what is held for engines, and the driver's own.", float64(g.Unowned)),
			one("wcache_gpu_processes", "gauge", "Processes that use the GPU.", float64(len(g.Processes))),
		)
	}
	if g.Uncorrected >= 0 {
		list = append(list, one("wcache_gpu_uncorrected_memory_errors", "gauge", "Errors of the GPU's memory that were not corrected, since the driver was loaded.", float64(g.Uncorrected)))
	}
	return list
}

// writeMetrics writes the instance's metrics with one write: a reader of half a file would
// see counters disappear. The labels of a series are the same whether the daemon runs or
// not, so they come from the options; another user's series has other labels.
func (a *app) writeMetrics(list []metric) error {
	var b strings.Builder
	for _, m := range list {
		fmt.Fprintf(&b, "# HELP %s %s\n# TYPE %s %s\n", m.name, m.help, m.name, m.kind)
		for _, s := range m.samples {
			labels := append([]string{"cache", a.instance(), "user", a.userName()}, s.labels...)
			var pairs []string
			for i := 0; i < len(labels); i += 2 {
				pairs = append(pairs, labels[i]+`="`+escape.Replace(visible.Text(labels[i+1]))+`"`)
			}
			fmt.Fprintf(&b, "%s{%s} %s\n", m.name, strings.Join(pairs, ","), strconv.FormatFloat(s.value, 'f', -1, 64))
		}
	}
	if _, err := a.out.Write([]byte(b.String())); err != nil {
		return fmt.Errorf("write metrics: %w", err)
	}
	return nil
}

// escape is for the values of labels, whose line breaks are already replaced.
var escape = strings.NewReplacer(`\`, `\\`, `"`, `\"`)
