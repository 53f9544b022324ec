// SPDX-FileCopyrightText: The wcache authors
// SPDX-License-Identifier: MIT

package loader

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os/exec"
	"syscall"
	"time"
)

// Conditions of a GPU.
const (
	GPUOK      = "ok"
	GPULost    = "lost"           // it has fallen off the bus
	GPUReset   = "reset required" // it answers, and computes nothing before a reset
	GPUAbsent  = "not there"      // the driver knows no GPU of this name
	GPUUnknown = "unknown"        // the driver can't be asked
)

// Health is how a GPU is and who uses it, in bytes, as a child found it.
type Health struct {
	UUID   string `json:"uuid"`
	Index  int    `json:"index"` // nvidia-smi's number, -1: not known, as of a MIG slice
	Name   string `json:"name,omitempty"`
	Driver string `json:"driver,omitempty"`
	State  string `json:"state"`            // a condition, above
	Reason string `json:"reason,omitempty"` // of all but GPUOK: the driver's words, and what to do
	Total  int64  `json:"total_bytes"`
	Used   int64  `json:"used_bytes"`
	Free   int64  `json:"free_bytes"`
	// Uncorrected counts errors of the memory that ECC could not correct, since the
	// driver was loaded; -1: not known.
	Uncorrected int64     `json:"uncorrected_errors"`
	Processes   []Process `json:"processes"`
}

// Process is a process that uses a GPU.
type Process struct {
	PID   int    `json:"pid"`
	Comm  string `json:"comm,omitempty"` // empty if it can't be seen from here
	Bytes int64  `json:"bytes"`          // -1: the driver doesn't say
}

// Gone reports whether what was in the GPU's memory can't be used any more.
func (h *Health) Gone() bool {
	return h.State == GPULost || h.State == GPUReset || h.State == GPUAbsent
}

// Unowned is the memory that is no process's, of what is used: what is held by
// descriptors alone, and what the driver doesn't tell.
func (h *Health) Unowned() int64 {
	n := h.Used
	for _, p := range h.Processes {
		n -= max(p.Bytes, 0)
	}
	return max(n, 0)
}

// maxHealth is far above what a child says of a GPU with hundreds of processes.
const maxHealth = 1 << 20

// reapTime is how long a child that was killed may take to end before it is left
// to do so by itself: one that waits for a lost GPU in the kernel gets no signal.
const reapTime = time.Second

// Stuck is the error of [Ask] about a child that was killed and didn't end. Another
// one would most likely be left like it.
type Stuck struct {
	Ended <-chan struct{} // closed when it has
	Err   error           // why it was killed
}

func (e *Stuck) Error() string { return e.Err.Error() }

// Unwrap is for errors.Is.
func (e *Stuck) Unwrap() error { return e.Err }

// Ask has a child, opt.Command with the uuid as its last argument, look at a GPU,
// and gives what it says in JSON on its standard output. When ctx is done the
// child is killed, or given up with a [Stuck] if it doesn't end. Ask is safe for
// concurrent use.
func Ask(ctx context.Context, opt Options, uuid string) (*Health, error) {
	if len(opt.Command) == 0 {
		return nil, errors.New("ask about GPU: no command")
	}
	cmd := exec.Command(opt.Command[0], append(append([]string(nil), opt.Command[1:]...), uuid)...)
	out := &limited{most: maxHealth}
	stderr, last := errorsTo(opt.Stderr)
	cmd.Env, cmd.Stdout, cmd.Stderr = opt.Env, out, stderr
	cmd.WaitDelay = reapTime
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // an interrupt is the daemon's affair
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("ask about GPU %s: %w", uuid, err)
	}
	var end error
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		end = waitGroup(cmd)
		last()
	}()
	select {
	case <-ended:
		if end != nil {
			return nil, fmt.Errorf("ask about GPU %s: the child ended early: %w", uuid, end)
		}
	case <-ctx.Done():
		_ = cmd.Process.Kill()
		err := fmt.Errorf("ask about GPU %s: %w", uuid, context.Cause(ctx))
		select {
		case <-ended:
			return nil, err
		case <-time.After(reapTime):
			return nil, &Stuck{ended, err}
		}
	}
	h := new(Health)
	if err := json.Unmarshal(out.got, h); err != nil {
		return nil, fmt.Errorf("ask about GPU %s: read the child's answer: %w", uuid, err)
	}
	return h, nil
}

// limited takes no more than most bytes.
type limited struct {
	got  []byte
	most int
}

func (l *limited) Write(p []byte) (int, error) {
	if len(l.got)+len(p) > l.most {
		return 0, fmt.Errorf("more than %d bytes", l.most)
	}
	l.got = append(l.got, p...)
	return len(p), nil
}
