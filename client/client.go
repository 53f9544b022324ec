// SPDX-FileCopyrightText: The wcache authors
// SPDX-License-Identifier: MIT

// Package client talks to a running instance: over its control socket as the commands
// do, and over an engine's socket as an engine does.
package client

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"path/filepath"
	"sync"
	"syscall"
	"time"

	"github.com/wcache/wcache/control"
	"github.com/wcache/wcache/protocol"
)

// Socket is where an instance listens for engines: below $XDG_RUNTIME_DIR, or below the
// directory that logind would make.
func Socket(env func(string) string, uid int, instance string) string {
	dir := env("XDG_RUNTIME_DIR")
	if !filepath.IsAbs(dir) {
		dir = fmt.Sprintf("/run/user/%d", uid)
	}
	return filepath.Join(dir, "vllm_weight_cache", instance+".sock")
}

// Patience is how long an instance may be silent by default. A healthy instance answers in
// milliseconds, or in seconds on a machine that is out of memory.
const Patience = 10 * time.Second

// Asker sends requests to an instance.
type Asker struct {
	Socket   string        // the control socket
	Patience time.Duration // 0: [Patience]
}

// Do is [Asker.Do] with the default patience.
func Do(ctx context.Context, socket string, request control.Request, each func(control.Reply)) (*control.Reply, error) {
	return Asker{Socket: socket}.Do(ctx, request, each)
}

// Do sends a control request and gives the final reply. Replies before it go to
// each, if it isn't nil. The error is a [*control.Error] if the daemon refused the
// request or isn't running: the control socket is the daemon's own, so connecting to
// it starts nothing. It is a [*Silent] if the daemon runs and doesn't answer, and a
// [*Foreign] if another user's process listens.
//
// Do waits for a long request, such as a load, as long as the daemon answers other
// questions.
func (a Asker) Do(ctx context.Context, request control.Request, each func(control.Reply)) (*control.Reply, error) {
	if a.Patience == 0 {
		a.Patience = Patience
	}
	ctx, end := context.WithCancelCause(ctx)
	var listening sync.WaitGroup
	defer listening.Wait()
	defer end(nil)
	conn, err := dial(ctx, a.Socket, a.Patience)
	if err != nil {
		return nil, err
	}
	defer func() { _ = conn.Close() }()
	stop := context.AfterFunc(ctx, func() { _ = conn.SetDeadline(time.Now()) })
	defer stop()
	if err := control.Write(conn, request); err != nil {
		return nil, fmt.Errorf("ask %q: %w", a.Socket, because(ctx, err))
	}
	heard := make(chan struct{}, 1)
	listening.Go(func() {
		if a.deaf(ctx, heard, request.Method) {
			end(&Silent{Socket: a.Socket, PID: int(conn.peer.Pid), Limit: a.Patience})
		}
	})
	r := bufio.NewReader(conn)
	for {
		var reply control.Reply
		if err := control.Read(r, &reply); err != nil {
			return nil, fmt.Errorf("ask %q: %w", a.Socket, because(ctx, err))
		}
		select {
		case heard <- struct{}{}:
		default:
		}
		switch {
		case !reply.Final:
			if each != nil {
				each(reply)
			}
		case reply.Error != nil:
			return &reply, reply.Error
		default:
			return &reply, nil
		}
	}
}

// deaf waits until nothing was heard for as long as the asker is patient. For a request
// that may take longer, the daemon must not answer another question either. It returns
// false when ctx is done.
func (a Asker) deaf(ctx context.Context, heard <-chan struct{}, method string) bool {
	slow := method == control.MethodWarm || method == control.MethodEvict
	silence := time.NewTimer(a.Patience)
	defer silence.Stop()
	for {
		select {
		case <-ctx.Done():
			return false
		case <-heard:
		case <-silence.C:
			if !slow || !a.answers(ctx) {
				return ctx.Err() == nil
			}
		}
		silence.Reset(a.Patience)
	}
}

// answers reports whether the daemon answers another question. A version that doesn't
// know the question still answers with an error.
func (a Asker) answers(ctx context.Context) bool {
	ctx, cancel := context.WithTimeout(ctx, a.Patience)
	defer cancel()
	conn, err := dial(ctx, a.Socket, a.Patience)
	if err != nil {
		return false
	}
	defer func() { _ = conn.Close() }()
	stop := context.AfterFunc(ctx, func() { _ = conn.SetDeadline(time.Now()) })
	defer stop()
	var reply control.Reply
	return control.Write(conn, control.Request{Method: control.MethodPing}) == nil && control.Read(bufio.NewReader(conn), &reply) == nil
}

// because is why an exchange broke off: the caller's own reason comes before the
// connection's error.
func because(ctx context.Context, err error) error {
	switch {
	case ctx.Err() != nil:
		return context.Cause(ctx)
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF), errors.Is(err, syscall.ECONNRESET), errors.Is(err, syscall.EPIPE):
		//diag reaching
		// The daemon ended during the request, because it was stopped or killed. The log of the service
		// says why; repeat the command.
		return errors.New("the daemon closed the connection")
	}
	return err
}

// Start makes the service manager start an idle instance, and waits until it serves. It
// sends the request that engines send first to the engine's socket.
func Start(ctx context.Context, socket string) error {
	payload, err := protocol.EncodeRequest(&protocol.Request{Cmd: protocol.GetMemory})
	if err != nil {
		return err
	}
	_, conn, err := Engine(ctx, socket, payload)
	if err != nil {
		return err
	}
	return conn.Close()
}

// Engine sends one framed request as an engine does and gives the reply. The caller
// closes the connection, and has to keep it for a watch. The error is a [*Foreign] if
// another user's process listens.
func Engine(ctx context.Context, socket string, payload []byte) (*protocol.Reply, net.Conn, error) {
	conn, err := dial(ctx, socket, Patience)
	if err != nil {
		return nil, nil, err
	}
	stop := context.AfterFunc(ctx, func() { _ = conn.SetDeadline(time.Now()) })
	defer stop()
	reply, err := exchange(conn, payload)
	if err != nil {
		_ = conn.Close() // the first error is the one to tell
		return nil, nil, fmt.Errorf("ask %q: %w", socket, because(ctx, err))
	}
	return reply, conn.UnixConn, nil
}

func exchange(conn net.Conn, payload []byte) (*protocol.Reply, error) {
	if err := protocol.WriteFrame(conn, payload); err != nil {
		return nil, err
	}
	b, err := protocol.ReadFrame(conn, protocol.MaxReply)
	if err != nil {
		return nil, err
	}
	return protocol.DecodeReply(b)
}
