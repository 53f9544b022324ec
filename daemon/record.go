// SPDX-FileCopyrightText: The wcache authors
// SPDX-License-Identifier: MIT

package daemon

import (
	"context"
	"errors"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/wcache/wcache/cache"
	"github.com/wcache/wcache/control"
	"github.com/wcache/wcache/fingerprint"
	"github.com/wcache/wcache/manifest"
	"github.com/wcache/wcache/resolve"
)

// maxRecorded is how many misses are remembered: those of all ranks of an engine
// that was started a few times.
const maxRecorded = 32

// maxAlike is in how many fields a key of other weights of the same architecture
// may differ to be worth showing beside the one that was asked for.
const maxAlike = 2

// ledger counts requests that were not answered from memory and remembers the
// last of them, for "wcache explain". Safe for concurrent use.
type ledger struct {
	mu      sync.Mutex
	misses  map[string]int64
	recent  []control.Miss    // the latest first
	changed map[string]string // by key ID, why what was held is not served any more
	bytes   int64             // of loads that ended well
	seconds float64
}

func newLedger() *ledger {
	l := &ledger{misses: make(map[string]int64), changed: make(map[string]string)}
	for _, reason := range control.Reasons() {
		l.misses[reason] = 0
	}
	return l
}

func (l *ledger) count(reason string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.misses[reason]++
}

func (l *ledger) loaded(bytes int64, took time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.bytes += bytes
	l.seconds += took.Seconds()
}

func (l *ledger) remember(m control.Miss) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.recent = slices.Insert(l.recent, 0, m)
	l.recent = l.recent[:min(len(l.recent), maxRecorded)]
}

func (l *ledger) list() []control.Miss {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.Clone(l.recent)
}

// fill adds what was counted here to what the cache counts.
func (l *ledger) fill(c *control.Counts) {
	l.mu.Lock()
	defer l.mu.Unlock()
	c.Misses, c.LoadedBytes, c.LoadSeconds = maps.Clone(l.misses), l.bytes, l.seconds
}

// left notes why an entry is not served any more, for the request that finds out.
func (l *ledger) left(id, why string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.changed[id] = why
}

func (l *ledger) takeLeft(id string) (why string, found bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	why, found = l.changed[id]
	delete(l.changed, id)
	return why, found
}

// freshNoted is fresh, with what it finds kept for the request that asked.
func (s *Server) freshNoted(e manifest.Entry) error {
	err := s.fresh(e)
	if err != nil {
		s.ledger.left(e.ID, err.Error())
	}
	return err
}

// find gets what a key names. What was not in memory is counted by its reason and
// given as a miss, which is nil otherwise, also where there is an error.
func (s *Server) find(ctx context.Context, key fingerprint.Key) (*cache.Hold, *control.Miss, error) {
	begin := time.Now()
	before, held := s.before(key)
	hold, err := s.cache.Get(ctx, key)
	if err == nil && hold.Hit() {
		return hold, nil, nil
	}
	m := s.miss(key, begin, err)
	m.Held = held
	why, changed := s.ledger.takeLeft(key.ID())
	switch {
	case err != nil:
	case changed:
		m.Reason, m.Message, m.Held = control.MissChanged, why, nil
	case before == cache.Loading:
		m.Reason = control.MissLoading
	case held != nil && otherOptions(key, held.Fingerprint):
		m.Reason = control.MissOptions
	}
	s.ledger.count(m.Reason)
	return hold, m, err
}

// miss words a request that was not answered from memory, for an error or none.
func (s *Server) miss(key fingerprint.Key, begin time.Time, err error) *control.Miss {
	m := &control.Miss{
		Time: begin.UTC(), Reason: control.MissNew, Seconds: time.Since(begin).Seconds(),
		Directories: []string{}, Fingerprint: key,
	}
	// What the index can't say, such as for a model's name, is not needed.
	if dirs, lookup := s.o.Index.Lookup(key.Str("checkpoint")); lookup == nil {
		m.Directories = append(m.Directories, dirs...)
	}
	if err == nil {
		return m
	}
	m.Reason, m.Message, m.Hint = control.MissFailed, err.Error(), s.hint(err)
	if lasting(err) {
		m.Reason = control.MissRefused
	}
	var no *resolve.Refusal
	var differs *Mismatch
	switch {
	case errors.As(err, &no):
		m.Field, m.Message = no.Field, no.Reason
	case errors.As(err, &differs) && len(differs.Fields) > 0:
		m.Field, m.Message = differs.Fields[0], "another key of this directory is held, which differs in "+strings.Join(differs.Fields, ", ")
	}
	return m
}

// before tells how a key stands, "" for not at all, and if so what is most like it.
func (s *Server) before(key fingerprint.Key) (cache.State, *control.Held) {
	if state := s.cache.State(key); state != "" {
		return state, nil // of every hit, which asks for no more
	}
	nearest, ok := s.cache.Nearest(key, "")
	if !ok {
		return "", nil
	}
	if key.Str("checkpoint") != nearest.Str("checkpoint") &&
		(key.Str("model_arch") != nearest.Str("model_arch") || len(fingerprint.Compare(key, nearest)) > maxAlike) {
		return "", nil
	}
	held := &control.Held{Key: nearest.ID(), Fingerprint: nearest}
	list, _ := s.cache.Status()
	for _, e := range list {
		if e.ID == held.Key {
			held.Model = e.Model
		}
	}
	return "", held
}

// otherOptions reports whether two keys mean the same files and differ in more
// than the part that each rank of an engine has for itself.
func otherOptions(key, held fingerprint.Key) bool {
	if key.Str("checkpoint") != held.Str("checkpoint") {
		return false
	}
	return slices.ContainsFunc(fingerprint.Compare(key, held), func(field string) bool {
		return !slices.Contains([]string{"tp_rank", "pp_rank", "dp_rank"}, field)
	})
}

// record remembers a miss of an engine, and its answer.
func (s *Server) record(m *control.Miss, p peer, role Role) {
	m.PID, m.Comm, m.Role = p.pid, p.name(), string(role)
	s.ledger.remember(*m)
}

// recordRefusal remembers a no that was said before anything was looked up.
func (s *Server) recordRefusal(key fingerprint.Key, p peer, role Role, err error) {
	m := s.miss(key, time.Now(), err)
	s.ledger.count(m.Reason)
	s.record(m, p, role)
}
