// SPDX-FileCopyrightText: The wcache authors
// SPDX-License-Identifier: MIT

package daemon

import (
	"context"
	"slices"
	"time"

	"github.com/wcache/wcache/cache"
	"github.com/wcache/wcache/control"
	"github.com/wcache/wcache/daemon/peer"
	"github.com/wcache/wcache/fingerprint"
	"github.com/wcache/wcache/internal/advice"
	"github.com/wcache/wcache/resolve"
)

// maxAlike is how many fields a key of another model with the same architecture may
// differ in, if a miss is to show it beside the requested key.
const maxAlike = 2

// find gets the entry of a key, from the directory that choose finds. If the entry was not
// in memory, find counts a miss by its reason and gives it, with and without an error;
// after a hit the miss is nil. The caller releases the hold.
func (s *Server) find(ctx context.Context, key fingerprint.Key, choose func(context.Context) (resolve.Choice, error)) (*cache.Hold, *control.Miss, error) {
	begin := time.Now()
	var hold *cache.Hold
	var out cache.Outcome
	choice, err := choose(ctx)
	if err == nil {
		hold, out, err = s.cache.Get(ctx, cache.Want{Key: key, Dir: choice.Dir, By: string(choice.Sure)})
		err = choice.Blame(err)
	}
	if err == nil && hold.Hit() {
		s.ledger.hit()
	}
	if err == nil && out.Before == cache.Ready && out.Stale == "" {
		return hold, nil, nil
	}
	s.cache.Recheck(ctx, key)
	if err != nil {
		err = s.unlessBroken(err)
	}
	m := s.miss(key, begin, err)
	if choice.Dir != "" {
		m.Sure = string(choice.Sure)
		m.Directories = append([]string{choice.Dir}, slices.DeleteFunc(m.Directories, func(d string) bool { return d == choice.Dir })...)
	}
	if out.Before == "" {
		m.Held = s.alike(key)
	}
	switch {
	case err != nil:
	case out.Stale != "":
		m.Reason, m.Message = control.MissChanged, out.Stale
	case out.Before == cache.Loading:
		m.Reason = control.MissLoading
	case m.Held != nil && otherOptions(key, m.Held.Fingerprint):
		m.Reason = control.MissOptions
	}
	s.ledger.count(m.Reason)
	return hold, m, err
}

// miss describes a request that was not answered from memory. Err is its error, or nil.
func (s *Server) miss(key fingerprint.Key, begin time.Time, err error) *control.Miss {
	m := &control.Miss{
		Time: begin.UTC(), Reason: control.MissNew, Seconds: time.Since(begin).Seconds(),
		Directories: []string{}, Fingerprint: key,
	}
	// The directories are extra information: those that the index knows now are enough.
	for _, d := range s.o.Index.Known(key.Str("checkpoint")) {
		m.Directories = append(m.Directories, d.Path)
	}
	if err == nil {
		return m
	}
	m.Reason, m.Message, m.Hint = control.MissFailed, err.Error(), s.hint(err)
	if field, reason, ok := advice.Refusal(err); ok {
		m.Reason, m.Field, m.Message = control.MissRefused, field, reason
	}
	return m
}

// alike gives the entry whose key is most like the given one, nil if none is like it.
func (s *Server) alike(key fingerprint.Key) *control.Held {
	nearest, ok := s.cache.Nearest(key, "")
	if !ok {
		return nil
	}
	if key.Str("checkpoint") != nearest.Key.Str("checkpoint") &&
		(key.Str("model_arch") != nearest.Key.Str("model_arch") || len(fingerprint.Compare(key, nearest.Key)) > maxAlike) {
		return nil
	}
	return &control.Held{Key: nearest.Key.ID(), Model: nearest.Dir, Fingerprint: nearest.Key}
}

// otherOptions reports whether two keys mean the same files and differ in other fields
// than the rank.
func otherOptions(key, held fingerprint.Key) bool {
	if key.Str("checkpoint") != held.Str("checkpoint") {
		return false
	}
	return slices.ContainsFunc(fingerprint.Compare(key, held), func(field string) bool {
		return !slices.Contains([]string{"tp_rank", "pp_rank", "dp_rank"}, field)
	})
}

// remember notes a miss of an engine, and its answer.
func (s *Server) remember(m *control.Miss, p peer.Process, role Role) {
	m.PID, m.Comm, m.Role = p.PID, p.Name(), string(role)
	s.ledger.remember(*m)
}

// rememberRefusal counts and remembers a request that was refused before a lookup.
func (s *Server) rememberRefusal(key fingerprint.Key, p peer.Process, role Role, err error) {
	m := s.miss(key, time.Now(), err)
	s.ledger.count(m.Reason)
	s.remember(m, p, role)
}
