// SPDX-FileCopyrightText: The wcache authors
// SPDX-License-Identifier: MIT

package client

import (
	"context"
	"fmt"
	"net"

	"github.com/wcache/wcache/internal/fd"
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
	cred, err := fd.Peer(conn.(*net.UnixConn)) // what dial gives
	if err != nil {
		return 0, fmt.Errorf("look who serves %q: %w", socket, err)
	}
	return int(cred.Pid), nil
}
