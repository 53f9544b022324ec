// SPDX-FileCopyrightText: The wcache authors
// SPDX-License-Identifier: MIT

package loader

import "time"

// Keeper is a child that goes on after its job, because it keeps the memory that it filled
// ([device.Keeper]). It ends when no process has a descriptor of its segment any more. Its
// end frees the memory. Its methods are safe for concurrent use.
type Keeper struct {
	child    *child
	patience time.Duration // of End, before it kills the process
}

// PID is the process's pid.
func (k *Keeper) PID() int { return k.child.cmd.Process.Pid }

// Ended is closed when the process has ended.
func (k *Keeper) Ended() <-chan struct{} { return k.child.gone }

// End waits for the end of a keeper after the last descriptor of its segment was closed, and
// says how it ended. After Options.ExitWait it kills the keeper.
func (k *Keeper) End() string { return k.child.wait(k.patience) }

// kept reports whether the child keeps the memory, and so has to go on.
func (r *Result) kept() bool {
	_, kept, _ := r.Segment.Handle()
	return kept
}
