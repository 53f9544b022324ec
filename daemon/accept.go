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

// acceptAll accepts on all listeners until ctx is done, a listener fails, or the
// server seems idle. It returns after the last accept has ended: only then can the
// caller tell whether a connection came at the last moment.
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

// idle reports whether the server has been empty and unused for idle_exit, and may end.
func (s *Server) idle() bool {
	after := time.Duration(s.configuration().IdleExit)
	s.mu.Lock()
	last := s.last
	s.mu.Unlock()
	return s.o.Activated && after > 0 && s.crowd.open.Load() == 0 && time.Since(last) >= after && s.cache.Empty()
}

// accept serves connections until the listener's deadline, each in a goroutine of its
// own, so that no connection waits for another.
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
			time.Sleep(100 * time.Millisecond) // until other connections are closed
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
			if l.Role != Control { // control requests don't reset the idle timer
				s.mu.Lock()
				s.last = time.Now()
				s.mu.Unlock()
			}
			s.crowd.open.Add(-1)
		})
	}
}

// serve handles one connection from its first byte to its end.
func (s *Server) serve(conn *net.UnixConn, role Role, v *visitor) {
	defer func() { _ = conn.Close() }()
	ctx := s.ctx
	// When the server ends it doesn't wait for a silent peer.
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
		// The daemon does not answer this process, for the logged reason; mostly it belongs to
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
