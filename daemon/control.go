// SPDX-FileCopyrightText: The wcache authors
// SPDX-License-Identifier: MIT

package daemon

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"
	"time"

	"github.com/wcache/wcache/cache"
	"github.com/wcache/wcache/control"
	"github.com/wcache/wcache/daemon/peer"
	"github.com/wcache/wcache/fingerprint"
	"github.com/wcache/wcache/release"
	"github.com/wcache/wcache/resolve"
	"github.com/wcache/wcache/weights"
)

// progressEvery is how often a client that waits for a load gets its progress.
const progressEvery = 100 * time.Millisecond

// settleWait is how long the answer to an eviction waits for the memory to be free.
const settleWait = 5 * time.Second

// serveControl answers one request of a control client.
func (s *Server) serveControl(ctx context.Context, conn *net.UnixConn, p peer.Process, v *visitor) {
	answer := func(reply control.Reply) {
		_ = conn.SetWriteDeadline(time.Now().Add(time.Duration(s.configuration().RequestTimeout)))
		if err := control.Write(conn, reply); err != nil {
			s.log.Debug("control reply not written", "pid", p.PID, "err", err)
		}
	}
	var request control.Request
	came, err := s.await(conn, v, func() (err error) {
		request, err = control.ReadRequest(bufio.NewReader(conn))
		return err
	})
	if err != nil {
		//diag serving
		// The daemon could not read a request on the control socket, or does not know what it asks
		// for; the line gives the error. Mostly command and daemon are of different versions:
		// restart the service.
		s.log.Warn("control request refused", "pid", p.PID, "err", err)
		answer(control.Reply{Final: true, Error: &control.Error{Code: control.CodeUsage, Message: err.Error()}})
	}
	if !came {
		return
	}
	final := control.Reply{Final: true}
	if request.Method == control.MethodPing { // from the service's watchdog, which checks that the daemon answers
		answer(final)
		return
	}
	place := &s.crowd.asked
	if request.Method == control.MethodWarm || request.Method == control.MethodVerify { // these take as long as an engine's request
		place = &s.crowd.states
	}
	if !place.take() {
		final.Error = &control.Error{Code: control.CodeFailed, Message: place.full().Error(), Hint: "ask again when some of them are answered"}
		s.log.Warn("control request refused", "pid", p.PID, "err", final.Error)
		answer(final)
		return
	}
	defer place.leave()
	switch {
	case request.Method == control.MethodStatus:
		waiting, cancel := context.WithTimeout(ctx, statusWait)
		s.gpu.wait(waiting, s.gpu.look(s.ctx, lookAgain))
		cancel()
		status := s.status()
		final.Status = &status
	case request.Method == control.MethodMisses:
		final.Misses = s.ledger.list()
	case request.Method == control.MethodWarm && request.Warm != nil:
		ctx, cancel := untilHangup(ctx, conn)
		defer cancel()
		final.Entry, err = s.warm(ctx, *request.Warm, func(p control.Progress) { answer(control.Reply{Progress: &p}) })
	case request.Method == control.MethodEvict && request.Evict != nil:
		final.Evicted, err = s.evict(ctx, *request.Evict)
	case request.Method == control.MethodVerify && request.Verify != nil:
		ctx, cancel := untilHangup(ctx, conn)
		defer cancel()
		final.Verified, err = s.verify(ctx, *request.Verify, func(p control.Progress) { answer(control.Reply{Progress: &p}) })
	default:
		//diag reaching METHOD
		// The command and the daemon are of different versions. Restart the service, which keeps
		// the weights.
		err = &control.Error{Code: control.CodeUsage, Message: fmt.Sprintf("unknown request %q", request.Method), Hint: "wcache version shows whether client and daemon are of one version"}
	}
	switch {
	case err != nil:
		final.Error = s.controlError(err)
		s.log.Warn(request.Method, "pid", p.PID, "err", err)
	case !idly(request.Method):
		s.log.Info(request.Method, "pid", p.PID)
	}
	answer(final)
}

// idly reports whether a request changes nothing and comes often, so that it isn't logged.
func idly(method string) bool {
	return method == control.MethodStatus || method == control.MethodMisses || method == control.MethodPing
}

// warm loads what an engine with the given options would ask for.
func (s *Server) warm(ctx context.Context, w control.Warm, progress func(control.Progress)) (*control.Entry, error) {
	if w.Release == "" {
		w.Release = release.Newest().Version
	}
	limited, cancel := s.within(ctx)
	defer cancel()
	var choice resolve.Choice
	key, err := beside(limited, s.checks, func(ctx context.Context) (key fingerprint.Key, err error) {
		path, _, err := weights.Locate(w.Model, w.Revision, s.o.Env, s.configuration().Roots)
		if err != nil {
			return key, err
		}
		if choice, err = resolve.Named(path); err != nil {
			return key, err
		}
		dir, err := s.finder.memory.Open(ctx, choice.Dir)
		if err != nil {
			return key, err
		}
		defer dir.Close()
		o := fingerprint.Options{
			TPSize: max(w.TPSize, 1), TPRank: w.TPRank, PPSize: max(w.PPSize, 1), PPRank: w.PPRank, DType: w.DType, Release: w.Release,
		}
		if w.Revision != "" { // engines send the revision as the user gave it
			o.Set = []fingerprint.Field{{Name: "revision", Value: w.Revision}}
		}
		return fingerprint.Compute(dir, o)
	})
	if err != nil {
		return nil, err
	}
	hold, err := s.getWithProgress(ctx, key, choice, progress)
	if err != nil {
		return nil, err
	}
	defer hold.Release()
	for _, e := range s.status().Entries {
		if e.Key == key.ID() && e.Model == hold.Model() && e.State == string(cache.Ready) {
			return &e, nil
		}
	}
	//diag entries MODEL
	// Other loads needed the memory: `budget` is too small for all of these models. Raise it, or
	// warm fewer models.
	return nil, fmt.Errorf("warm %q: it was evicted as soon as it was loaded", w.Model)
}

// getWithProgress waits for an entry and calls progress meanwhile while it loads.
func (s *Server) getWithProgress(ctx context.Context, key fingerprint.Key, choice resolve.Choice, progress func(control.Progress)) (*cache.Hold, error) {
	type result struct {
		hold *cache.Hold
		err  error
	}
	done := make(chan result, 1)
	go func() {
		hold, _, err := s.find(ctx, key, func(context.Context) (resolve.Choice, error) { return choice, nil })
		done <- result{hold, err}
	}()
	tick := time.NewTicker(progressEvery)
	defer tick.Stop()
	for {
		select {
		case r := <-done:
			return r.hold, r.err
		case <-tick.C:
			for _, e := range s.status().Entries {
				if e.Key == key.ID() && e.Model == choice.Dir && e.Progress != nil {
					progress(*e.Progress)
				}
			}
		}
	}
}

// evict frees the entries whose key begins with the given digits, or all entries. It gives
// the keys of what it freed, also with an error.
func (s *Server) evict(ctx context.Context, e control.Evict) ([]string, error) {
	defer func() {
		ctx, cancel := context.WithTimeout(ctx, settleWait)
		defer cancel()
		s.cache.Settle(ctx)
	}()
	list := s.cache.Status()
	list = slices.DeleteFunc(list, func(x cache.Status) bool {
		return x.State == cache.Leaving || !strings.HasPrefix(x.Key.ID(), e.Key)
	})
	evicted := []string{}
	if e.Key != "" {
		switch len(list) {
		case 0:
			return evicted, &cache.NoEntry{ID: e.Key}
		case 1:
		default:
			if !slices.ContainsFunc(list, func(x cache.Status) bool { return x.Key.ID() != list[0].Key.ID() }) {
				break // several directories have this one key
			}
			//diag entries DIGITS
			// Several entries fit the beginning of the key. Give more digits.
			return evicted, &control.Error{Code: control.CodeUsage, Message: fmt.Sprintf("more than one key begins with %q", e.Key), Hint: "give more of its digits"}
		}
	}
	var left []error
	for _, x := range list {
		err := s.cache.Evict(x.ID, e.Force)
		var gone *cache.NoEntry
		switch {
		case err == nil:
			evicted = append(evicted, x.Key.ID())
		case e.Key == "" && errors.As(err, &gone): // it has left meanwhile
		default:
			left = append(left, err)
		}
	}
	switch len(left) {
	case 0:
		return evicted, nil
	case 1:
		return evicted, left[0]
	}
	//diag entries NUMBER REASON
	// `wcache evict --all` has freed the other entries and printed their keys. The reason says why
	// the first of the rest stays; `--force` also evicts what engines have mapped.
	return evicted, &control.Error{
		Code: control.CodeInUse, Message: fmt.Sprintf("%d entries are left, the first: %v", len(left), left[0]),
		Hint: s.hint(left[0]),
	}
}
