// SPDX-FileCopyrightText: The wcache authors
// SPDX-License-Identifier: MIT

package main

import (
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/wcache/wcache/control"
	"github.com/wcache/wcache/device"
	"github.com/wcache/wcache/device/place"
)

// screen writes a status for people.
type screen struct {
	out io.Writer
	palette
	now   time.Time
	notes []string
}

// mostProcesses is how many processes of a GPU are named, the largest first.
const mostProcesses = 4

func (x screen) status(s control.Status) {
	var head table
	head.add(strong.cell("wcache@"+s.Instance), append(good.cell(s.State),
		plain.cell(fmt.Sprintf(", %s, pid %d%swcache %s", period(x.now.Sub(s.Since)), s.PID, gap, s.Version.Daemon))...))
	head.texts(plain, "socket", s.Socket)
	if s.GPU != nil {
		head.add(plain.cell("gpu"), x.gpu(*s.GPU))
	}
	head.texts(plain, "memory", memory(s))
	if s.GPU != nil && len(s.GPU.Processes) > 0 {
		head.texts(plain, "processes", processes(s.GPU.Processes))
	}
	head.texts(plain, "requests", requests(s.Counts))
	head.write(x.out, x.palette)
	if len(s.Entries) > 0 {
		say(x.out, "\n")
		x.entries(s.Entries)
	}
	notes := x.notes
	for _, e := range s.Entries {
		if p := e.Progress; p != nil && p.Waiting != "" {
			notes = append(notes, fmt.Sprintf("%.12s waits for %s", e.Key, p.Waiting))
		}
	}
	if len(notes) > 0 {
		say(x.out, "\n")
	}
	for _, n := range notes {
		say(x.out, "%s\n", x.paint(uneasy, "# "+n))
	}
}

func (x screen) entries(list []control.Entry) {
	var t table
	t.texts(faint, "KEY", "MODEL", "SURE BY", "RANK", "SIZE", "STATE", "ENGINES", "USED")
	styles := map[string]style{"ready": good, "loading": uneasy, "leaving": faint}
	for _, e := range list {
		t.add(plain.cell(fmt.Sprintf("%.12s", e.Key)), plain.cell(modelName(e.Model)), faint.cell(sureBy(e)), plain.cell(rank(e.Fingerprint)), plain.cell(size(e.Bytes)),
			styles[e.State].cell(state(e)), plain.cell(users(e)), plain.cell(used(e, x.now)))
	}
	t.write(x.out, x.palette)
}

// sureBy says why it was certain which directory the entry is for.
func sureBy(e control.Entry) string {
	if e.Sure == "" {
		return "-" // an older version doesn't say
	}
	return e.Sure
}

// gpu describes a GPU's state.
func (x screen) gpu(g device.GPU) cell {
	var parts []string
	if g.Index >= 0 {
		parts = append(parts, fmt.Sprint(g.Index))
	}
	for _, p := range []string{g.Name, g.UUID} {
		if p != "" {
			parts = append(parts, p)
		}
	}
	if g.Driver != "" {
		parts = append(parts, "driver "+g.Driver)
	}
	text := strings.Join(parts, gap)
	if g.State == "" || g.State == "ok" {
		return plain.cell(text)
	}
	return append(plain.cell(text+gap), bad.cell(g.State)...) // a problem below says why
}

// memory describes how much is held and, for a GPU, how full it is.
func memory(s control.Status) string {
	switch g := s.GPU; {
	case s.Device.Kind == place.Host:
		return size(s.Bytes) + " cached in host memory"
	case g == nil || g.Total == 0:
		return size(s.Bytes) + " cached on the GPU"
	default:
		return fmt.Sprintf("%s cached, %s used on the GPU, %s free of %s", size(s.Bytes), size(g.Used), size(g.Free), size(g.Total))
	}
}

// processes describes which other processes use a GPU.
func processes(list []device.GPUProcess) string {
	var parts []string
	for _, p := range list[:min(len(list), mostProcesses)] {
		text := fmt.Sprintf("pid %d", p.PID)
		if p.Comm != "" {
			text = fmt.Sprintf("%s (pid %d)", p.Comm, p.PID)
		}
		if p.Bytes >= 0 {
			text += " " + size(p.Bytes)
		}
		parts = append(parts, text)
	}
	if n := len(list) - mostProcesses; n > 0 {
		parts = append(parts, fmt.Sprintf("%d more", n))
	}
	return strings.Join(parts, ", ")
}

// requests describes the counts.
func requests(c control.Counts) string {
	return fmt.Sprintf("%d from memory, %d loaded, %d failed, %d refused", c.Hits, c.Loads, c.Failed, c.Refused)
}
