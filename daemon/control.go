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
	"github.com/wcache/wcache/fingerprint"
	"github.com/wcache/wcache/layout"
	"github.com/wcache/wcache/weights"
)

// progressEvery is how often a client that waits for a load is told how far it is.
const progressEvery = 100 * time.Millisecond

// serveControl answers one request of a control client.
func (s *Server) serveControl(ctx context.Context, conn *net.UnixConn, p peer) {
	limit := s.beginRead(ctx, conn)
	answer := func(reply control.Reply) {
		_ = conn.SetWriteDeadline(time.Now().Add(limit))
		if err := control.Write(conn, reply); err != nil {
			s.log.Debug("control reply not written", "pid", p.pid, "err", err)
		}
	}
	var request control.Request
	if err := control.Read(bufio.NewReader(conn), &request); err != nil {
		if err = unread(ctx, err, limit); err != nil {
			s.log.Warn("control request refused", "pid", p.pid, "err", err)
			answer(control.Reply{Final: true, Error: &control.Error{Code: control.CodeUsage, Message: err.Error()}})
		}
		return
	}
	_ = conn.SetReadDeadline(time.Time{})
	final := control.Reply{Final: true}
	var err error
	switch {
	case request.Method == control.MethodStatus:
		waiting, cancel := context.WithTimeout(ctx, statusWait)
		s.gpu.wait(waiting, s.gpu.look(s.ctx, lookAgain))
		cancel()
		status := s.status()
		final.Status = &status
	case request.Method == control.MethodMisses:
		final.Misses = s.ledger.list()
	case request.Method == control.MethodPing:
	case request.Method == control.MethodWarm && request.Warm != nil:
		ctx, cancel := s.untilHangup(ctx, conn)
		defer cancel()
		final.Entry, err = s.warm(ctx, *request.Warm, func(p control.Progress) { answer(control.Reply{Progress: &p}) })
	case request.Method == control.MethodEvict && request.Evict != nil:
		final.Evicted, err = s.evict(*request.Evict)
	default:
		err = &control.Error{Code: control.CodeUsage, Message: fmt.Sprintf("unknown request %q", request.Method), Hint: "wcache version shows whether client and daemon are of one version"}
	}
	switch {
	case err != nil:
		final.Error = s.controlError(err)
		s.log.Warn(request.Method, "pid", p.pid, "err", err)
	case !idly(request.Method):
		s.log.Info(request.Method, "pid", p.pid)
	}
	answer(final)
}

// idly tells which requests change nothing, and are made often.
func idly(method string) bool {
	return method == control.MethodStatus || method == control.MethodMisses || method == control.MethodPing
}

// warm loads what an engine with the given options would ask for.
func (s *Server) warm(ctx context.Context, w control.Warm, progress func(control.Progress)) (*control.Entry, error) {
	path, _, err := weights.Locate(w.Model, w.Revision, s.o.Env, s.configuration().Roots)
	if err != nil {
		return nil, err
	}
	dir, err := weights.Open(path)
	if err != nil {
		return nil, err
	}
	if w.Release == "" {
		list := layout.Releases()
		w.Release = list[len(list)-1]
	}
	key, err := fingerprint.Compute(dir, fingerprint.Options{
		TPSize: max(w.TPSize, 1), TPRank: w.TPRank, PPSize: max(w.PPSize, 1), PPRank: w.PPRank, DType: w.DType, Release: w.Release,
	})
	if err != nil {
		return nil, err
	}
	s.o.Index.Add(path)
	hold, err := s.getWithProgress(ctx, key, progress)
	if err != nil {
		return nil, err
	}
	defer hold.Release()
	for _, e := range s.status().Entries {
		if e.Key == hold.ID() && e.State == string(cache.Ready) {
			return &e, nil
		}
	}
	return nil, fmt.Errorf("warm %q: it was evicted as soon as it was loaded", w.Model)
}

// getWithProgress waits for an entry and tells meanwhile how far its load is.
func (s *Server) getWithProgress(ctx context.Context, key fingerprint.Key, progress func(control.Progress)) (*cache.Hold, error) {
	type result struct {
		hold *cache.Hold
		err  error
	}
	done := make(chan result, 1)
	go func() {
		hold, _, err := s.find(ctx, key)
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
				if e.Key == key.ID() && e.Progress != nil {
					progress(*e.Progress)
				}
			}
		}
	}
}

// evict frees the entry whose key begins with the given digits, or all entries.
func (s *Server) evict(e control.Evict) ([]string, error) {
	list, _ := s.cache.Status()
	list = slices.DeleteFunc(list, func(x cache.Status) bool {
		return x.State == cache.Leaving || !strings.HasPrefix(x.ID, e.Key)
	})
	evicted := []string{}
	if e.Key != "" {
		switch len(list) {
		case 0:
			return evicted, &cache.NoEntry{ID: e.Key}
		case 1:
		default:
			return evicted, &control.Error{Code: control.CodeUsage, Message: fmt.Sprintf("more than one key begins with %q", e.Key), Hint: "give more of its digits"}
		}
	}
	var left []error
	for _, x := range list {
		err := s.cache.Evict(x.ID, e.Force)
		var gone *cache.NoEntry
		switch {
		case err == nil:
			evicted = append(evicted, x.ID)
		case e.Key == "" && errors.As(err, &gone): // meanwhile, by itself
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
	return evicted, &control.Error{
		Code: control.CodeInUse, Message: fmt.Sprintf("%d entries are left, the first: %v", len(left), left[0]),
		Hint: s.hint(left[0]),
	}
}
