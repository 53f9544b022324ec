// SPDX-FileCopyrightText: The wcache authors
// SPDX-License-Identifier: MIT

package main

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strconv"

	"golang.org/x/sys/unix"
)

// firstFD is SD_LISTEN_FDS_START of sd_listen_fds(3).
const firstFD = 3

// becomeService does what a socket unit does, for machines without systemd: it
// listens, and at the first connection, which it doesn't accept, it becomes the
// service and passes the socket on by LISTEN_FDS.
func becomeService(socket string, command []string) error {
	if len(command) == 0 {
		return errors.New("activate: no command")
	}
	program, err := exec.LookPath(command[0])
	if err != nil {
		return fmt.Errorf("activate: %w", err)
	}
	fd, err := listen(socket)
	if err != nil {
		return fmt.Errorf("listen on %q: %w", socket, err)
	}
	for {
		_, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, -1)
		if err == nil {
			break
		}
		if err != unix.EINTR {
			return fmt.Errorf("wait for a connection: %w", err)
		}
	}
	// dup3 wants two numbers; a socket that has the right one only loses its flag.
	if fd == firstFD {
		_, err = unix.FcntlInt(uintptr(fd), unix.F_SETFD, 0)
	} else {
		err = unix.Dup3(fd, firstFD, 0)
	}
	if err != nil {
		return fmt.Errorf("pass socket: %w", err)
	}
	env := append(os.Environ(), "LISTEN_PID="+strconv.Itoa(os.Getpid()), "LISTEN_FDS=1", "LISTEN_FDNAMES=wcache")
	return fmt.Errorf("start %q: %w", program, unix.Exec(program, command, env))
}

func listen(socket string) (int, error) {
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return 0, err
	}
	if err := unix.Bind(fd, &unix.SockaddrUnix{Name: socket}); err != nil {
		return 0, err
	}
	return fd, unix.Listen(fd, unix.SOMAXCONN)
}
