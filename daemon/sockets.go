// SPDX-FileCopyrightText: The wcache authors
// SPDX-License-Identifier: MIT

package daemon

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
	"time"

	"github.com/wcache/wcache/control"
	"github.com/wcache/wcache/daemon/socket"
)

// claimsEvery is how often the daemon checks the files of the sockets, with a few system
// calls for each. It doesn't watch the directory by inotify: a watch ends when its
// directory is removed.
const claimsEvery = 2 * time.Second

// claimsEnd is how long the end of the daemon waits for a check that is under way.
const claimsEnd = time.Second

// runSockets checks the files of the sockets every claimsEvery, and serves on sockets that
// were made anew, until ctx is done. It has its own goroutine, since a file system may
// hang.
func (s *Server) runSockets(ctx context.Context, listeners []Listener) {
	anew := make([]*net.UnixListener, len(listeners))
	var accepting sync.WaitGroup
	defer accepting.Wait()
	defer func() {
		for _, l := range anew {
			if l != nil {
				_ = l.Close() // ends what accepts on it
			}
		}
	}()
	tick := time.NewTicker(claimsEvery)
	defer tick.Stop()
	for {
		for i, l := range listeners {
			if l.Claim == nil {
				continue
			}
			made, err, done := checkClaim(ctx, l.Claim)
			if !done {
				return
			}
			if s.claims.note(i, s.mendable(err)) {
				//diag serving
				// The file of a socket has a problem, which the line gives and `wcache status`
				// shows. Do what the reason asks for; this section or "Paths of sockets" explains
				// it.
				s.log.Warn("engines may not reach this daemon", "err", err)
			}
			if made == nil {
				continue
			}
			//diag serving
			// The file of a socket is gone, and the daemon has made it again. See which program
			// removes files there, such as a cleaner of `/tmp`.
			s.log.Warn("socket was removed, and is made anew", "path", made.Addr())
			if anew[i] != nil {
				_ = anew[i].Close() // its file is gone, so no client reaches it
			}
			anew[i] = made
			accepting.Go(func() {
				if err := s.accept(Listener{UnixListener: made, Role: l.Role}); err != nil && !errors.Is(err, net.ErrClosed) {
					//diag serving
					// The kernel refuses to accept further connections on this socket, for the
					// logged reason. Restart the service, which keeps the weights except those with
					// `handles = "legacy"`.
					s.log.Error("socket is not served any more", "err", err)
				}
			})
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
	}
}

// checkClaim checks one claim. When ctx is done it waits for claimsEnd at most and gives
// false: a file system that hangs must not keep the daemon from ending.
func checkClaim(ctx context.Context, c *socket.Claim) (made *net.UnixListener, err error, done bool) {
	type result struct {
		made *net.UnixListener
		err  error
	}
	checked := make(chan result, 1)
	go func() {
		made, err := c.Check()
		checked <- result{made, err}
	}()
	select {
	case r := <-checked:
		return r.made, r.err, true
	case <-ctx.Done():
	}
	select {
	case r := <-checked:
		if r.made != nil {
			_ = r.made.Close() // the daemon ends
		}
	case <-time.After(claimsEnd):
	}
	return nil, nil, false
}

// mendable adds to an error what the user can do.
func (b *base) mendable(err error) error {
	var gone *socket.Unreachable
	switch {
	case !errors.As(err, &gone):
		return err
	case b.restart() == control.RestartUnmanaged:
		return fmt.Errorf("%w: what listens for this daemon has to make it anew", err)
	case b.restart() == control.RestartFrees:
		return fmt.Errorf("%w: systemctl --user restart wcache@%s.socket makes it anew, and frees what is held", err, b.o.Instance)
	}
	return fmt.Errorf("%w: systemctl --user restart wcache@%s.socket makes it anew, and keeps what is held", err, b.o.Instance)
}
