// SPDX-FileCopyrightText: The wcache authors
// SPDX-License-Identifier: MIT

package daemon

import (
	"context"
	"fmt"
	"net"
	"time"

	"github.com/wcache/wcache/config"
	"github.com/wcache/wcache/daemon/peer"
	"github.com/wcache/wcache/protocol"
	"github.com/wcache/wcache/resolve"
)

// serveEngine answers one request of an engine.
func (s *Server) serveEngine(ctx context.Context, conn *net.UnixConn, p peer.Process, role Role, v *visitor) {
	var request *protocol.Request
	came, err := s.await(conn, v, func() error {
		frame, err := protocol.ReadFrame(conn, protocol.MaxRequest)
		if err == nil {
			request, err = protocol.DecodeRequest(frame)
		}
		return err
	})
	if err != nil {
		//diag serving
		// The daemon could not read a request of an engine, or does not know what it asks for; the
		// line gives the error. See under "Between the engine and the daemon" in wcache(1).
		s.log.Warn("request refused", "pid", p.PID, "role", role, "err", err)
		_ = s.replies.reply(conn, protocol.Error(err.Error())) // the engine may be gone
	}
	if !came {
		return
	}
	switch request.Cmd {
	case protocol.GetState:
		s.getState(ctx, conn, p, role, request)
	case protocol.GetMemory:
		bytes := s.cache.Memory(role == Draft)
		if s.barred(p) != nil { // it can't map any of them
			bytes = 0
		}
		s.log.Info("get_memory", "pid", p.PID, "role", role, "bytes", bytes)
		s.replies.answer(conn, p, protocol.Memory(bytes))
	case protocol.Release:
		freed := s.cache.Release(p.PID, role == Draft)
		s.log.Info("release", "pid", p.PID, "role", role, "freed", freed)
		s.replies.answer(conn, p, protocol.OK())
	case protocol.Watch:
		s.watches.serve(ctx, conn, p)
	default:
		s.log.Warn("request refused", "pid", p.PID, "role", role, "cmd", request.Cmd)
		s.replies.answer(conn, p, protocol.UnknownCommand(request.Cmd))
	}
}

// getState finds or loads what the key names and gives it to the engine.
func (s *Server) getState(ctx context.Context, conn *net.UnixConn, p peer.Process, role Role, request *protocol.Request) {
	begin := time.Now()
	if !request.HasKey {
		//diag serving
		// A client asked for weights without saying which. Unmodified engines do not; see which
		// process it is.
		s.log.Warn("get_state without a key", "pid", p.PID)
		s.replies.answer(conn, p, protocol.MissingKey(request))
		return
	}
	key := request.Key
	log := s.log.With("pid", p.PID, "role", role, "key", key.ID()[:12])
	if key.Bool("is_draft") != (role == Draft) {
		//diag serving
		// The daemon has refused the weights to an engine, which loads from disk or asks again; the
		// line gives the reason, which wcache(1) explains.
		log.Warn("get_state refused",
			//diag serving
			// An engine asked for a target model on the draft model's socket, or the reverse. Give
			// it the path of the right socket.
			"reason", "the socket is for the other role")
		//diag engine ROLE
		// A target model and a draft model have a socket each, and the key's `is_draft` belongs to
		// the other one. Give the engine the path of the right socket.
		s.rememberRefusal(key, p, role, &resolve.Refusal{
			Field: "is_draft", Reason: fmt.Sprintf("it was asked for on the socket of the %s model", role),
			Hint: "the draft model has a socket of its own, whose name ends with _draft.sock",
		})
		s.replies.answer(conn, p, protocol.Mismatch([]string{"is_draft"}))
		return
	}
	if err := s.barred(p); err != nil {
		log.Warn("get_state refused", "err", err)
		s.rememberRefusal(key, p, role, &resolve.Refusal{Reason: err.Error()})
		s.replies.answer(conn, p, protocol.Mismatch([]string{err.Error()}))
		return
	}
	if !s.crowd.states.take() {
		err := s.crowd.states.full()
		log.Warn("get_state refused", "err", err)
		s.replies.answer(conn, p, s.refuse(err))
		return
	}
	defer s.crowd.states.leave()
	s.gpu.look(s.ctx, lookEvery)
	ctx, cancel := untilHangup(ctx, conn)
	defer cancel()
	hold, miss, err := s.find(ctx, key, func(ctx context.Context) (resolve.Choice, error) {
		return s.finder.identify(ctx, key, p.Began(), func() (*resolve.Started, error) { return s.finder.started(p, key) })
	})
	if err != nil && ctx.Err() != nil && s.ctx.Err() == nil {
		//diag serving
		// The engine ended or closed its connection before the answer. See the engine's own log.
		log.Warn("get_state not answered", "err", "the engine has hung up")
		return
	}
	if miss != nil {
		s.remember(miss, p, role)
	}
	if err != nil {
		log.Warn("get_state refused", "seconds", time.Since(begin).Seconds(), "err", err)
		s.replies.answer(conn, p, s.refuse(err))
		return
	}
	defer hold.Release()
	message, share, err := s.replies.state(ctx, request, hold, p)
	if err != nil {
		log.Error("get_state refused", "err", err)
		s.replies.answer(conn, p, s.refuse(err))
		return
	}
	defer share.Give()
	if err := s.attachments.attach(hold, engine(p)); err != nil {
		log.Warn("get_state refused", "err", err)
		s.replies.answer(conn, p, s.refuse(err)) // the engine may have ended
		return
	}
	// The attachment keeps the entry; the hold is needed only while the reply is read from
	// its segments. An engine may send release as soon as it has read the answer, and the
	// hold must be gone by then.
	if err := s.replies.send(conn, message, hold.Release); err != nil {
		log.Warn("get_state not answered", "err", err)
		return
	}
	log.Info("get_state", "model", hold.Model(), "sure", hold.By(), "bytes", hold.Table().Bytes(), "hit", hold.Hit(), "seconds", time.Since(begin).Seconds())
}

// barred is why an engine can't open the handles that it would get; nil if it can. An
// engine notices that only when it is too late to load from disk, so it is refused before.
func (s *Server) barred(p peer.Process) error {
	what, mend := p.Barrier()
	other := config.HandlesValue
	if s.o.GPU {
		other = config.HandlesLegacy
	}
	switch {
	case what == "" || p.PID != 0 && (s.keeps() || s.byValue()):
		return nil
	case p.PID != 0: // the daemon can wait for this engine's end
		mend += fmt.Sprintf(", or set handles = %q in wcache.toml", other)
		if other == config.HandlesLegacy {
			mend += ", with which the weights are lost when the daemon ends"
		}
	}
	return fmt.Errorf("the engine %s it can't reach this process's memory: %s", what, mend)
}
