// SPDX-FileCopyrightText: The wcache authors
// SPDX-License-Identifier: MIT

package daemon

import (
	"context"
	"errors"
	"fmt"
	"net"
	"time"

	"github.com/wcache/wcache/config"
	"github.com/wcache/wcache/protocol"
	"github.com/wcache/wcache/resolve"
)

// serveEngine answers one request of an engine.
func (s *Server) serveEngine(ctx context.Context, conn *net.UnixConn, p peer, role Role, v *visitor) {
	var request *protocol.Request
	came, err := s.await(conn, v, func() error {
		frame, err := protocol.ReadFrame(conn, protocol.MaxRequest)
		if err == nil {
			request, err = protocol.DecodeRequest(frame)
		}
		return err
	})
	if err != nil {
		s.log.Warn("request refused", "pid", p.pid, "role", role, "err", err)
		_ = s.reply(conn, protocol.Error(err.Error())) // it may be gone
	}
	if !came {
		return
	}
	switch request.Cmd {
	case protocol.GetState:
		s.getState(ctx, conn, p, role, request)
	case protocol.GetMemory:
		bytes := s.cache.Memory(role == Draft)
		if s.barred(p) != nil { // it maps nothing of that
			bytes = 0
		}
		s.log.Info("get_memory", "pid", p.pid, "role", role, "bytes", bytes)
		s.answer(conn, p, protocol.Memory(bytes))
	case protocol.Release:
		freed := s.cache.Release(p.pid, role == Draft)
		s.log.Info("release", "pid", p.pid, "role", role, "freed", freed)
		s.answer(conn, p, protocol.OK())
	case protocol.Watch:
		s.watch(ctx, conn, p)
	default:
		s.log.Warn("request refused", "pid", p.pid, "role", role, "cmd", request.Cmd)
		s.answer(conn, p, protocol.UnknownCommand(request.Cmd))
	}
}

// getState finds or loads what the key names and hands it out.
func (s *Server) getState(ctx context.Context, conn *net.UnixConn, p peer, role Role, request *protocol.Request) {
	begin := time.Now()
	if !request.HasKey {
		s.log.Warn("get_state without a key", "pid", p.pid)
		s.answer(conn, p, protocol.MissingKey(request))
		return
	}
	key := request.Key
	log := s.log.With("pid", p.pid, "role", role, "key", key.ID()[:12])
	if key.Bool("is_draft") != (role == Draft) {
		log.Warn("get_state refused", "reason", "the socket is for the other role")
		s.recordRefusal(key, p, role, &resolve.Refusal{
			Field: "is_draft", Reason: fmt.Sprintf("it was asked for on the socket of the %s model", role),
			Hint: "the draft model has a socket of its own, whose name ends with _draft.sock",
		})
		s.answer(conn, p, protocol.Mismatch([]string{"is_draft"}))
		return
	}
	if err := s.barred(p); err != nil {
		log.Warn("get_state refused", "err", err)
		s.recordRefusal(key, p, role, &resolve.Refusal{Reason: err.Error()})
		s.answer(conn, p, protocol.Mismatch([]string{err.Error()}))
		return
	}
	if !s.crowd.states.take() {
		err := s.crowd.states.full()
		log.Warn("get_state refused", "err", err)
		s.answer(conn, p, s.refuse(err))
		return
	}
	defer s.crowd.states.leave()
	s.gpu.look(s.ctx, lookEvery)
	ctx, cancel := s.untilHangup(ctx, conn)
	defer cancel()
	hold, miss, err := s.find(ctx, key, func(ctx context.Context) (resolve.Choice, error) {
		return s.identify(ctx, key, p.began(), func() (*resolve.Started, error) { return s.started(p, key) })
	})
	if err != nil && ctx.Err() != nil && s.ctx.Err() == nil {
		log.Warn("get_state not answered", "err", "the engine has hung up")
		return
	}
	if miss != nil {
		s.record(miss, p, role)
	}
	if err != nil {
		log.Warn("get_state refused", "seconds", time.Since(begin).Seconds(), "err", err)
		s.answer(conn, p, s.refuse(err))
		return
	}
	defer hold.Release()
	message, share, err := s.state(ctx, request, hold, p)
	if err != nil {
		log.Error("get_state refused", "err", err)
		s.answer(conn, p, s.refuse(err))
		return
	}
	defer share.Give()
	if err := s.attach(hold, p.engine()); err != nil {
		log.Warn("get_state refused", "err", err)
		s.answer(conn, p, s.refuse(err)) // if it hasn't ended
		return
	}
	// What is attached needs no hold but for what is read from its segments, and an
	// engine that releases as soon as it has read the answer must find none.
	if err := s.send(conn, message, hold.Release); err != nil {
		log.Warn("get_state not answered", "err", err)
		return
	}
	log.Info("get_state", "model", hold.Model(), "sure", hold.By(), "bytes", hold.Table().Bytes(), "hit", hold.Hit(), "seconds", time.Since(begin).Seconds())
}

// barred is why an engine could do nothing with what it would be given, which it
// notices when it is too late for it to load from disk.
func (s *Server) barred(p peer) error {
	what, mend := p.barrier()
	other := config.HandlesValue
	if s.o.GPU {
		other = config.HandlesLegacy
	}
	switch {
	case what == "" || p.pid != 0 && (s.keeps() || s.byValue()):
		return nil
	case p.pid != 0: // an engine whose end can be waited for
		mend += fmt.Sprintf(", or set handles = %q in wcache.toml", other)
		if other == config.HandlesLegacy {
			mend += ", with which weights go with the daemon"
		}
	}
	return fmt.Errorf("the engine %s it can't reach this process's memory: %s", what, mend)
}

// watch keeps a connection until the engine or the server ends. The engine only
// reads, and takes the end of the connection for the end of the weights' keeper.
func (s *Server) watch(ctx context.Context, conn *net.UnixConn, p peer) {
	if !s.crowd.watches.take() {
		err := s.crowd.watches.full() // an engine goes on without one
		s.log.Warn("watch refused", "pid", p.pid, "err", err)
		s.answer(conn, p, protocol.Error(err.Error()))
		return
	}
	defer s.crowd.watches.leave()
	kept := make(chan string, 1)
	go func() {
		name, err := s.keepWatch(conn, p.pid)
		if err != nil {
			s.log.Warn("watch would not outlive the daemon", "pid", p.pid, "err", err)
		}
		kept <- name
	}()
	// What is answered is to outlive this process, and thousands that watch at once keep
	// the service manager busy.
	name, waited := "", true
	timer := time.NewTimer(watchWait)
	defer timer.Stop()
	select {
	case name = <-kept:
		waited = false
	case <-timer.C:
	case <-ctx.Done():
	}
	err := s.reply(conn, protocol.OK())
	if waited {
		name = <-kept
	}
	if err != nil {
		s.log.Warn("watch not answered", "pid", p.pid, "err", err)
		if name != "" {
			s.forgetWatch(name)
		}
		return
	}
	s.log.Info("watch", "pid", p.pid)
	s.untilEnd(ctx, conn, name)
}

// watchWait is how long a watch is not answered while the service manager takes its
// time. It is shorter than engines wait, which is 5 seconds.
const watchWait = 2 * time.Second

// untilEnd waits for the end of the engine, of the weights, or of the server. Only
// with that of the server does the connection stay in the store.
func (s *Server) untilEnd(ctx context.Context, conn *net.UnixConn, name string) {
	hangup, cancel := s.untilHangup(ctx, conn)
	s.mu.Lock()
	watching := s.watching
	s.mu.Unlock()
	select {
	case <-hangup.Done():
	case <-watching.Done():
		_ = conn.CloseWrite() // which ends it at once, for all who have it
	}
	cancel()
	if ctx.Err() == nil && name != "" {
		s.forgetWatch(name)
	}
}

// untilHangup gives a context that ends when the peer closes the connection, on
// which nothing more is to be read. The caller cancels it before it closes the
// connection.
func (s *Server) untilHangup(ctx context.Context, conn *net.UnixConn) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancel(ctx)
	done := make(chan struct{})
	go func() {
		defer close(done)
		_, err := conn.Read(make([]byte, 1))
		var timeout net.Error
		if err != nil && errors.As(err, &timeout) && timeout.Timeout() {
			return // told to end, below or by the server's end
		}
		cancel()
	}()
	return ctx, func() {
		cancel()
		_ = conn.SetReadDeadline(time.Now())
		<-done
	}
}
