// SPDX-FileCopyrightText: The wcache authors
// SPDX-License-Identifier: MIT

package loader

import (
	"context"
	"errors"
	"fmt"

	"github.com/wcache/wcache/device"
	"github.com/wcache/wcache/layout"
	"github.com/wcache/wcache/loader/native"
)

// Tasks of a job.
const (
	taskLoad   = ""
	taskVerify = "verify"
	taskHash   = "hash"
)

// doing names a task in an error.
func doing(task string) string {
	switch task {
	case taskVerify:
		return "verify memory"
	case taskHash:
		return "hash files"
	}
	return "load model"
}

// Verify has a child carry out a job's plan again and compare the result, block by block,
// with a segment that an earlier [Run] of an equal plan has filled, in this process or an
// earlier one. The difference is nil if all bytes are equal. After an error, an [*Error] or
// ctx's, nothing is known about the memory; KindFileChanged is about the files only. Digests
// of the job come by progress, whether memory differs or not.
//
// The segment stays the caller's and must stay open; engines may have mapped it. To read a
// GPU's memory the child opens a context, which takes some hundred MiB of it meanwhile.
//
// Progress may be nil. All else is as with Run. Verify is safe for concurrent use.
func Verify(ctx context.Context, opt Options, job Job, s device.Segment, progress func(Progress)) (*Difference, error) {
	job.Task, job.Pieces = taskVerify, len(s.Pieces)
	if job.Plan == nil || job.Plan.Table == nil || job.Pieces == 0 {
		return nil, &Error{Kind: KindFailed, Message: "start job: the plan has no table, or there is no segment", Doing: doing(taskVerify)}
	}
	r, err := run(ctx, opt, job, s, progress)
	if err != nil {
		return nil, err
	}
	return r.difference, nil
}

// Hash has a child compute the sha256 of files at idle priority, one after the other. The
// child reads blocks that aren't in the page cache past it. Each digest, whose File is an
// index into files, comes by progress as soon as it is known, so that a job that is ended
// early loses none. Errors are as with [Run]. Hash is safe for concurrent use.
func Hash(ctx context.Context, opt Options, files []layout.File, progress func(Progress)) error {
	_, err := run(ctx, opt, Job{Task: taskHash, Digests: files}, device.Segment{}, progress)
	return err
}

// receiveSegment receives the segment that a job verifies. The caller owns it, also the
// pieces that came before an error.
func receiveSegment(p *pipe, job *Job) (s device.Segment, err error) {
	if job.Task != taskVerify {
		return s, nil
	}
	for range job.Pieces {
		m, f, err := p.receive()
		if err == nil {
			err = gather(&s, m, f)
		}
		if err != nil {
			return s, err
		}
	}
	return s, nil
}

// verify compares memory with the result of the job's plan.
func verify(ctx context.Context, p *pipe, job *Job, s device.Segment, open Opener, handed *handover) (err error) {
	d, err := open(job.Device, job.BlockBytes)
	if err != nil {
		return &noDevice{fmt.Errorf("open device %q: %w", job.Device, err)}
	}
	defer func() { err = errors.Join(err, d.Close()) }()
	view, err := d.View(s)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, view.Close()) }()
	var difference *Difference
	r := newReport(p, job)
	err = r.during(func() (err error) {
		difference, err = native.Compare(ctx, job.Plan, view, r.options(job, all))
		return err
	})
	if err != nil {
		return err
	}
	handed.done.Store(true)
	return p.send(&packet{Says: saysVerdict, Difference: difference}, nil)
}

// hash computes digests only.
func hash(ctx context.Context, p *pipe, job *Job, handed *handover) error {
	yield()
	r := newReport(p, job)
	h := r.hashing(job, all)
	h.Gently = true
	if err := r.during(func() error { return native.Hash(ctx, h) }); err != nil {
		return err
	}
	handed.done.Store(true)
	return p.send(&packet{Says: saysVerdict}, nil)
}

// all accepts every digest: the parent judges them.
func all(Digest) error { return nil }
