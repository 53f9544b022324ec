// SPDX-FileCopyrightText: The wcache authors
// SPDX-License-Identifier: MIT

package main

import (
	"cmp"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/wcache/wcache/control"
	"github.com/wcache/wcache/device"
	"github.com/wcache/wcache/explain"
	"github.com/wcache/wcache/fingerprint"
)

// rank describes a key's part of its model, such as "tp 1/2".
func rank(k fingerprint.Key) string {
	text := fmt.Sprintf("tp %d/%d", k.Int("tp_rank", 0), k.Int("tp_size", 1))
	if n := k.Int("pp_size", 1); n > 1 {
		text += fmt.Sprintf(" pp %d/%d", k.Int("pp_rank", 0), n)
	}
	if k.Bool("is_draft") {
		text += " draft"
	}
	return text
}

// modelName is a short name for a model directory: its last path element or, in a Hugging
// Face cache, the model's name and the first digits of its revision.
func modelName(dir string) string {
	id, ok := modelID(dir)
	if !ok {
		return filepath.Base(dir)
	}
	return fmt.Sprintf("%s @%.7s", id[strings.LastIndexByte(id, '/')+1:], filepath.Base(dir))
}

// modelID is the model id of a directory in a Hugging Face cache, such as
// models--owner--name/snapshots/revision.
func modelID(dir string) (string, bool) {
	snapshots := filepath.Dir(dir)
	id, ok := strings.CutPrefix(filepath.Base(filepath.Dir(snapshots)), "models--")
	return strings.Replace(id, "--", "/", 1), ok && filepath.Base(snapshots) == "snapshots"
}

func state(e control.Entry) string {
	switch p := e.Progress; {
	case p != nil && p.Waiting != "":
		return e.State + ", waiting"
	case p != nil && p.Total > 0:
		return fmt.Sprintf("%s %d %%", e.State, 100*p.Done/p.Total)
	}
	text := e.State
	if e.Pinned {
		text += ", pinned"
	}
	if e.Files != nil && len(e.Files.Damaged) > 0 {
		text += ", damaged"
	}
	return text
}

// users describes how many processes use an entry or wait for it.
func users(e control.Entry) string {
	switch n := len(e.Engines); {
	case e.Waiting == 0:
		return fmt.Sprint(n)
	case n == 0:
		return fmt.Sprintf("%d waiting", e.Waiting)
	default:
		return fmt.Sprintf("%d, %d waiting", n, e.Waiting)
	}
}

func used(e control.Entry, now time.Time) string {
	if p := e.Progress; p != nil && p.Seconds > 0 {
		return fmt.Sprintf("now, %s/s", size(int64(float64(p.Done)/p.Seconds)))
	}
	return ago(now.Sub(e.Used))
}

func ago(d time.Duration) string {
	if d >= time.Minute {
		return period(d) + " ago"
	}
	return "now"
}

// renewal says how to replace a daemon of another version with this one, and what happens
// to the held weights.
func renewal(s control.Status) string {
	restart := fmt.Sprintf("systemctl --user restart wcache@%s.service runs the version that is installed", s.Instance)
	switch s.Restart {
	case control.RestartKeeps:
		return restart + " and keeps what is held"
	case control.RestartFrees:
		return restart + " and frees what is held"
	case control.RestartUnmanaged:
		return "no service manager runs the daemon: end it and start it again, which frees what is held"
	}
	return restart + "; it keeps what is held, unless that is by legacy handles" // the daemon doesn't say
}

// size writes bytes with a unit that leaves one to four digits.
func size(bytes int64) string {
	n, unit := float64(bytes), "B"
	for _, u := range []string{"KiB", "MiB", "GiB", "TiB"} {
		if n < 1000 {
			break
		}
		n, unit = n/1024, u
	}
	if unit == "B" {
		return fmt.Sprintf("%d B", bytes)
	}
	return fmt.Sprintf("%.1f %s", n, unit)
}

// period writes a time span for people.
func period(d time.Duration) string {
	switch {
	case d < time.Minute:
		return fmt.Sprintf("%d s", int(d.Seconds()))
	case d < time.Hour:
		return fmt.Sprintf("%d min", int(d.Minutes()))
	case d < 48*time.Hour:
		return fmt.Sprintf("%d h %d min", int(d.Hours()), int(d.Minutes())%60)
	}
	return fmt.Sprintf("%d days", int(d.Hours())/24)
}

// seconds writes how long a load took.
func seconds(s float64) string {
	if s < 1 {
		return fmt.Sprintf("%.0f ms", s*1000)
	}
	return fmt.Sprintf("%.1f s", s)
}

// word writes a value as Python does, because engines' options are written that way.
func word(v any) string {
	switch v := v.(type) {
	case nil:
		return "None"
	case bool:
		if v {
			return "True"
		}
		return "False"
	case fingerprint.Tuple:
		var list []string
		for _, x := range v {
			list = append(list, word(x))
		}
		return "(" + strings.Join(list, ", ") + ")"
	}
	return fmt.Sprint(v)
}

// outcomes says what happened to a request, by its reason.
var outcomes = map[string]string{
	control.MissNew:     "was loaded: no such model was held",
	control.MissOptions: "was loaded: what was held has other options",
	control.MissLoading: "waited for a load that was under way",
	control.MissChanged: "was loaded again: the files have changed",
	control.MissRefused: "was refused: the engine loads by itself",
	control.MissFailed:  "failed, and may be asked for again",
}

func outcome(reason string) string {
	if text, ok := outcomes[reason]; ok {
		return text
	}
	return reason // of a newer daemon
}

// asker names the process that asked.
func asker(m control.Miss) string {
	name := m.Comm
	if name == "" {
		name = "an engine"
	}
	return fmt.Sprintf("%s (pid %d)", name, m.PID)
}

// told is the answer that the engine got.
func told(m control.Miss) string {
	if m.Field != "" && m.Message != "" {
		return m.Field + ": " + m.Message
	}
	return m.Message
}

// mostHolders is how many processes a message names.
const mostHolders = 8

// holders says which processes hold a GPU's memory, the largest first.
func holders(g device.GPU) string {
	var who []string
	list := slices.Clone(g.Processes)
	slices.SortStableFunc(list, func(a, b device.GPUProcess) int { return cmp.Compare(b.Bytes, a.Bytes) })
	for i, p := range list {
		if i == mostHolders {
			who = append(who, fmt.Sprintf("%d more", len(list)-i))
			break
		}
		name := p.Comm
		if name == "" {
			name = "a process"
		}
		text := fmt.Sprintf("%s (pid %d)", name, p.PID)
		if p.Bytes >= 0 {
			text += " " + size(p.Bytes)
		}
		who = append(who, text)
	}
	if g.Unowned > 0 {
		who = append(who, size(g.Unowned)+" of no process")
	}
	if len(who) == 0 {
		return ""
	}
	return fmt.Sprintf("%s of %s are used: %s", size(g.Used), size(g.Total), strings.Join(who, ", "))
}

// loaded says how wcache would load a key, or that it would not.
func loaded(l explain.Loading) string {
	if l.Refusal != "" {
		return "not loaded by wcache: " + l.Refusal
	}
	return "loaded by " + l.Loader + ", " + size(l.Bytes)
}
