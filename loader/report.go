// SPDX-FileCopyrightText: The wcache authors
// SPDX-License-Identifier: MIT

package loader

import (
	"sync"
	"sync/atomic"
	"time"

	"github.com/wcache/wcache/loader/native"
)

// progressEvery is how often a child sends progress.
const progressEvery = 100 * time.Millisecond

// report sends the progress of a job to the parent.
type report struct {
	p         *pipe
	allocated int64 // bytes of the device
	memory    int64 // bytes to be filled or compared
	files     int64 // bytes to be hashed

	done, hashed atomic.Int64 // of those
}

func newReport(p *pipe, job *Job) *report {
	r := &report{p: p}
	if job.Plan != nil {
		r.memory = job.Plan.Table.Bytes()
	}
	for _, f := range job.Digests {
		r.files += f.Stamp.Size
	}
	return r
}

// options makes the options of a job that reads files to fill memory or to compare it. An
// error of check, which is called with each digest, ends the job.
func (r *report) options(job *Job, check func(Digest) error) native.Options {
	return native.Options{
		Workers: job.Workers, BlockBytes: job.BlockBytes, Direct: job.Direct,
		Progress: func(n int64) { r.done.Add(n) }, Digests: r.hashing(job, check),
	}
}

func (r *report) hashing(job *Job, check func(Digest) error) native.Hashing {
	return native.Hashing{
		Files:    job.Digests,
		Progress: func(n int64) { r.hashed.Add(n) },
		Done: func(d Digest) error {
			if err := check(d); err != nil {
				return err
			}
			return r.p.send(&packet{Says: saysDigest, Digest: &d}, nil)
		},
	}
}

// say sends the progress once. Of filling and hashing, which run side by side, it sends the
// slower one.
func (r *report) say() error {
	done, total := r.done.Load(), r.memory
	switch {
	case r.memory == 0:
		done, total = r.hashed.Load(), r.files
	case r.files > 0:
		done = min(done, int64(float64(r.hashed.Load())/float64(r.files)*float64(r.memory)))
	}
	return r.p.send(&packet{Says: saysProgress, Allocated: r.allocated, Done: done, Total: total}, nil)
}

// during sends the progress before do, every progressEvery while do runs, and after its
// success.
func (r *report) during(do func() error) error {
	if err := r.say(); err != nil {
		return err
	}
	stop := make(chan struct{})
	var wg sync.WaitGroup
	wg.Go(func() {
		tick := time.NewTicker(progressEvery)
		defer tick.Stop()
		for {
			select {
			case <-stop:
				return
			case <-tick.C:
				_ = r.say() // if the parent has ended, so does the job
			}
		}
	})
	err := do()
	close(stop)
	wg.Wait()
	if err != nil {
		return err
	}
	return r.say()
}
