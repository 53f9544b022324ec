// SPDX-FileCopyrightText: The wcache authors
// SPDX-License-Identifier: MIT

package loader

import (
	"os"
	"strconv"

	"golang.org/x/sys/unix"
)

// Of ioprio_set(2), which x/sys doesn't have: a process or thread, and the class that
// gets the disk when no other process wants it.
const (
	ioprioWhoProcess = 1
	ioprioClassIdle  = 3 << 13
)

// yield gives this process, for the rest of its life, only what no other wants of
// processors and disks. These are properties of threads, which a thread passes on to
// those that it makes: it is done when a look at all finds nothing more to do. Where
// that is not allowed the process goes on as it is.
func yield() {
	for changed := true; changed; {
		changed = false
		tasks, _ := os.ReadDir("/proc/self/task") // without /proc there is nothing to be done
		for _, t := range tasks {
			tid, err := strconv.Atoi(t.Name())
			if err == nil && !idle(tid) {
				changed = lower(tid) || changed
			}
		}
	}
}

func idle(tid int) bool {
	attr, err := unix.SchedGetAttr(tid, 0)
	return err == nil && attr.Policy == unix.SCHED_IDLE
}

// lower reports whether a thread has the policy now.
func lower(tid int) bool {
	_ = unix.Setpriority(unix.PRIO_PROCESS, tid, 19)                                                              // for those who look
	_, _, _ = unix.Syscall(unix.SYS_IOPRIO_SET, ioprioWhoProcess, uintptr(tid), ioprioClassIdle)                  // only some schedulers of disks care
	return unix.SchedSetAttr(tid, &unix.SchedAttr{Size: unix.SizeofSchedAttr, Policy: unix.SCHED_IDLE}, 0) == nil // or the thread has ended
}
