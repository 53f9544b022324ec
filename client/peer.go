// SPDX-FileCopyrightText: The wcache authors
// SPDX-License-Identifier: MIT

package client

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/wcache/wcache/control"
	"github.com/wcache/wcache/internal/fd"
)

// Foreign is the error for a socket on which another user's process listens: that process
// would read requests and could give false answers.
type Foreign struct {
	Socket string
	UID    int
}

func (e *Foreign) Error() string {
	//diag reaching SOCKET NUMBER NUMBER
	// Another user's program listens on the socket, and the command has sent nothing to it. Remove
	// that socket, or choose another path.
	return fmt.Sprintf("connect to %q: user %d listens there, and this is user %d", e.Socket, e.UID, os.Geteuid())
}

// Silent is the error for a daemon that runs and doesn't answer.
type Silent struct {
	Socket string
	PID    int // of the listening process, as this process sees it; 0: not known
	Limit  time.Duration
}

//diag stuck TIME
// The command waited that long, and the state of the daemon's process does not say why.
// `wcache doctor` looks for the cause; the log of the service may say more.

func (e *Silent) Error() string { return fmt.Sprintf("it has not answered within %v", e.Limit) }

// connection is a connection to a process of this user.
type connection struct {
	*net.UnixConn
	peer *unix.Ucred // the listening process
}

// retryEvery is how often connecting is tried again while the socket's queue is full.
const retryEvery = 20 * time.Millisecond

// dial connects to a process of this user. It waits a while if the process doesn't accept.
func dial(ctx context.Context, socket string, patience time.Duration) (*connection, error) {
	var d net.Dialer
	var conn net.Conn
	var err error
	for until := time.Now().Add(patience); ; {
		conn, err = d.DialContext(ctx, "unix", socket)
		if !errors.Is(err, syscall.EAGAIN) { // the queue is full
			break
		}
		if time.Now().After(until) {
			//diag reaching SOCKET REASON
			// The socket's file is there and the kernel refuses the connection for the given
			// reason. `wcache doctor` says what helps.
			return nil, fmt.Errorf("connect to %q: %w", socket, &Silent{Socket: socket, Limit: patience})
		}
		select {
		case <-ctx.Done():
			return nil, fmt.Errorf("connect to %q: %w", socket, context.Cause(ctx))
		case <-time.After(retryEvery):
		}
	}
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil, &control.Error{Code: control.CodeNotRunning, Message: fmt.Sprintf("no socket at %s", socket)}
	case errors.Is(err, syscall.ECONNREFUSED):
		return nil, &control.Error{Code: control.CodeNotRunning, Message: fmt.Sprintf("nobody serves %s", socket)}
	case err != nil:
		return nil, fmt.Errorf("connect to %q: %w", socket, err)
	}
	c := &connection{UnixConn: conn.(*net.UnixConn)} // the network "unix" gives this type
	if c.peer, err = fd.Peer(c.UnixConn); err != nil {
		err = fmt.Errorf("look who serves %q: %w", socket, err)
	} else if int(c.peer.Uid) != os.Geteuid() {
		err = &Foreign{Socket: socket, UID: int(c.peer.Uid)}
	}
	if err != nil {
		return nil, errors.Join(err, c.Close())
	}
	return c, nil
}

// Peer is the pid of the process that listens on a control socket, as this process sees
// it: 0 if it can't be seen, such as from another pid namespace. The process need not
// answer. The errors are those of [Asker.Do].
func Peer(ctx context.Context, socket string) (pid int, err error) {
	conn, err := dial(ctx, socket, Patience)
	if err != nil {
		return 0, err
	}
	return int(conn.peer.Pid), conn.Close()
}
