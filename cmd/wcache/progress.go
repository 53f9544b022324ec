// SPDX-FileCopyrightText: The wcache authors
// SPDX-License-Identifier: MIT

package main

import (
	"fmt"
	"strings"

	"github.com/wcache/wcache/control"
)

// lineEvery is how often a load reports its progress if nothing can be drawn, in seconds.
const lineEvery = 10

// progress shows how far a load is: on a terminal as a bar, elsewhere as a line every few
// seconds. end removes the bar.
func (a *app) progress(name string) (show func(control.Reply), end func()) {
	drawn, told := false, 0
	draws := terminal(a.err) && a.env("TERM") != "dumb"
	show = func(r control.Reply) {
		p := r.Progress
		switch {
		case p == nil || p.Total <= 0 || a.json || a.quiet:
		case draws:
			drawn = true
			say(a.err, "\r%s\x1b[K", bar(*p, name))
		case int(p.Seconds)/lineEvery > told:
			told = int(p.Seconds) / lineEvery
			say(a.err, "wcache: %s: %s\n", name, far(*p))
		}
	}
	end = func() {
		if drawn {
			say(a.err, "\r\x1b[K")
		}
	}
	return show, end
}

// bar draws a load's progress in a line.
func bar(p control.Progress, name string) string {
	const width = 30
	done := min(int(width*p.Done/p.Total), width)
	return fmt.Sprintf("%s [%s%s] %s", name, strings.Repeat("#", done), strings.Repeat(".", width-done), far(p))
}

// far describes a load's progress.
func far(p control.Progress) string {
	if p.Waiting != "" {
		return "waits for " + p.Waiting
	}
	rate := ""
	if p.Seconds > 0 {
		rate = size(int64(float64(p.Done)/p.Seconds)) + "/s"
	}
	return fmt.Sprintf("%3d %% of %s, %s", 100*p.Done/p.Total, size(p.Total), rate)
}
