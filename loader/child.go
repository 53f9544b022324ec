// SPDX-FileCopyrightText: The wcache authors
// SPDX-License-Identifier: MIT

package loader

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync/atomic"
	"time"

	"github.com/wcache/wcache/device"
	"github.com/wcache/wcache/internal/fd"
	"github.com/wcache/wcache/layout"
	"github.com/wcache/wcache/loader/native"
	"github.com/wcache/wcache/stamp"
)

// Opener opens a device by name. BlockBytes is the most bytes of one write; 0: the device
// chooses.
type Opener func(name string, blockBytes int) (device.Device, error)

// Child does the one job that it receives over conn, the descriptor ChildFD, which it takes
// over. Open opens the device of the job. Users, which may be nil, names the programs that
// use the memory of a full device, "" if it can't.
//
// If Child has sent its error to the parent, the error is an [*Error]. Child returns at once,
// even while a device hangs, when ctx is done or the parent has ended: then the process must
// exit, which frees everything. With a [device.Keeper], Child returns when no process has a
// descriptor of the segment any more, whether the parent has ended or not.
func Child(ctx context.Context, conn *os.File, open Opener, users func(ctx context.Context, device string) string) error {
	p, err := newPipe(conn)
	if err != nil {
		return err
	}
	defer p.Close()
	restore := offer()

	job, err := receiveJob(p)
	if err != nil {
		return err
	}
	segment, err := receiveSegment(p, job)
	defer func() { _ = segment.Close() }() // only read, so an error loses nothing
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	handed := handover{restore: restore}
	go func() { // the parent sends nothing more: receive ends when it hangs up
		_, _, err := p.receive()
		if !handed.keeps.Load() {
			cancel(fmt.Errorf("wait for the parent: %w", err))
		}
	}()
	done := make(chan error, 1)
	go func() {
		err := work(ctx, p, job, segment, open, &handed)
		var full *device.NoMemory
		if errors.As(err, &full) && users != nil && job.Patience > 0 {
			if who := users(ctx, job.Device); who != "" {
				err = fmt.Errorf("%w; %s", err, who)
			}
		}
		done <- err
	}()
	select {
	case err = <-done:
	case <-ctx.Done():
		if handed.done.Load() { // the parent has the whole result
			return nil
		}
		err = context.Cause(ctx)
	}
	if err != nil {
		said := classify(err)
		if p.send(&packet{Says: saysError, Error: said}, nil) == nil { // fails if the parent has ended
			return said
		}
	}
	return err
}

func receiveJob(p *pipe) (*Job, error) {
	m, f, err := p.receive()
	if err != nil {
		return nil, err
	}
	if f == nil {
		return nil, fmt.Errorf("receive job: got %q", m.Says)
	}
	defer f.Close()
	b, err := f.ReadSealed(maxJob)
	if err != nil {
		return nil, fmt.Errorf("receive job: %w", err)
	}
	job := new(Job)
	if err := json.Unmarshal(b, job); err != nil {
		return nil, fmt.Errorf("receive job: %w", err)
	}
	return job, nil
}

// offer has the kernel end this process before others if memory runs out, since its loss
// matters least. If that isn't permitted, the process goes on without. Restore undoes it.
func offer() (restore func()) {
	const path = "/proc/self/oom_score_adj"
	before, err := os.ReadFile(path)
	if err == nil {
		err = os.WriteFile(path, []byte("1000"), 0)
	}
	if err != nil {
		return func() {}
	}
	return func() { _ = os.WriteFile(path, before, 0) }
}

// handover is the state of a child after its job. Keeps and done are set before the child
// tells the parent, which may hang up at once.
type handover struct {
	keeps   atomic.Bool // this process keeps the memory, so it must not end
	done    atomic.Bool // the parent has the whole result
	restore func()      // called by a process that keeps the memory, see offer
}

// work does the job by its task.
func work(ctx context.Context, p *pipe, job *Job, s device.Segment, open Opener, handed *handover) error {
	if job.Task == taskHash {
		return hash(ctx, p, job, handed)
	}
	if job.Plan == nil || job.Plan.Table == nil {
		return errors.New("start job: the plan has no table")
	}
	switch job.Task {
	case taskLoad:
		return load(ctx, p, job, open, handed)
	case taskVerify:
		return verify(ctx, p, job, s, open, handed)
	}
	return fmt.Errorf("start job: unknown task %q", job.Task)
}

// load fills memory and sends it to the parent. If this process keeps the memory, load
// returns when no process has a descriptor of it any more. Then it doesn't close the device:
// the process's end does that, even if the driver hangs.
func load(ctx context.Context, p *pipe, job *Job, open Opener, handed *handover) (err error) {
	d, buf, err := allocate(ctx, p, job, open)
	if err != nil {
		return err
	}
	keeper, keeps := d.(device.Keeper)
	defer func() {
		if !keeps || err != nil {
			err = errors.Join(err, d.Close())
		}
	}()
	defer func() { err = errors.Join(err, buf.Close()) }()
	if err := fill(ctx, p, job, buf); err != nil {
		return err
	}
	s, err := buf.Seal()
	if err != nil {
		return err
	}
	defer s.Close()
	table, err := encodeTable(job.Plan, s.Bytes)
	if err != nil {
		return err
	}
	defer table.Close()
	for _, f := range s.Pieces {
		if err := p.send(&packet{Says: saysSegment, Bytes: s.Bytes}, f); err != nil {
			return err
		}
	}
	if keeps {
		handed.restore()
	}
	handed.keeps.Store(keeps)
	handed.done.Store(true)
	if err := p.send(&packet{Says: saysDone}, table); err != nil || !keeps {
		return err
	}
	_, _ = s.Close(), table.Close() // the keeper waits for the end of all descriptors but its own
	keeper.Wait()
	return nil
}

// The pauses between tries to allocate a device's memory: each is twice the one before,
// from firstWait to maxWait.
const (
	firstWait = 250 * time.Millisecond
	maxWait   = 2 * time.Second
)

// allocate opens the job's device and makes its buffer. While the device is full it tries
// again until the job's patience is over. Between tries it closes the device, since a
// context takes memory too.
func allocate(ctx context.Context, p *pipe, job *Job, open Opener) (device.Device, device.Buffer, error) {
	begin := time.Now()
	for wait := firstWait; ; wait = min(2*wait, maxWait) {
		d, buf, err := openAndAlloc(job, open)
		if err == nil {
			return d, buf, nil
		}
		var full *device.NoMemory
		if !errors.As(err, &full) {
			return nil, nil, err
		}
		left := job.Patience - time.Since(begin)
		if left <= 0 {
			if job.Patience > 0 {
				err = fmt.Errorf("%w, and there was no more within %v", err, job.Patience)
			}
			return nil, nil, err
		}
		_ = p.send(&packet{Says: saysProgress, Total: job.Plan.Table.Bytes(), Waiting: fmt.Sprintf("%d bytes, of which %d are free", full.Want, full.Free)}, nil)
		select {
		case <-time.After(min(wait, left)):
		case <-ctx.Done():
			return nil, nil, context.Cause(ctx)
		}
	}
}

func openAndAlloc(job *Job, open Opener) (device.Device, device.Buffer, error) {
	d, err := open(job.Device, job.BlockBytes)
	if err != nil {
		return nil, nil, &noDevice{fmt.Errorf("open device %q: %w", job.Device, err)}
	}
	buf, err := d.Alloc(job.Plan.Table.Segment)
	if err != nil {
		return nil, nil, errors.Join(err, d.Close())
	}
	return d, buf, nil
}

// noDevice marks the error of a device that could not be opened.
type noDevice struct{ error }

func (e *noDevice) Unwrap() error { return e.error }

// encodeTable makes the sealed file of a plan's table, with the real size of the segment,
// which the device has rounded up. The caller owns it.
func encodeTable(plan *layout.Plan, segment int64) (*fd.FD, error) {
	t := *plan.Table
	t.Segment = segment
	b, err := t.Encode()
	if err != nil {
		return nil, err
	}
	return fd.Sealed("wcache-table", b)
}

// fill is native.Fill with progress packets to the parent.
func fill(ctx context.Context, p *pipe, job *Job, buf device.Buffer) error {
	r := newReport(p, job)
	r.allocated = buf.Bytes()
	return r.during(func() error {
		return native.Fill(ctx, job.Plan, buf, r.options(job, func(d Digest) error {
			if d.Hub != "" && d.Hub != d.SHA256 {
				return &native.Damaged{Path: job.Digests[d.File].Path, SHA256: d.SHA256, Hub: d.Hub}
			}
			return nil
		}))
	})
}

// classify turns an error into one of a kind that the parent can act on.
func classify(err error) *Error {
	e := &Error{Kind: KindFailed, Message: strings.ReplaceAll(err.Error(), "\n", "; ")} // errors.Join puts each error on its own line
	var memory *device.NoMemory
	var changed *stamp.Changed
	var unreadable *native.Unreadable
	var damaged *native.Damaged
	var none *noDevice
	switch {
	case errors.As(err, &memory):
		e.Kind, e.Want, e.Free = KindNoMemory, memory.Want, memory.Free
	case errors.As(err, &changed):
		e.Kind = KindFileChanged
	case errors.As(err, &unreadable):
		e.Kind = KindFileUnreadable
	case errors.As(err, &damaged):
		e.Kind = KindDamaged
	case errors.As(err, &none):
		e.Kind = KindNoDevice
	}
	if len(e.Message) > maxText {
		e.Message = e.Message[:maxText]
	}
	return e
}
