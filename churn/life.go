// SPDX-FileCopyrightText: The wcache authors
// SPDX-License-Identifier: MIT

package main

import (
	"errors"
	"math/rand/v2"
	"os"
	"strings"
	"time"
)

// tries is how often an engine asks until it gives up.
const tries = 3

// life makes an engine start, ask, stay and end.
func (c *churn) life(rng *rand.Rand) error {
	s := c.services[rng.IntN(len(c.services))]
	how := style(rng.IntN(int(styles)))
	picked := clock()
	target, ok := c.world.any(rng, func(p place) bool {
		switch how {
		case silent:
			return c.world.inside(p.path) // where it is trusted to be
		case relative:
			return !c.world.nested(p.path) // its working directory may move, and the model with it
		}
		return true
	})
	if !ok {
		return nil
	}
	rank := rankOf{target.family, 1, 0}
	if rng.IntN(2) == 0 {
		rank.tp, rank.rank = 2, rng.IntN(2)
	}
	p, err := startEngine(how, target.path, plan{Socket: s.socket, Family: rank.family, TP: rank.tp, Rank: rank.rank, Key: c.world.keys[rank]})
	if errors.Is(err, os.ErrNotExist) {
		return nil // the working directory has gone
	}
	if err != nil {
		return err
	}
	c.tally.count(countEngines)
	if how != silent {
		c.tally.count(countEvidence)
	}
	e := &life{churn: c, rng: rng, s: s, p: p, how: how, target: target, key: c.world.keys[rank].ID(), picked: picked}
	e.live()
	e.promises.drop(p.pid)
	if err := p.end(rng.IntN(3) == 0); err != nil {
		c.tally.fault(faultUnexpected, "engine %d: %v", p.pid, err)
	}
	return nil
}

// life is an engine's life, as seen by the process that started it.
type life struct {
	*churn
	rng    *rand.Rand
	s      *service
	p      *process
	how    style
	target place
	key    string
	picked int64 // when, by clock

	watched int64 // when its watch was answered
}

func (e *life) live() {
	if e.rng.IntN(4) == 0 && !e.order(orderMemory) {
		return
	}
	if !e.ask(orderAsk) {
		return
	}
	watching := e.rng.IntN(3) > 0 && e.watch()
	stays := 2 * time.Second
	if e.rng.IntN(10) == 0 {
		stays = 20 * time.Second
	}
	stays = min(stays, time.Until(e.ends)) // the end of the run is not waited for
	if stays > 0 {
		sleep(e.rng, stays)
	}
	if e.rng.IntN(5) == 0 && !e.ask(orderAgain) {
		return
	}
	r, err := e.p.tell(orderCheck)
	if err != nil {
		e.tally.fault(faultUnexpected, "engine %d: %v", e.p.pid, err)
		return
	}
	e.tally.count(countReread)
	if r.Outcome == outcomeWrong {
		e.tally.fault(faultWrong, "%s: engine %d on %s, mapped memory has changed: %s", e.s.name, e.p.pid, e.target.path, r.Message)
	}
	if watching {
		e.look()
	}
	if e.rng.IntN(6) == 0 {
		e.promises.drop(e.p.pid)
		done := e.s.forgetting(false)
		e.order(orderRelease)
		done()
	}
}

// keep notes that the engine was answered, and that its entry must be kept from then on. An
// engine that named no model may have got the entry of another directory with the same
// contents, which goes when that directory changes.
func (e *life) keep(r report) {
	if e.how == silent {
		return
	}
	e.promises.add(promise{service: e.s, pid: e.p.pid, key: e.key, path: e.target.path, asked: r.From, since: r.To})
}

// order makes the engine send a request other than for weights. It is false when the engine
// has to end.
func (e *life) order(what string) bool {
	r, err := e.p.tell(what)
	switch {
	case err != nil:
		e.tally.fault(faultUnexpected, "engine %d: %v", e.p.pid, err)
		return false
	case r.Outcome == outcomeStuck:
		e.tally.fault(faultStuck, "%s: engine %d, %s", e.s.name, e.p.pid, what)
		return false
	case r.Outcome == outcomeLost && e.s.killedBetween(r.From, r.To):
		e.tally.count(countLost)
	case crowded(r):
		e.tally.refused(r.Message)
	case r.Outcome != outcomeOK:
		e.tally.fault(faultUnsaid, "%s: engine %d, %s: %s %s", e.s.name, e.p.pid, what, r.Outcome, r.Message)
	}
	return true
}

// crowded reports whether hostile clients left no room for a request.
func crowded(r report) bool {
	return r.Outcome == outcomeError &&
		(strings.Contains(r.Message, "engines that watch already") || strings.Contains(r.Message, "newer connections need its place"))
}

// watch makes the engine open a watch, and reports whether it did.
func (e *life) watch() bool {
	r, err := e.p.tell(orderWatch)
	switch {
	case err != nil:
		e.tally.fault(faultUnexpected, "engine %d: %v", e.p.pid, err)
	case r.Outcome == outcomeStuck && e.s.keeps() && e.s.killedBetween(r.From, r.To):
		// The watch was kept, and its daemon killed before the answer. An engine of vLLM waits
		// 5 seconds for the answer and goes on without a watch.
		e.tally.count(countLost)
	case r.Outcome == outcomeStuck:
		e.tally.fault(faultStuck, "%s: engine %d, watch", e.s.name, e.p.pid)
	case r.Outcome == outcomeOK:
		e.tally.count(countWatches)
		e.watched = r.To
		return true
	case crowded(r):
		e.tally.refused(r.Message)
	case r.Outcome != outcomeLost || !e.s.killedBetween(r.From, r.To):
		e.tally.fault(faultUnsaid, "%s: engine %d, watch: %s %s", e.s.name, e.p.pid, r.Outcome, r.Message)
	}
	return false
}

// look makes the engine check that its watch still exists, which it must if the service's
// descriptors are kept.
func (e *life) look() {
	r, err := e.p.tell(orderLook)
	if err != nil {
		e.tally.fault(faultUnexpected, "engine %d: %v", e.p.pid, err)
		return
	}
	if r.Outcome != outcomeLost {
		return
	}
	if e.s.keeps() && !e.s.flooded(e.watched) || !e.s.killedBetween(e.picked, r.From) {
		e.tally.fault(faultWatch, "%s: engine %d, answered %d ms before a daemon was killed", e.s.name, e.p.pid, e.s.killedAfter(e.watched)/1e6)
	}
}

// ask makes the engine ask for its weights until it gets them, and judges each answer. It is
// false if it got none in the end.
func (e *life) ask(how string) bool {
	for range tries {
		r, err := e.p.tell(how)
		if err != nil {
			e.tally.fault(faultUnexpected, "engine %d: %v", e.p.pid, err)
			return false
		}
		switch r.Outcome {
		case outcomeOK:
			e.answered(r)
			return true
		case outcomeWrong:
			e.tally.fault(faultWrong, "%s: engine %d on %s: %s (versions %v)", e.s.name, e.p.pid, e.target.path, r.Message, r.Versions)
			return false
		case outcomeStuck:
			e.tally.fault(faultStuck, "%s: engine %d on %s: %s", e.s.name, e.p.pid, e.target.path, r.Message)
			return false
		case outcomeUnmapped:
			if !e.s.killedBetween(r.From, clock()) && !e.forcedSince(r.From) {
				e.tally.fault(faultUnsaid, "%s: engine %d on %s: %s", e.s.name, e.p.pid, e.target.path, r.Message)
				return false
			}
			e.tally.count(countUnmapped)
			e.keep(r)
		case outcomeLost:
			e.tally.count(countLost)
			if !e.s.killedBetween(r.From, r.To) {
				e.tally.fault(faultUnsaid, "%s: engine %d on %s: %s", e.s.name, e.p.pid, e.target.path, r.Message)
			}
		default:
			e.refused(r)
			if r.Outcome == outcomeMismatch {
				return false // at which an engine gives up
			}
		}
		sleep(e.rng, time.Second)
	}
	return false
}

// answered judges the weights that an engine got.
func (e *life) answered(r report) {
	e.keep(r)
	e.asked.tell()
	e.tally.count(countAnswered)
	e.tally.add(countBytes, r.Bytes/1000)
	switch v, text := e.world.judge(e.target.path, e.target.family, e.how == silent, r.Versions, r.From, r.To); v {
	case wrong:
		e.tally.fault(faultWrong, "%s: engine %d, style %d, got %s", e.s.name, e.p.pid, e.how, text)
	case moving:
		e.tally.count(countMoving)
	case aside:
		e.tally.count(countAside)
	}
}

// refused judges a refusal. It is a fault if the engine's process named its model, the
// directory was at rest, and nothing had disturbed the service.
func (e *life) refused(r report) {
	e.tally.count(countRefused)
	e.tally.refused(r.Message)
	_, rest, _ := e.world.during(e.target.path, e.target.family, e.picked, r.To)
	switch {
	case e.how == silent, !rest:
	case e.s.loaderKilledBetween(r.From, r.To):
	case crowded(r):
	case e.s.budgeted() && strings.Contains(r.Message, "and the budget is"):
	default:
		e.tally.fault(faultUnsaid, "%s: engine %d, style %d, on %s, which is at rest: %s %s", e.s.name, e.p.pid, e.how, e.target.path, r.Outcome, r.Message)
	}
}

// forcedSince reports whether entries have been evicted by force since some moment.
func (e *life) forcedSince(since int64) bool {
	e.s.mu.Lock()
	defer e.s.mu.Unlock()
	return overlaps(e.s.forced, since, clock())
}
