// SPDX-FileCopyrightText: The wcache authors
// SPDX-License-Identifier: MIT

package daemon

import (
	"errors"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/wcache/wcache/control"
	"github.com/wcache/wcache/internal/advice"
	"github.com/wcache/wcache/loader"
)

// maxRecorded is how many misses the ledger remembers: enough for all ranks of an engine
// that was started a few times.
const maxRecorded = 32

// ledger counts requests and loads, and remembers the latest misses for "wcache explain".
// Safe for concurrent use.
type ledger struct {
	mu     sync.Mutex
	counts control.Counts
	recent []control.Miss // the latest first
}

func newLedger() *ledger {
	l := &ledger{counts: control.Counts{Misses: make(map[string]int64)}}
	for _, reason := range control.Reasons() {
		l.counts.Misses[reason] = 0
	}
	return l
}

// hit counts a request that was answered from memory.
func (l *ledger) hit() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.counts.Hits++
}

// count counts a miss by its reason.
func (l *ledger) count(reason string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.counts.Misses[reason]++
}

// ended counts a load by its error. It doesn't count a refused one, which never began,
// unless a damaged file was the reason.
func (l *ledger) ended(err error) {
	_, _, refused := advice.Refusal(err)
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case err == nil:
		l.counts.Loads++
	case !refused || damaged(err):
		l.counts.Failed++
	}
}

// loaded counts the bytes and the time of a load.
func (l *ledger) loaded(bytes int64, took time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.counts.LoadedBytes += bytes
	l.counts.LoadSeconds += took.Seconds()
}

// remember notes a miss of an engine, and its answer.
func (l *ledger) remember(m control.Miss) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if m.Reason == control.MissRefused || m.Reason == control.MissFailed {
		l.counts.Refused++
	}
	l.recent = slices.Insert(l.recent, 0, m)
	l.recent = l.recent[:min(len(l.recent), maxRecorded)]
}

func (l *ledger) list() []control.Miss {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.Clone(l.recent)
}

// counted gives a copy of the counts.
func (l *ledger) counted() control.Counts {
	l.mu.Lock()
	defer l.mu.Unlock()
	c := l.counts
	c.Misses = maps.Clone(c.Misses)
	return c
}

// damaged reports whether a load failed because the sha256 of a file isn't the one in its
// name.
func damaged(err error) bool {
	var filling *loader.Error
	return errors.As(err, &filling) && filling.Kind == loader.KindDamaged
}
