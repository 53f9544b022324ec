// SPDX-FileCopyrightText: The wcache authors
// SPDX-License-Identifier: MIT

// Package peer is the process at the other end of a connection: who it is, whether it
// could fetch a descriptor of this process, and when it ends.
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

// Process is a process that has connected. Its number may be another's once it has ended.
type Process struct {
	PID int // 0: of a pid namespace that this one can't see into
	UID int
	GID int
}

// Of asks the kernel who connected.
func Of(conn *net.UnixConn) (Process, error) {
	cred, err := fd.Peer(conn)
	if err != nil {
		return Process{}, fmt.Errorf("check peer: %w", err)
	}
	return Process{PID: int(cred.Pid), UID: int(cred.Uid), GID: int(cred.Gid)}, nil
}

// Barrier says what is known to keep the process from taking descriptors of this
// one, and what to do about it; "" for nothing. In another pid namespace this
// process's number means another process or none, and the rest is what ptrace(2)
// demands of whoever looks into a process.
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
	// The user who made the namespace of a container may do all in it from outside,
	// and is one who can't be looked at from here.
	case known && err == nil && ours&^theirs != 0:
		//diag barred
		// The kernel lets a process take descriptors only from one without further capabilities.
		// Start the engine and the service with the same, or set `handles` as the message says.
		return "has fewer capabilities than this process, so that", "start both with the same"
	}
	return "", ""
}

// Shares reports whether the process is in this one's namespace of a kind. That isn't
// known of one that has ended or doesn't let itself be looked at.
func (p Process) Shares(kind string) (shared, known bool) {
	theirs, err := os.Readlink(fmt.Sprintf("/proc/%d/ns/%s", p.PID, kind))
	if err != nil {
		return false, false
	}
	ours, err := os.Readlink("/proc/self/ns/" + kind)
	return ours == theirs, err == nil
}

// capabilities are those that a process may use, a bit each.
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

// Name is the process's own name, "" if it has ended.
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

// Began is when the process started, by the clock, and at most a tick earlier; zero if
// that can't be told.
func (p Process) Began() time.Time {
	ticks, err := StartTime(p.PID)
	var up unix.Timespec
	if err != nil || unix.ClockGettime(unix.CLOCK_BOOTTIME, &up) != nil {
		return time.Time{}
	}
	const tick = time.Second / 100 // USER_HZ, which is the same on all that Go runs on
	return time.Now().Add(time.Duration(ticks)*tick - time.Duration(up.Nano()))
}

func parseStart(stat []byte) (uint64, error) {
	rest := strings.Fields(string(stat[bytes.LastIndexByte(stat, ')')+1:]))
	if len(rest) < 20 {
		return 0, errors.New("no such field")
	}
	return strconv.ParseUint(rest[19], 10, 64)
}

// Describe is how a message names a process.
func Describe(pid int) string {
	if name := (Process{PID: pid}).Name(); name != "" {
		return fmt.Sprintf("process %d (%s)", pid, name)
	}
	return fmt.Sprintf("process %d", pid)
}
