// SPDX-FileCopyrightText: The wcache authors
// SPDX-License-Identifier: MIT

package main

import (
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/wcache/wcache/control"
)

// promise says that an answered engine keeps its entry until it ends.
type promise struct {
	service *service
	pid     int
	key     string // the ID
	path    string
	asked   int64 // by clock
	since   int64 // when it was answered
}

// promises are the promises to all engines. Safe for concurrent use.
type promises struct {
	mu    sync.Mutex
	byPID map[int]promise
}

func (p *promises) add(x promise) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.byPID == nil {
		p.byPID = make(map[int]promise)
	}
	p.byPID[x.pid] = x
}

func (p *promises) drop(pid int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.byPID, pid)
}

// of are the promises of a service.
func (p *promises) of(s *service) []promise {
	p.mu.Lock()
	defer p.mu.Unlock()
	var list []promise
	for _, x := range p.byPID {
		if x.service == s {
			list = append(list, x)
		}
	}
	return list
}

// stands reports whether a promise hasn't changed.
func (p *promises) stands(x promise) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.byPID[x.pid] == x
}

// settling is how long after the manager was stopped an answered entry may not be kept: twice
// the time after which the service tries again.
const settling = 10 * time.Second

// excused reports whether a service may have lost, without a fault, an entry that it answered
// within some time: its manager was stopped then, entries were evicted by force since, or
// the entry ended with its daemon.
func (s *service) excused(asked, answered int64) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return overlaps(s.forced, asked, clock()) || !s.keeps() && overlaps(s.down, asked, clock()) ||
		slices.ContainsFunc(s.stopped, func(x span) bool {
			return x.from <= answered && (x.to == 0 || x.to+int64(settling) >= asked)
		})
}

// attachedEngines checks that every engine that was answered and hasn't ended is listed with
// an entry of its key.
func (c *churn) attachedEngines(s *service) {
	list := c.promises.of(s)
	status, err := s.status()
	if err != nil {
		return // it has just been killed
	}
	for _, x := range list {
		if _, rest, _ := c.world.during(x.path, -1, x.asked, clock()); !rest || s.excused(x.asked, x.since) || !c.promises.stands(x) {
			continue
		}
		c.tally.count(countAttached)
		if !has(status, x) {
			c.tally.fault(faultLost, "%s: the daemon %d doesn't know that engine %d has %.12s of %s, which it was given %v ago; of this key it has %s",
				s.name, status.PID, x.pid, x.key, x.path, time.Duration(clock()-x.since).Round(time.Millisecond), of(status, x.key))
			c.promises.drop(x.pid)
		}
	}
}

func has(status *control.Status, x promise) bool {
	return slices.ContainsFunc(status.Entries, func(e control.Entry) bool {
		return e.Key == x.key && e.State == "ready" && slices.ContainsFunc(e.Engines, func(g control.Engine) bool { return g.PID == x.pid })
	})
}

// of describes the entries of a key in a status.
func of(status *control.Status, key string) string {
	var list []string
	for _, e := range status.Entries {
		if e.Key == key {
			list = append(list, fmt.Sprintf("%s %s (%s) loaded %v ago for %d engines", e.State, e.Model, e.Reason, time.Since(e.Loaded).Round(time.Millisecond), len(e.Engines)))
		}
	}
	if list == nil {
		return "nothing"
	}
	return strings.Join(list, ", ")
}

// entries checks that every entry from before a kill still exists afterwards. At is when the
// first status was requested.
func (c *churn) entries(s *service, before, after *control.Status, at int64) {
	s.mu.Lock()
	retiring := overlaps(s.retiring, at, clock())
	s.mu.Unlock()
	if !s.keeps() || retiring || s.loaderKilledBetween(at, clock()) { // which may have compared an entry
		return
	}
	for _, e := range before.Entries {
		announced := slices.ContainsFunc(before.Problems, func(p string) bool { return strings.HasPrefix(p, e.Key[:12]+" would not outlive") })
		loaded := clock() - int64(time.Since(e.Loaded)) // what has changed since is loaded again
		if _, rest, _ := c.world.during(e.Model, -1, loaded, clock()); e.State != "ready" || announced || !rest {
			continue
		}
		c.tally.count(countEntries)
		if !slices.ContainsFunc(after.Entries, func(x control.Entry) bool {
			return x.Key == e.Key && x.Model == e.Model && x.State == "ready" && x.Loaded.Equal(e.Loaded)
		}) {
			c.tally.fault(faultLost, "%s: %.12s of %s went with the daemon %d", s.name, e.Key, e.Model, before.PID)
		}
	}
}
