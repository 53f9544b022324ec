// SPDX-FileCopyrightText: The wcache authors
// SPDX-License-Identifier: MIT

package loader

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/wcache/wcache/device"
	"github.com/wcache/wcache/internal/fd"
	"github.com/wcache/wcache/tensor"
)

// Run starts one child for one job and waits for the result. It calls progress, which may
// be nil, on its own goroutine.
//
// A failure of the child is an *Error; when ctx is done Run kills the child and the error is
// ctx's. Either way no process, descriptor or memory of the child is left; but Run gives up
// after Options.ExitWait on a child that hangs in the kernel, where signals don't reach it.
//
// Run doesn't wait for the end of a child that has done its job: a driver takes 0.1 s to
// clear up after a process. The child is killed if it hasn't ended after Options.ExitWait. A
// child that keeps the memory goes on, see [Keeper]. Run is safe for concurrent use.
func Run(ctx context.Context, opt Options, job Job, progress func(Progress)) (*Result, error) {
	job.Task = taskLoad
	return run(ctx, opt, job, device.Segment{}, progress)
}

// run is Run for any task. The segment is of a job that verifies, and stays the caller's.
func run(ctx context.Context, opt Options, job Job, segment device.Segment, progress func(Progress)) (*Result, error) {
	if progress == nil {
		progress = func(Progress) {}
	}
	if opt.ExitWait == 0 {
		opt.ExitWait = 5 * time.Second
	}
	b, err := json.Marshal(job)
	if err != nil {
		return nil, fmt.Errorf("encode job: %w", err)
	}
	if len(b) > maxJob {
		return nil, fmt.Errorf("encode job: %d bytes are over the limit of %d", len(b), maxJob)
	}
	file, err := fd.Sealed("wcache-job", b)
	if err != nil {
		return nil, err
	}
	defer file.Close()

	start := time.Now()
	c, err := startChild(ctx, opt)
	if err != nil {
		if ctx.Err() != nil {
			return nil, fmt.Errorf("%s: %w", doing(job.Task), context.Cause(ctx))
		}
		return nil, err
	}
	result, err := c.converse(ctx, job.Task, file, segment, progress)
	if err != nil {
		c.kill()
		state := c.wait(opt.ExitWait)
		result.Close()
		if ctx.Err() != nil {
			return nil, fmt.Errorf("%s: %w", doing(job.Task), context.Cause(ctx))
		}
		return nil, explain(err, job.Task, state)
	}
	result.Elapsed = time.Since(start)
	_ = c.pipe.Close() // everything was read
	if result.kept() {
		result.Keeper = &Keeper{c, opt.ExitWait}
		return result, nil
	}
	go c.wait(opt.ExitWait)
	return result, nil
}

// explain turns a failed exchange between parent and child into an *Error.
func explain(err error, task, state string) error {
	said := &Error{Kind: KindFailed, Message: err.Error()}
	if !errors.As(err, &said) && (errors.Is(err, errHangUp) || errors.Is(err, unix.EPIPE) || errors.Is(err, os.ErrDeadlineExceeded)) {
		//diag loading HOW
		// The loader process was killed, perhaps for lack of memory, or crashed. Look at the log of
		// the service and at `dmesg`.
		said = &Error{Kind: KindDied, Message: "the loader ended early: " + state}
	}
	if task != taskLoad {
		said.Doing = doing(task)
	}
	return said
}

type child struct {
	cmd  *exec.Cmd
	pipe *pipe
	gone chan struct{} // closed once the process is reaped
	err  error         // how it ended, valid when gone is closed
}

func startChild(ctx context.Context, opt Options) (*child, error) {
	if len(opt.Command) == 0 {
		return nil, errors.New("start loader: no command")
	}
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("start loader: make socketpair: %w", err)
	}
	theirs := os.NewFile(uintptr(pair[1]), "loader")
	defer theirs.Close()
	ours, err := newPipe(os.NewFile(uintptr(pair[0]), "loader"))
	if err != nil {
		return nil, err
	}
	if err := ctx.Err(); err != nil {
		_ = ours.Close()
		return nil, err
	}
	cmd := exec.Command(opt.Command[0], opt.Command[1:]...) // a keeper outlives ctx
	cmd.Env = opt.Env
	stderr, end := errorsTo(opt.Stderr)
	cmd.Stderr = stderr
	cmd.ExtraFiles = []*os.File{theirs} // the first is ChildFD
	cmd.WaitDelay = time.Second         // for a stderr that another process holds open
	// A process group of its own: an interrupt from the terminal is for the daemon alone,
	// and a kill also reaches the processes that the child started.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := cmd.Start(); err != nil {
		_ = ours.Close()
		return nil, &Error{Kind: KindFailed, Message: fmt.Sprintf("start %q: %v", opt.Command[0], err)}
	}
	c := &child{cmd: cmd, pipe: ours, gone: make(chan struct{})}
	go c.reap(end)
	return c, nil
}

// reap waits for the child's end, and calls end.
func (c *child) reap(end func()) {
	c.err = waitGroup(c.cmd)
	end()
	close(c.gone)
	// After this, receive still gets the packets that the child sent, and then the end, even
	// if a process that left the group holds the socket open.
	_ = c.pipe.conn.CloseRead()
}

// waitGroup waits for the end of a process that leads its group, and kills the rest of the
// group before it reaps the process: until then the kernel gives its pid to no other group.
func waitGroup(cmd *exec.Cmd) error {
	pid := cmd.Process.Pid
	for {
		err := unix.Waitid(unix.P_PID, pid, nil, unix.WEXITED|unix.WNOWAIT, nil)
		if err != unix.EINTR {
			break
		}
	}
	_ = unix.Kill(-pid, unix.SIGKILL)
	return cmd.Wait()
}

func (c *child) kill() { _ = c.cmd.Process.Kill() }

// wait hangs up, and returns how the child ended. It kills the child after the patience,
// and gives up after as much again.
func (c *child) wait(patience time.Duration) string {
	_ = c.pipe.Close()
	for range 2 {
		select {
		case <-c.gone:
			if c.cmd.ProcessState == nil {
				return c.err.Error()
			}
			return c.cmd.ProcessState.String()
		case <-time.After(patience):
			c.kill()
		}
	}
	return fmt.Sprintf("process %d was killed and does not end", c.cmd.Process.Pid)
}

// converse sends the job to the child and collects its packets. The result is never nil; with
// an error it owns what came before.
func (c *child) converse(ctx context.Context, task string, job *fd.FD, segment device.Segment, progress func(Progress)) (*Result, error) {
	stop := context.AfterFunc(ctx, func() { _ = c.pipe.conn.SetReadDeadline(time.Now()) })
	defer stop()
	r := new(Result)
	if err := c.pipe.send(&packet{Says: saysJob}, job); err != nil {
		return r, err
	}
	for _, f := range segment.Pieces {
		if err := c.pipe.send(&packet{Says: saysSegment, Bytes: segment.Bytes}, f); err != nil {
			return r, err
		}
	}
	var begin time.Time
	for {
		m, f, err := c.pipe.receive()
		if err != nil {
			return r, err
		}
		switch {
		case m.Says == saysProgress:
			if m.Allocated > 0 {
				if begin.IsZero() {
					begin = time.Now()
				}
				r.Filling = time.Since(begin)
			}
			progress(Progress{Allocated: m.Allocated, Done: m.Done, Total: m.Total, Waiting: m.Waiting})
		case m.Says == saysDigest && m.Digest != nil:
			r.Digests = append(r.Digests, *m.Digest)
			if len(r.Digests) > maxFiles {
				return r, fmt.Errorf("receive digests: more than %d", maxFiles)
			}
			progress(Progress{Digest: m.Digest})
		case m.Says == saysVerdict && task != taskLoad:
			r.difference = m.Difference
			return r, nil
		case m.Says == saysSegment && task == taskLoad:
			if err := gather(&r.Segment, m, f); err != nil {
				return r, err
			}
		case m.Says == saysDone && task == taskLoad:
			r.TableFD = f
			slices.SortFunc(r.Digests, func(a, b Digest) int { return cmp.Compare(a.File, b.File) })
			return r, r.readTable()
		case m.Says == saysError && m.Error != nil:
			return r, m.Error
		default:
			if f != nil {
				_ = f.Close()
			}
			return r, fmt.Errorf("receive packet: unexpected %q", m.Says)
		}
	}
}

// readTable fills Table from TableFD and compares it with the segment.
func (r *Result) readTable() error {
	b, err := r.TableFD.ReadSealed(tensor.MaxEncoded)
	if err != nil {
		return fmt.Errorf("receive table: %w", err)
	}
	if r.Table, err = tensor.Decode(b); err != nil {
		return fmt.Errorf("receive table: %w", err)
	}
	if _, err := r.Segment.PieceBytes(); err != nil || r.Segment.Bytes != r.Table.Segment {
		return fmt.Errorf("receive table: its segment has %d bytes, and %d in %d pieces came", r.Table.Segment, r.Segment.Bytes, len(r.Segment.Pieces))
	}
	return nil
}

// gather adds the piece of a packet to a segment. Each packet has the size of the whole
// segment.
func gather(s *device.Segment, m *packet, f *fd.FD) error {
	if f == nil {
		return fmt.Errorf("receive segment: got %q", m.Says)
	}
	if len(s.Pieces) > 0 && s.Bytes != m.Bytes || len(s.Pieces) == maxPieces {
		_ = f.Close()
		return fmt.Errorf("receive segment: piece %d says %d bytes, the first %d; at most %d pieces", len(s.Pieces), m.Bytes, s.Bytes, maxPieces)
	}
	s.Pieces, s.Bytes = append(s.Pieces, f), m.Bytes
	return nil
}
