// SPDX-FileCopyrightText: The wcache authors
// SPDX-License-Identifier: MIT

package daemon

import (
	"errors"
	"fmt"
	"net"
	"os"
	"strings"

	"golang.org/x/sys/unix"
)

// peer is the process at the other end of a connection.
type peer struct {
	pid int
	uid int
}

// peerOf asks the kernel who connected.
func peerOf(conn *net.UnixConn) (peer, error) {
	raw, err := conn.SyscallConn()
	if err != nil {
		return peer{}, fmt.Errorf("check peer: %w", err)
	}
	var cred *unix.Ucred
	var credErr error
	if err := raw.Control(func(fd uintptr) {
		cred, credErr = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED)
	}); err != nil || credErr != nil {
		return peer{}, fmt.Errorf("check peer: %w", errors.Join(err, credErr))
	}
	return peer{pid: int(cred.Pid), uid: int(cred.Uid)}, nil
}

// name is the process's own name, "" if it has ended.
func (p peer) name() string {
	comm, err := os.ReadFile(fmt.Sprintf("/proc/%d/comm", p.pid))
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(comm))
}
