// SPDX-FileCopyrightText: The wcache authors
// SPDX-License-Identifier: MIT

package daemon

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"time"

	"github.com/wcache/wcache/cache"
	"github.com/wcache/wcache/config"
	"github.com/wcache/wcache/protocol"
	"github.com/wcache/wcache/resolve"
)

// serveEngine answers one request of an engine.
func (s *Server) serveEngine(ctx context.Context, conn *net.UnixConn, p peer, role Role) {
	limit := s.beginRead(ctx, conn)
	frame, err := protocol.ReadFrame(conn, protocol.MaxRequest)
	var request *protocol.Request
	if err == nil {
		request, err = protocol.DecodeRequest(frame)
	}
	if err != nil {
		if err = unread(ctx, err, limit); err != nil {
			s.log.Warn("request refused", "pid", p.pid, "role", role, "err", err)
			_ = s.reply(conn, protocol.Error(err.Error())) // it may be gone
		}
		return
	}
	_ = conn.SetReadDeadline(time.Time{})
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

// beginRead gives a connection the time in which its request has to come whole.
// A connection that is closed shows at the read.
func (s *Server) beginRead(ctx context.Context, conn *net.UnixConn) time.Duration {
	limit := time.Duration(s.configuration().RequestTimeout)
	_ = conn.SetReadDeadline(time.Now().Add(limit))
	if ctx.Err() != nil { // the server's end has set an earlier one
		_ = conn.SetReadDeadline(time.Now())
	}
	return limit
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
	s.gpu.look(s.ctx, lookEvery)
	ctx, cancel := s.untilHangup(ctx, conn)
	defer cancel()
	hold, miss, err := s.find(ctx, key, func(ctx context.Context) (resolve.Choice, error) { return s.identify(ctx, key, p) })
	if miss != nil {
		s.record(miss, p, role)
	}
	if err != nil {
		log.Warn("get_state refused", "seconds", time.Since(begin).Seconds(), "err", err)
		s.answer(conn, p, s.refuse(err))
		return
	}
	defer hold.Release()
	payload, err := s.state(request, hold, p)
	if err != nil {
		log.Error("get_state refused", "err", err)
		s.answer(conn, p, s.refuse(err))
		return
	}
	if err := s.attach(hold, p.engine()); err != nil {
		log.Warn("get_state refused", "err", err)
		s.answer(conn, p, s.refuse(err)) // if it hasn't ended
		return
	}
	// What is attached needs no hold, and an engine that releases as soon as it has
	// read the answer must find none.
	hold.Release()
	if err := s.reply(conn, payload); err != nil {
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

// state is the reply that hands out an entry.
func (s *Server) state(request *protocol.Request, hold *cache.Hold, p peer) ([]byte, error) {
	form, err := s.form(request, hold, p)
	if err != nil {
		return nil, err
	}
	return protocol.EncodeState(protocol.State{
		Module: request.Module, Table: hold.Table(), Attrs: !strings.HasPrefix(request.Key.Str("vllm_version"), "0.30."), GPUUUID: s.o.UUID,
	}, form)
}

// watch keeps a connection until the engine or the server ends. The engine only
// reads, and takes the end of the connection for the end of the weights' keeper.
func (s *Server) watch(ctx context.Context, conn *net.UnixConn, p peer) {
	if err := s.reply(conn, protocol.OK()); err != nil {
		s.log.Warn("watch not answered", "pid", p.pid, "err", err)
		return
	}
	name, err := s.keepWatch(conn, p.pid)
	if err != nil {
		s.log.Warn("watch would not outlive the daemon", "pid", p.pid, "err", err)
	}
	s.log.Info("watch", "pid", p.pid)
	s.untilEnd(ctx, conn, name)
}

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
		s.forget(name)
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

// answer replies and logs if that can't be done: the request ends here.
func (s *Server) answer(conn *net.UnixConn, p peer, payload []byte) {
	if err := s.reply(conn, payload); err != nil {
		s.log.Warn("reply not written", "pid", p.pid, "err", err)
	}
}

// slowest is how fast, in bytes a second, an engine takes a reply at the least. It
// has time for that beside the request's: the reply may be a model by value.
const slowest = 100 << 20

// reply writes a reply within its time.
func (s *Server) reply(conn *net.UnixConn, payload []byte) error {
	limit := time.Duration(s.configuration().RequestTimeout) + time.Duration(len(payload)/slowest)*time.Second
	if err := conn.SetWriteDeadline(time.Now().Add(limit)); err != nil {
		return fmt.Errorf("write reply: %w", err)
	}
	return protocol.WriteFrame(conn, payload)
}
