// SPDX-FileCopyrightText: The wcache authors
// SPDX-License-Identifier: MIT

// Package peer describes the process at the other end of a connection: its pid and user,
// whether it can fetch descriptors of this process, and when it ends.
package peer

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

	"github.com/wcache/wcache/internal/fd"
)

// Process is a process that has connected. After its end the kernel may give its pid to
// another process.
type Process struct {
	PID int // 0: it is in a pid namespace that this process can't see
	UID int
	GID int
}

// Of asks the kernel which process connected.
func Of(conn *net.UnixConn) (Process, error) {
	cred, err := fd.Peer(conn)
	if err != nil {
		return Process{}, fmt.Errorf("check peer: %w", err)
	}
	return Process{PID: int(cred.Pid), UID: int(cred.Uid), GID: int(cred.Gid)}, nil
}

// Barrier says what keeps the process from taking descriptors of this one, and what to do
// about it; "" if nothing is known to. In another pid namespace the pid of this process
// has no meaning, or another one; the other barriers are the conditions of ptrace(2) for
// access to a process.
func (p Process) Barrier() (what, mend string) {
	together, known := p.Shares("pid")
	if p.PID == 0 || known && !together {
		//diag barred
		// The engine and the daemon see different process numbers, as with a container. Start the
		// container with `--pid=host`, run both in one, or set `handles` as the message says; see
		// Containers in wcache@.service(8).
		return "is in another pid namespace, where", "run the two in one, such as with --pid=host"
	}
	together, known = p.Shares("user")
	if known && !together {
		//diag barred
		// The kernel lets no process take descriptors from one in another user namespace. Run both
		// in one container or outside, or set `handles` as the message says; see Containers in
		// wcache@.service(8).
		return "is in another user namespace, where", "run the two in one"
	}
	theirs, err := capabilities(p.PID)
	if err != nil || theirs>>unix.CAP_SYS_PTRACE&1 == 1 {
		return "", ""
	}
	ours, err := capabilities(os.Getpid())
	switch {
	case p.GID != os.Getegid():
		//diag barred GID GID
		// The kernel lets a process take descriptors only from one with its own groups. Start both
		// as the same group, without newgrp(1), or set `handles` as the message says.
		return fmt.Sprintf("is of group %d and this process of %d, so that", p.GID, os.Getegid()), "start both as the same group, without newgrp"
	// The user who made the user namespace of a container has all rights in it from
	// outside; Shares doesn't know about such a process, so it isn't refused.
	case known && err == nil && ours&^theirs != 0:
		//diag barred
		// The kernel lets a process take descriptors only from one without further capabilities.
		// Start the engine and the service with the same, or set `handles` as the message says.
		return "has fewer capabilities than this process, so that", "start both with the same"
	}
	return "", ""
}

// Shares reports whether the process is in this one's namespace of a kind, such as "pid".
// Known is false if the process has ended or /proc denies access to it.
func (p Process) Shares(kind string) (shared, known bool) {
	theirs, err := os.Readlink(fmt.Sprintf("/proc/%d/ns/%s", p.PID, kind))
	if err != nil {
		return false, false
	}
	ours, err := os.Readlink("/proc/self/ns/" + kind)
	return ours == theirs, err == nil
}

// capabilities gives the permitted capabilities of a process, one bit per capability.
func capabilities(pid int) (uint64, error) {
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return 0, err
	}
	return parseCapabilities(string(status))
}

func parseCapabilities(status string) (uint64, error) {
	_, rest, _ := strings.Cut(status, "\nCapPrm:")
	line, _, _ := strings.Cut(rest, "\n")
	return strconv.ParseUint(strings.TrimSpace(line), 16, 64)
}

// Name is the process's name in /proc/PID/comm, "" if it has ended.
func (p Process) Name() string {
	comm, err := os.ReadFile(fmt.Sprintf("/proc/%d/comm", p.PID))
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(comm))
}

// StartTime is when a process started, field 22 of /proc/PID/stat, in clock ticks
// since boot. The second field, the name in parentheses, may hold anything.
func StartTime(pid int) (uint64, error) {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0, err
	}
	start, err := parseStart(stat)
	if err != nil {
		return 0, fmt.Errorf("read start time of process %d: %w", pid, err)
	}
	return start, nil
}

// Began is the wall clock time at which the process started, or up to a tick earlier; zero
// if it isn't known.
func (p Process) Began() time.Time {
	ticks, err := StartTime(p.PID)
	var up unix.Timespec
	if err != nil || unix.ClockGettime(unix.CLOCK_BOOTTIME, &up) != nil {
		return time.Time{}
	}
	const tick = time.Second / 100 // USER_HZ, the same on all platforms of Go
	return time.Now().Add(time.Duration(ticks)*tick - time.Duration(up.Nano()))
}

func parseStart(stat []byte) (uint64, error) {
	rest := strings.Fields(string(stat[bytes.LastIndexByte(stat, ')')+1:]))
	if len(rest) < 20 {
		return 0, errors.New("no such field")
	}
	return strconv.ParseUint(rest[19], 10, 64)
}

// Describe names a process in a message.
func Describe(pid int) string {
	if name := (Process{PID: pid}).Name(); name != "" {
		return fmt.Sprintf("process %d (%s)", pid, name)
	}
	return fmt.Sprintf("process %d", pid)
}
