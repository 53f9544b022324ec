// SPDX-FileCopyrightText: The wcache authors
// SPDX-License-Identifier: MIT

package main

import (
	"fmt"
	"io"
	"maps"
	"regexp"
	"slices"
	"strings"
	"sync"
	"text/tabwriter"
	"time"
)

// The counters, in the order of the report.
const (
	countEngines    = "engines"
	countEvidence   = "engines whose process said their model"
	countAnswered   = "replies with weights, mapped and compared"
	countBytes      = "kB compared, byte by byte"
	countReread     = "mappings compared again later"
	countMoving     = "replies that were mixtures, as their files were"
	countAside      = "replies to those who don't say their directory, which was no whole one of the kind any more"
	countUnmapped   = "replies whose daemon was killed before they were mapped"
	countRefused    = "replies without weights"
	countLost       = "requests that a killed daemon left unanswered"
	countWatches    = "watches of engines"
	countCommands   = "commands and control requests"
	countChanges    = "changes to files"
	countDaemons    = "daemons killed"
	countRestarts   = "daemons that came back"
	countLoaders    = "loaders killed"
	countStops      = "times that the manager was stopped"
	countFull       = "times that the state folder was full"
	countHostile    = "hostile processes, each of hundreds of connections"
	countEntries    = "entries looked for after a kill"
	countAttached   = "attachments looked for"
	faultWrong      = "wrong bytes"
	faultLost       = "lost entries and attachments"
	faultWatch      = "lost watches"
	faultStuck      = "stuck"
	faultUnsaid     = "errors without a cause"
	faultLeak       = "leaks"
	faultUnexpected = "ends of daemons, engines and commands that nothing explains"
)

func counts() []string {
	return []string{
		countEngines, countEvidence, countAnswered, countBytes, countReread, countMoving, countAside, countUnmapped, countRefused, countLost,
		countWatches, countCommands, countChanges, countDaemons, countRestarts, countLoaders, countStops, countFull, countHostile,
		countEntries, countAttached,
	}
}

// faults are events that must not happen.
func faults() []string {
	return []string{faultWrong, faultLost, faultWatch, faultStuck, faultUnsaid, faultLeak, faultUnexpected}
}

// mostTold is how many faults are printed in full.
const mostTold = 40

// tally counts what happened. It is safe for concurrent use.
type tally struct {
	began time.Time
	out   io.Writer

	mu     sync.Mutex
	counts map[string]int
	errors map[string]int // the errors that engines got, by kind
	told   int
}

func newTally(out io.Writer) *tally {
	return &tally{began: time.Now(), out: out, counts: make(map[string]int), errors: make(map[string]int)}
}

func (t *tally) add(what string, n int) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.counts[what] += n
}

func (t *tally) count(what string) { t.add(what, 1) }

// fault counts an event that must not happen, and prints it.
func (t *tally) fault(what, format string, args ...any) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.counts[what]++
	if t.told++; t.told <= mostTold {
		fmt.Fprintf(t.out, "%7.1f s  %s: %s\n", time.Since(t.began).Seconds(), what, fmt.Sprintf(format, args...))
	}
}

// Patterns for the parts that differ between errors of one kind.
var (
	quotedText = regexp.MustCompile(`"[^"]*"|\[[^\]]*\]`)
	pathText   = regexp.MustCompile(`/[^ :;,]+`)
	hexText    = regexp.MustCompile(`\b[0-9a-f]{8,}\b`)
	numberText = regexp.MustCompile(`[0-9]+`)
)

// listText are several things in a row, heldText all that is held, hintText what to do
// about an error.
var (
	listText = regexp.MustCompile(`…[….]*(, …[….]*)+`)
	heldText = regexp.MustCompile(`held are .*$`)
	hintText = regexp.MustCompile(` \((start|the service|see|add|wait|wcache|end) .*$`)
)

// longest is how much of an error's text decides its kind.
const longest = 120

func kindOf(text string) string {
	for _, r := range []*regexp.Regexp{quotedText, pathText, hexText, numberText} {
		text = r.ReplaceAllString(text, "…")
	}
	text = hintText.ReplaceAllString(listText.ReplaceAllString(heldText.ReplaceAllString(text, "held are …"), "…"), "")
	if runes := []rune(text); len(runes) > longest {
		text = string(runes[:longest])
	}
	return strings.Join(strings.Fields(text), " ")
}

// refused counts the error that an engine or a command got.
func (t *tally) refused(text string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.errors[kindOf(text)]++
}

// failed reports whether a fault happened.
func (t *tally) failed() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return slices.ContainsFunc(faults(), func(f string) bool { return t.counts[f] > 0 })
}

// write prints all counters.
func (t *tally) write(out io.Writer) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', tabwriter.AlignRight)
	for _, name := range counts() {
		fmt.Fprintf(w, "%d\t  %s\n", t.counts[name], name)
	}
	fmt.Fprintln(w, "\t\nmust be 0\t")
	for _, name := range faults() {
		fmt.Fprintf(w, "%d\t  %s\n", t.counts[name], name)
	}
	fmt.Fprintln(w, "\t\ntold\t")
	kinds := slices.SortedFunc(maps.Keys(t.errors), func(a, b string) int { return t.errors[b] - t.errors[a] })
	for _, kind := range kinds {
		fmt.Fprintf(w, "%d\t  %s\n", t.errors[kind], kind)
	}
	return w.Flush()
}
