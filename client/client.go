// SPDX-FileCopyrightText: The wcache authors
// SPDX-License-Identifier: MIT

// Package client talks to a running instance: over its control socket as the
// commands do, and over an engine's socket as an engine does.
package client

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"path/filepath"
	"syscall"
	"time"

	"github.com/wcache/wcache/control"
	"github.com/wcache/wcache/protocol"
)

// MaxReply is the limit of an engine's reply in bytes: a model by value, say.
const MaxReply = 1 << 34

// Socket is where an instance listens for engines: $XDG_RUNTIME_DIR, else the
// directory that logind would make.
func Socket(env func(string) string, uid int, instance string) string {
	dir := env("XDG_RUNTIME_DIR")
	if !filepath.IsAbs(dir) {
		dir = fmt.Sprintf("/run/user/%d", uid)
	}
	return filepath.Join(dir, "vllm_weight_cache", instance+".sock")
}

// Do sends a control request and gives the final reply. Replies before it go to
// each, if it isn't nil. The error is a [*control.Error] where the daemon said
// no, or isn't there: a connection is never what starts it, as long as the
// socket is the one that the service itself made; see [Running].
func Do(ctx context.Context, socket string, request control.Request, each func(control.Reply)) (*control.Reply, error) {
	conn, err := dial(ctx, socket)
	if err != nil {
		return nil, err
	}
	defer func() { _ = conn.Close() }()
	stop := context.AfterFunc(ctx, func() { _ = conn.SetDeadline(time.Now()) })
	defer stop()
	if err := control.Write(conn, request); err != nil {
		return nil, err
	}
	r := bufio.NewReader(conn)
	for {
		var reply control.Reply
		if err := control.Read(r, &reply); err != nil {
			if errors.Is(err, io.EOF) {
				err = errors.New("the daemon hung up")
			}
			return nil, fmt.Errorf("ask %q: %w", socket, errors.Join(err, context.Cause(ctx)))
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

func dial(ctx context.Context, socket string) (net.Conn, error) {
	var d net.Dialer
	conn, err := d.DialContext(ctx, "unix", socket)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil, &control.Error{Code: control.CodeNotRunning, Message: fmt.Sprintf("no socket at %s", socket)}
	case errors.Is(err, syscall.ECONNREFUSED):
		return nil, &control.Error{Code: control.CodeNotRunning, Message: fmt.Sprintf("nobody serves %s", socket)}
	case err != nil:
		return nil, fmt.Errorf("connect to %q: %w", socket, err)
	}
	return conn, nil
}

// Engine sends one framed request as an engine does and gives the reply. The
// caller closes the connection, which a watch has to keep.
func Engine(ctx context.Context, socket string, payload []byte) (*protocol.Reply, net.Conn, error) {
	conn, err := dial(ctx, socket)
	if err != nil {
		return nil, nil, err
	}
	stop := context.AfterFunc(ctx, func() { _ = conn.SetDeadline(time.Now()) })
	defer stop()
	reply, err := exchange(conn, payload)
	if err != nil {
		return nil, nil, fmt.Errorf("ask %q: %w", socket, errors.Join(err, conn.Close()))
	}
	return reply, conn, nil
}

func exchange(conn net.Conn, payload []byte) (*protocol.Reply, error) {
	if err := protocol.WriteFrame(conn, payload); err != nil {
		return nil, err
	}
	b, err := protocol.ReadFrame(conn, MaxReply)
	if err != nil {
		return nil, err
	}
	return protocol.DecodeReply(b)
}
