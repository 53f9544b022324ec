// SPDX-FileCopyrightText: The wcache authors
// SPDX-License-Identifier: MIT

package loader

import (
	"os"
	"strconv"

	"golang.org/x/sys/unix"
)

// Constants of ioprio_set(2), which x/sys doesn't have: a process or thread, and the class
// that gets the disk when no other process wants it.
const (
	ioprioWhoProcess = 1
	ioprioClassIdle  = 3 << 13
)

// yield gives this process, for the rest of its life, only the processor and disk time that
// no other process wants. That is set per thread, and new threads inherit it: yield repeats
// until a pass over all threads finds none to change. If it isn't permitted the process goes
// on without.
func yield() {
	for changed := true; changed; {
		changed = false
		tasks, _ := os.ReadDir("/proc/self/task") // without /proc it does nothing
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

// lower sets a thread's policy, and reports whether that worked.
func lower(tid int) bool {
	_ = unix.Setpriority(unix.PRIO_PROCESS, tid, 19)                                                              // shown by top and ps
	_, _, _ = unix.Syscall(unix.SYS_IOPRIO_SET, ioprioWhoProcess, uintptr(tid), ioprioClassIdle)                  // only some disk schedulers use it
	return unix.SchedSetAttr(tid, &unix.SchedAttr{Size: unix.SizeofSchedAttr, Policy: unix.SCHED_IDLE}, 0) == nil // or the thread has ended
}
