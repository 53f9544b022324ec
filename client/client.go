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
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/wcache/wcache/control"
	"github.com/wcache/wcache/protocol"
)

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
// no, or isn't there: the control socket is the daemon's own, so that connecting
// to it starts nothing.
func Do(ctx context.Context, socket string, request control.Request, each func(control.Reply)) (*control.Reply, error) {
	conn, err := dial(ctx, socket)
	if err != nil {
		return nil, err
	}
	defer func() { _ = conn.Close() }()
	stop := context.AfterFunc(ctx, func() { _ = conn.SetDeadline(time.Now()) })
	defer stop()
	if err := control.Write(conn, request); err != nil {
		return nil, fmt.Errorf("ask %q: %w", socket, because(ctx, err))
	}
	r := bufio.NewReader(conn)
	for {
		var reply control.Reply
		if err := control.Read(r, &reply); err != nil {
			return nil, fmt.Errorf("ask %q: %w", socket, because(ctx, err))
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

// because is why an exchange broke off: the caller's own reason goes before what
// the connection made of it.
func because(ctx context.Context, err error) error {
	switch {
	case ctx.Err() != nil:
		return context.Cause(ctx)
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF), errors.Is(err, syscall.ECONNRESET), errors.Is(err, syscall.EPIPE):
		return errors.New("the daemon hung up")
	}
	return err
}

// Start has the service manager start an instance that is idle, and waits until
// it serves. It asks on the engine's socket what engines ask first.
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

// Listening reports whether somebody listens on a socket, without connecting to
// it: that would start a service. It sees the sockets of its own network
// namespace, in /proc/net/unix, where they have the names that bind was given.
func Listening(socket string) bool {
	list, err := os.ReadFile("/proc/net/unix")
	if err != nil {
		return false
	}
	// Num RefCount Protocol Flags Type St Inode Path; flags are __SO_ACCEPTCON of
	// include/uapi/linux/net.h or nothing.
	const accepting = "00010000"
	for line := range strings.Lines(string(list)) {
		part := strings.Fields(line)
		if len(part) > 7 && part[3] == accepting && strings.HasSuffix(strings.TrimSuffix(line, "\n"), " "+socket) {
			return true
		}
	}
	return false
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
		_ = conn.Close() // the first error is the one to tell
		return nil, nil, fmt.Errorf("ask %q: %w", socket, because(ctx, err))
	}
	return reply, conn, nil
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
