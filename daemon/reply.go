// SPDX-FileCopyrightText: The wcache authors
// SPDX-License-Identifier: MIT

package daemon

import (
	"context"
	"errors"
	"fmt"
	"net"
	"time"

	"github.com/wcache/wcache/cache"
	"github.com/wcache/wcache/daemon/peer"
	"github.com/wcache/wcache/internal/quota"
	"github.com/wcache/wcache/protocol"
	"github.com/wcache/wcache/release"
	"github.com/wcache/wcache/resolve"
)

// slowest is the lowest speed, in bytes per second, at which an engine may read a reply.
// This gives large replies more time than request_timeout: a reply may be a model by value.
const slowest = 100 << 20

// maxReplies limits the memory, in bytes, of all replies to get_state that are being made
// and written. A model of 500 tensors takes 60 KB of it, until the engine has read the
// reply.
const maxReplies = 64 << 20

// replies makes and writes replies to engines. Safe for concurrent use.
type replies struct {
	*base
	room *quota.Quota // bytes of replies to get_state that are being written
}

// answer writes a reply and logs an error of that, since the request ends here.
func (r *replies) answer(conn *net.UnixConn, p peer.Process, payload []byte) {
	if err := r.reply(conn, payload); err != nil {
		//diag serving
		// The client closed its connection before the answer, or did not read it in time. See the
		// client's own log.
		r.log.Warn("reply not written", "pid", p.PID, "err", err)
	}
}

// reply writes a reply within its time limit.
func (r *replies) reply(conn *net.UnixConn, payload []byte) error {
	return r.send(conn, protocol.Whole(payload), nil)
}

// send writes a reply within its time limit. It calls last, if not nil, before it writes
// the last part.
func (r *replies) send(conn *net.UnixConn, m protocol.Message, last func()) error {
	limit := time.Duration(r.configuration().RequestTimeout) + time.Duration(m.Len()/slowest)*time.Second
	if err := conn.SetWriteDeadline(time.Now().Add(limit)); err != nil {
		return fmt.Errorf("write reply: %w", err)
	}
	// The end of the server waits only for engines that read their reply.
	stop := context.AfterFunc(r.ctx, func() { _ = conn.SetWriteDeadline(time.Now().Add(min(limit, endLimit))) })
	defer stop()
	return protocol.WriteMessage(outlet{conn}, m, last)
}

// state makes the reply that gives an entry to an engine. The caller keeps the hold until
// the last part is written, and gives the share back when the reply is written or given up.
func (r *replies) state(ctx context.Context, request *protocol.Request, hold *cache.Hold, p peer.Process) (protocol.Message, *quota.Share, error) {
	form, err := r.form(ctx, request, hold, p)
	if err != nil {
		return nil, nil, err
	}
	of, _ := release.Like(request.Key.Str("vllm_version")) // entries have known releases only
	state := protocol.State{
		Module: request.Module, Table: hold.Table(), Attrs: of.Attrs, GPUUUID: r.o.UUID,
	}
	ctx, cancel := context.WithTimeoutCause(ctx, time.Duration(r.configuration().RequestTimeout), errUnread)
	defer cancel()
	share, err := r.room.Take(ctx, state.EncodedBytes())
	if err != nil {
		return nil, nil, fmt.Errorf("make reply: %w", err)
	}
	m, err := protocol.EncodeState(state, form)
	if err != nil {
		share.Give()
		return nil, nil, tooLong(err)
	}
	return m, share, nil
}

// tooLong makes a refusal of the error of a reply that is too long for every engine.
func tooLong(err error) error {
	var long *protocol.FrameSizeError
	if !errors.As(err, &long) {
		return err
	}
	//diag engine NUMBER NUMBER
	// With `handles = "value"` the daemon sends the weights through the socket, and the engine
	// accepts no longer reply. Set `handles = "mapped"`, with which a model may have any size.
	return &resolve.Refusal{
		Field: "checkpoint", Reason: fmt.Sprintf("a reply by value has at most %d bytes, and this one has %d", long.Limit, long.Bytes),
		Hint: `set handles = "mapped" in wcache.toml`,
	}
}

//diag engine
// Other engines do not read their replies, which use all memory that the daemon sets aside for
// replies. Ask again; the daemon closes those connections after `request_timeout`.

// errUnread is the error of a reply when maxReplies is used up.
var errUnread = errors.New("replies that other engines don't read use all memory for replies")
