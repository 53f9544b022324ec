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

// slowest is how fast, in bytes a second, an engine takes a reply at the least. It
// has time for that beside the request's: the reply may be a model by value.
const slowest = 100 << 20

// maxReplies is how much memory the replies to get_state that are being made and
// written may take together, in bytes. A model of 500 tensors takes 60 KB of it, and
// an engine that reads gives that back at once.
const maxReplies = 64 << 20

// replies writes what engines are told. Safe for concurrent use.
type replies struct {
	*base
	room *quota.Quota // bytes of replies to get_state that are being written
}

// answer replies and logs if that can't be done: the request ends here.
func (r *replies) answer(conn *net.UnixConn, p peer.Process, payload []byte) {
	if err := r.reply(conn, payload); err != nil {
		//diag serving
		// The client closed its connection before the answer, or did not read it in time. See the
		// client's own log.
		r.log.Warn("reply not written", "pid", p.PID, "err", err)
	}
}

// reply writes a reply within its time.
func (r *replies) reply(conn *net.UnixConn, payload []byte) error {
	return r.send(conn, protocol.Whole(payload), nil)
}

// send writes a reply within its time. Last is called before its last part is written.
func (r *replies) send(conn *net.UnixConn, m protocol.Message, last func()) error {
	limit := time.Duration(r.configuration().RequestTimeout) + time.Duration(m.Len()/slowest)*time.Second
	if err := conn.SetWriteDeadline(time.Now().Add(limit)); err != nil {
		return fmt.Errorf("write reply: %w", err)
	}
	// The server's end waits for those that read, and for no others.
	stop := context.AfterFunc(r.ctx, func() { _ = conn.SetWriteDeadline(time.Now().Add(min(limit, endLimit))) })
	defer stop()
	return protocol.WriteMessage(outlet{conn}, m, last)
}

// state is the reply that hands out an entry, which has to be held until its last part
// is written. The caller gives its share back when the reply is written or given up.
func (r *replies) state(ctx context.Context, request *protocol.Request, hold *cache.Hold, p peer.Process) (protocol.Message, *quota.Share, error) {
	form, err := r.form(ctx, request, hold, p)
	if err != nil {
		return nil, nil, err
	}
	of, _ := release.Like(request.Key.Str("vllm_version")) // of others nothing is held
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

// tooLong makes a lasting no of the error of a reply that no engine would take.
func tooLong(err error) error {
	var long *protocol.FrameSizeError
	if !errors.As(err, &long) {
		return err
	}
	//diag engine NUMBER NUMBER
	// With `handles = "value"` the weights are sent through the socket, and the engine takes no
	// longer reply. Set `handles = "mapped"`, with which a model may have any size.
	return &resolve.Refusal{
		Field: "checkpoint", Reason: fmt.Sprintf("a reply by value has at most %d bytes, and this one has %d", long.Limit, long.Bytes),
		Hint: `set handles = "mapped" in wcache.toml`,
	}
}

//diag engine
// Replies to engines that do not read them use all memory that is set aside for replies. Ask again;
// the daemon closes those connections after `request_timeout`.

// errUnread is the error of a reply that there is no memory for.
var errUnread = errors.New("other engines don't read theirs, which take all the memory that is for replies")
