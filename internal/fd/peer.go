// SPDX-FileCopyrightText: The wcache authors
// SPDX-License-Identifier: MIT

package fd

import (
	"errors"
	"syscall"

	"golang.org/x/sys/unix"
)

// Peer gives the pid, uid and gid of the process that made the other end of a Unix socket's
// connection, or listens there (SO_PEERCRED), as numbers of this process's namespaces. The pid
// is 0 if the process isn't visible in this pid namespace.
func Peer(conn syscall.Conn) (*unix.Ucred, error) {
	raw, err := conn.SyscallConn()
	if err != nil {
		return nil, err
	}
	var cred *unix.Ucred
	var credErr error
	err = raw.Control(func(n uintptr) {
		cred, credErr = unix.GetsockoptUcred(int(n), unix.SOL_SOCKET, unix.SO_PEERCRED)
	})
	return cred, errors.Join(err, credErr)
}
