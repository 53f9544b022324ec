// SPDX-FileCopyrightText: The wcache authors
// SPDX-License-Identifier: MIT

package client

import (
	"context"
	"errors"
	"fmt"
	"net"

	"golang.org/x/sys/unix"
)

// Peer is the process that listens on a control socket, as it is numbered here: 0
// if it can't be seen, which is so from another pid namespace. The error is as
// [Do]'s.
func Peer(ctx context.Context, socket string) (pid int, err error) {
	conn, err := dial(ctx, socket)
	if err != nil {
		return 0, err
	}
	defer func() { _ = conn.Close() }()
	raw, err := conn.(*net.UnixConn).SyscallConn() // what dial gives
	if err != nil {
		return 0, fmt.Errorf("look who serves %q: %w", socket, err)
	}
	var cred *unix.Ucred
	var credErr error
	if err := raw.Control(func(fd uintptr) {
		cred, credErr = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED)
	}); err != nil || credErr != nil {
		return 0, fmt.Errorf("look who serves %q: %w", socket, errors.Join(err, credErr))
	}
	return int(cred.Pid), nil
}
