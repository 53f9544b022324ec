// SPDX-FileCopyrightText: The wcache authors
// SPDX-License-Identifier: MIT

package daemon

import (
	"bytes"
	"errors"
	"fmt"
	"net"
	"os"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/wcache/wcache/cache"
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

// elsewhere reports whether the process is known to be in another pid namespace.
// There the number of this process means nothing, or another process.
func (p peer) elsewhere() bool {
	if p.pid == 0 { // in none of ours
		return true
	}
	theirs, err := os.Readlink(fmt.Sprintf("/proc/%d/ns/pid", p.pid))
	if err != nil {
		return false // it has ended, or doesn't let itself be looked at
	}
	ours, err := os.Readlink("/proc/self/ns/pid")
	return err == nil && ours != theirs
}

// name is the process's own name, "" if it has ended.
func (p peer) name() string {
	comm, err := os.ReadFile(fmt.Sprintf("/proc/%d/comm", p.pid))
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(comm))
}

// engine is the process as the cache knows it.
func (p peer) engine() cache.Engine {
	start, _ := startTime(p.pid) // 0 if it has ended, which is noticed elsewhere
	return cache.Engine{PID: p.pid, Name: p.name(), Start: start, Since: time.Now()}
}

// startTime is when a process started, field 22 of /proc/PID/stat, in clock ticks
// since boot. The second field, the name in parentheses, may hold anything.
func startTime(pid int) (uint64, error) {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0, err
	}
	rest := strings.Fields(string(stat[bytes.LastIndexByte(stat, ')')+1:]))
	if len(rest) < 20 {
		return 0, fmt.Errorf("read start time of process %d: no such field", pid)
	}
	return strconv.ParseUint(rest[19], 10, 64)
}
