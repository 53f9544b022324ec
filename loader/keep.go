// SPDX-FileCopyrightText: The wcache authors
// SPDX-License-Identifier: MIT

package loader

import "time"

// Keeper is a child that goes on after its job, because the memory that it filled
// is its own ([device.Keeper]). It ends when nobody holds a descriptor of its
// segment any more, and its end is that of the memory. Its methods are safe for
// concurrent use.
type Keeper struct {
	child    *child
	patience time.Duration // with a process that has no reason to be any more
}

// PID is the process's.
func (k *Keeper) PID() int { return k.child.cmd.Process.Pid }

// Ended is closed when the process has ended.
func (k *Keeper) Ended() <-chan struct{} { return k.child.gone }

// End waits for the end of a keeper whose segments nobody holds any more, and says
// how it ended. It is killed after Options.ExitWait.
func (k *Keeper) End() string { return k.child.wait(k.patience) }

// kept reports whether the child has to go on.
func (r *Result) kept() bool {
	_, kept, _ := r.Segment.Handle()
	return kept
}
