// SPDX-FileCopyrightText: The wcache authors
// SPDX-License-Identifier: MIT

package daemon

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/wcache/wcache/daemon/peer"
)

// acceptAll accepts on all listeners until ctx is done, one of them fails, or the
// server seems idle. When it returns nothing is being accepted any more: only
// then can the caller tell whether a connection came in the last moment.
func (s *Server) acceptAll(ctx context.Context, listeners []Listener) error {
	var accepting sync.WaitGroup
	failed := make(chan error, len(listeners))
	for _, l := range listeners {
		if err := l.SetDeadline(time.Time{}); err != nil {
			return fmt.Errorf("accept on %s: %w", l.Addr(), err)
		}
	}
	for _, l := range listeners {
		accepting.Go(func() {
			if err := s.accept(l); err != nil {
				failed <- err
			}
		})
	}
	tick := time.NewTicker(idleEvery)
	defer tick.Stop()
	var err error
	for end := false; !end; {
		select {
		case <-ctx.Done():
			end = true
		case err = <-failed:
			end = true
		case <-tick.C:
			end = s.idle()
		}
	}
	for _, l := range listeners {
		err = errors.Join(err, l.SetDeadline(time.Now()))
	}
	accepting.Wait()
	return err
}

// idle reports whether the time to end has come.
func (s *Server) idle() bool {
	after := time.Duration(s.configuration().IdleExit)
	s.mu.Lock()
	last := s.last
	s.mu.Unlock()
	return s.o.Activated && after > 0 && s.crowd.open.Load() == 0 && time.Since(last) >= after && s.cache.Empty()
}

// accept serves what connects until the listener's deadline. It keeps no connection
// waiting for another.
func (s *Server) accept(l Listener) error {
	lobby := &s.crowd.engines
	if l.Role == Control {
		lobby = &s.crowd.control
	}
	for {
		conn, err := l.AcceptUnix()
		switch {
		case errors.Is(err, os.ErrDeadlineExceeded):
			return nil
		case errors.Is(err, unix.EMFILE), errors.Is(err, unix.ENFILE), errors.Is(err, unix.ENOBUFS), errors.Is(err, unix.ENOMEM),
			errors.Is(err, unix.ECONNABORTED):
			//diag serving
			// The daemon has too many open files to accept a connection, and tries again. Raise
			// `LimitNOFILE=` of the service if the line comes often.
			s.log.Error("cannot accept", "err", err)
			lobby.sendAway()
			time.Sleep(100 * time.Millisecond) // until others have closed theirs
			continue
		case err != nil:
			return fmt.Errorf("accept on %s: %w", l.Addr(), err)
		}
		s.crowd.open.Add(1)
		visitor := lobby.enter(s.ctx)
		s.conns.Go(func() {
			s.serve(conn, l.Role, visitor)
			visitor.leave()
			visitor.end(nil)
			if l.Role != Control { // asking keeps nothing awake
				s.mu.Lock()
				s.last = time.Now()
				s.mu.Unlock()
			}
			s.crowd.open.Add(-1)
		})
	}
}

// serve has one connection from its first byte to its end.
func (s *Server) serve(conn *net.UnixConn, role Role, v *visitor) {
	defer func() { _ = conn.Close() }()
	ctx := s.ctx
	// When the server ends, a peer that says nothing isn't waited for.
	stop := context.AfterFunc(ctx, func() { _ = conn.SetReadDeadline(time.Now()) })
	defer stop()
	p, err := peer.Of(conn)
	if err == nil && p.UID != os.Getuid() {
		//diag serving NUMBER NUMBER
		// The connecting process belongs to another user, which may also be root. Run engines and
		// commands as the user of the service.
		err = fmt.Errorf("check peer: process %d of uid %d is not this user's", p.PID, p.UID)
	}
	if err != nil {
		//diag serving
		// A process connected that the daemon does not answer, for the logged reason, mostly one of
		// another user. See which process it is if you do not expect it.
		s.log.Warn("connection refused", "role", role, "err", err)
		return
	}
	if role == Control {
		s.serveControl(ctx, conn, p, v)
		return
	}
	s.serveEngine(ctx, conn, p, role, v)
}
