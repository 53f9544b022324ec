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

	"github.com/wcache/wcache/device"
)

// maxAnswer limits a child's answer, in bytes: far more than it takes for a GPU with
// hundreds of processes.
const maxAnswer = 1 << 20

// reapTime is how long Probe waits for the end of a child that it has killed. A child that
// waits for a lost GPU in the kernel gets no signal.
const reapTime = time.Second

// Stuck is the error of [Ask] and [Probe] for a child that was killed and didn't end. A new
// child would most likely hang too.
type Stuck struct {
	Ended <-chan struct{} // closed when the child has ended
	Err   error           // why the child was killed
}

func (e *Stuck) Error() string { return e.Err.Error() }

// Unwrap is for errors.Is.
func (e *Stuck) Unwrap() error { return e.Err }

// Ask is [Probe] for a child that asks only NVML, whose answer has no other parts.
func Ask(ctx context.Context, opt Options, uuid string) (*device.GPU, error) {
	r, err := Probe(ctx, opt, uuid)
	if err != nil {
		return nil, err
	}
	return &r.GPU, nil
}

// Probe has a child, opt.Command with the uuid as its last argument, look at a GPU, and
// gives the report that the child writes, in JSON, to its standard output. When ctx is done
// Probe kills the child; if the child doesn't end, the error is a [Stuck]. Probe is safe
// for concurrent use.
func Probe(ctx context.Context, opt Options, uuid string) (*device.Report, error) {
	if len(opt.Command) == 0 {
		return nil, errors.New("ask about GPU: no command")
	}
	cmd := exec.Command(opt.Command[0], append(append([]string(nil), opt.Command[1:]...), uuid)...)
	out := &limited{most: maxAnswer}
	stderr, last := errorsTo(opt.Stderr)
	cmd.Env, cmd.Stdout, cmd.Stderr = opt.Env, out, stderr
	cmd.WaitDelay = reapTime
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // an interrupt from the terminal is for the daemon alone
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
	r := new(device.Report)
	r.Processes = []device.GPUProcess{} // so that JSON has [] and not null
	if err := json.Unmarshal(out.got, r); err != nil {
		return nil, fmt.Errorf("ask about GPU %s: read the child's answer: %w", uuid, err)
	}
	return r, nil
}

// limited stores what is written to it, up to most bytes.
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
