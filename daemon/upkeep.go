// SPDX-FileCopyrightText: The wcache authors
// SPDX-License-Identifier: MIT

package daemon

import (
	"context"
	"fmt"
	"time"

	"github.com/wcache/wcache/control"
	"github.com/wcache/wcache/fingerprint"
	"github.com/wcache/wcache/resolve"
)

// unusedEvery is the longest pause between two searches for unused entries.
const unusedEvery = time.Minute

// evictUnused evicts entries that were not used for idle_evict, until ctx is done.
func (s *Server) evictUnused(ctx context.Context) {
	for {
		after := time.Duration(s.configuration().IdleEvict)
		if after > 0 {
			if n := s.cache.EvictUnused(time.Now().Add(-after), fmt.Sprintf("not used for %v", after)); n > 0 {
				s.log.Info("evicted what was not used", "entries", n, "for", after)
			}
		}
		wait := unusedEvery // a reload may set idle_evict
		if after > 0 {
			wait = min(max(after/4, 10*time.Millisecond), unusedEvery)
		}
		select {
		case <-time.After(wait):
		case <-ctx.Done():
			return
		}
	}
}

// preload loads the pinned directories, one after the other: with the keys that an earlier
// process held, or, if there are none, with the key of an engine without options. Failures
// are logged; the daemon tries again when an engine asks.
func (s *Server) preload(ctx context.Context) {
	if !s.configuration().Preload {
		return
	}
	pins, err := s.finder.pins(ctx)
	if err != nil {
		s.log.Warn("pins are not looked up", "err", err)
		return
	}
	for _, dir := range pins {
		before := false
		for _, e := range s.lost {
			if e.Dir != dir {
				continue
			}
			before = true
			s.preloadKey(ctx, e.Key, dir)
		}
		for _, e := range s.cache.Records() {
			before = before || e.Dir == dir
		}
		if before {
			continue
		}
		if _, err := s.warm(ctx, control.Warm{Model: dir}, func(control.Progress) {}); err != nil && ctx.Err() == nil {
			//diag restart
			// With `preload = true` the daemon loads pinned directories at its start, and this one
			// failed for the logged reason. Mend that; the daemon tries again when an engine asks.
			s.log.Warn("pin is not loaded", "model", dir, "err", err)
		}
	}
}

func (s *Server) preloadKey(ctx context.Context, key fingerprint.Key, dir string) {
	hold, _, err := s.find(ctx, key, func(context.Context) (resolve.Choice, error) { return resolve.Named(dir) })
	if err != nil {
		if ctx.Err() == nil {
			s.log.Warn("pin is not loaded", "model", dir, "key", key.ID()[:12], "err", err)
		}
		return
	}
	hold.Release()
}
