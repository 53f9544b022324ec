// SPDX-FileCopyrightText: The wcache authors
// SPDX-License-Identifier: MIT

package main

import (
	"fmt"
	"os"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

// wait returns when a file has something to read, or to accept.
func wait(f *os.File) error {
	for {
		_, err := unix.Poll([]unix.PollFd{{Fd: int32(f.Fd()), Events: unix.POLLIN}}, -1)
		if err != unix.EINTR {
			return err
		}
	}
}

// first moves a file to the number of the first passed descriptor, blocking and
// to be inherited, as the manager passes sockets.
func first(f *os.File) (*os.File, error) {
	const listenFD = 3 // SD_LISTEN_FDS_START
	n := int(f.Fd())
	if n == listenFD {
		_, err := unix.FcntlInt(uintptr(n), unix.F_SETFD, 0)
		return f, err
	}
	if err := unix.Dup2(n, listenFD); err != nil {
		return nil, err
	}
	return os.NewFile(listenFD, "listen"), nil
}

func execve(path string, args, env []string, keep *os.File) error {
	err := syscall.Exec(path, args, env)
	_ = keep.Close()
	return err
}

// terminalPair is a pseudo-terminal: what is written to the second end is read
// from the first.
func terminalPair(t *testing.T) (master, slave *os.File) {
	t.Helper()
	master, err := os.OpenFile("/dev/ptmx", os.O_RDWR|unix.O_NOCTTY|unix.O_CLOEXEC, 0)
	if err != nil {
		t.Skipf("no pseudo-terminals: %v; what isn't a terminal is tried in TestScript", err)
	}
	t.Cleanup(func() { _ = master.Close() })
	n, err := unix.IoctlGetInt(int(master.Fd()), unix.TIOCGPTN)
	if err != nil {
		t.Fatal(err)
	}
	if err := unix.IoctlSetPointerInt(int(master.Fd()), unix.TIOCSPTLCK, 0); err != nil {
		t.Fatal(err)
	}
	slave, err = os.OpenFile(fmt.Sprintf("/dev/pts/%d", n), os.O_RDWR|unix.O_NOCTTY|unix.O_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = slave.Close() })
	return master, slave
}
