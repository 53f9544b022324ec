// SPDX-FileCopyrightText: The wcache authors
// SPDX-License-Identifier: MIT

package daemon

import (
	"context"
	"errors"
	"fmt"
	"os"
	"runtime"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"github.com/wcache/wcache/cache"
	"github.com/wcache/wcache/config"
	"github.com/wcache/wcache/fingerprint"
	"github.com/wcache/wcache/layout"
	"github.com/wcache/wcache/loader"
	"github.com/wcache/wcache/manifest"
	"github.com/wcache/wcache/resolve"
	"github.com/wcache/wcache/weights"
)

// errLost is the error of a load at whose end the GPU is well, and was not meanwhile.
var errLost = errors.New("load model: the GPU lost what was in its memory meanwhile")

// load is what the cache calls for a key that it doesn't hold. Files that change
// under a load are planned anew, once: whoever writes them has hardly finished. What
// a GPU has lost is loaded again, once: that is seen when somebody looks, and may be
// from before the load.
func (s *Server) load(ctx context.Context, want cache.Want, ticket *cache.Ticket) (*cache.Contents, error) {
	defer s.hashing.pause()()
	contents, err := s.loadOnce(ctx, want, ticket)
	if changed(err) || errors.Is(err, errLost) {
		s.log.Info("planning again", "key", want.Key.ID()[:12], "err", err)
		contents, err = s.loadOnce(ctx, want, ticket)
	}
	if changed(err) {
		err = &cache.Moved{Err: err}
	}
	if lasting(err) && !damaged(err) {
		s.mu.Lock()
		s.declined++
		s.mu.Unlock()
	}
	return contents, err
}

// unlessBroken is the error of a request that could not be answered; where there is no
// device, or the configuration is broken, so that nothing is known of where to look and
// what is meant, that is the reason.
func (s *Server) unlessBroken(err error) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.o.DeviceErr != nil {
		return s.o.DeviceErr
	}
	if s.configErr != nil {
		return fmt.Errorf("nothing is loaded with a broken configuration: %w", s.configErr)
	}
	return err
}

// damaged reports whether a load ended because a file isn't what its name says.
func damaged(err error) bool {
	var filling *loader.Error
	return errors.As(err, &filling) && filling.Kind == loader.KindDamaged
}

// changed reports whether a load ended because its files are being written.
func changed(err error) bool {
	var planning *weights.Changed
	var filling *loader.Error
	return errors.As(err, &planning) || errors.As(err, &filling) && filling.Kind == loader.KindFileChanged
}

func (s *Server) loadOnce(ctx context.Context, want cache.Want, ticket *cache.Ticket) (*cache.Contents, error) {
	key := want.Key
	if err := s.unlessBroken(nil); err != nil {
		return nil, err
	}
	c := s.configuration()
	limit := time.Duration(c.LoadTimeout)
	whole := ctx
	ctx, cancel := context.WithTimeoutCause(ctx, limit, &tooSlow{limit})
	defer cancel()
	if err := s.usable(ctx); err != nil {
		return nil, err
	}
	losses := s.gpu.lost()
	pins, err := beside(ctx, s.checks, func(context.Context) ([]string, error) { return resolve.RealPins(c.Pins), nil })
	if err != nil {
		return nil, err
	}
	s.setPinned(pins)
	target, err := beside(ctx, s.checks, func(context.Context) (*resolve.Target, error) { return resolve.Plan(s.resolving(c), key, want.Dir) })
	if err != nil {
		return nil, err
	}
	defer target.Dir.Close()
	s.o.Index.Add(want.Dir)
	s.index.changed()
	pinned := slices.Contains(pins, want.Dir)
	if err := s.allowed(c, want, target, pinned, ticket); err != nil {
		return nil, err
	}
	for _, note := range target.Plan.Notes {
		s.log.Info("plan", "key", key.ID()[:12], "note", note)
	}
	if err := roomForFiles(); err != nil {
		return nil, err
	}
	bytes := target.Plan.Table.Segments[0]
	if err := ticket.Reserve(bytes); err != nil {
		return nil, err
	}
	begin := time.Now()
	files := record(target.Dir.Record())
	job := s.job(c, s.device(c), target.Plan)
	var places []int // in files
	if c.Verify == config.VerifyLoad {
		job.Digests, places = wanted(want.Dir, files, target.Plan)
	}
	result, err := s.run(ctx, c, job, want.Dir, ticket)
	if err != nil {
		return nil, s.blame(whole, err, time.Now())
	}
	if result.Keeper != nil {
		s.keep(result.Keeper)
	}
	if s.gpu.lost() != losses {
		result.Close()
		if err := s.usable(ctx); err != nil {
			return nil, err
		}
		return nil, errLost
	}
	for _, d := range result.Digests {
		f := &files[places[d.File]]
		f.SHA256, f.Hub = d.SHA256, d.Hub
	}
	took := time.Since(begin)
	s.ledger.loaded(bytes, took)
	s.log.Info("loaded", "key", key.ID()[:12], "model", target.Dir.Path, "sure", want.By, "loader", target.Loader, "why", target.Reason,
		"bytes", bytes, "seconds", took.Seconds(), "filling_seconds", result.Filling.Seconds())
	return &cache.Contents{
		Table: result.Table, TableFD: result.TableFD, Segments: result.Segments,
		Record: manifest.Entry{
			Revision: key.Revision().Exact(), Device: s.device(c), Loader: target.Loader, Reason: target.Reason,
			Seconds: took.Seconds(), Pinned: pinned,
			Indexed: target.Dir.Record().Indexed, Files: files,
		},
	}, nil
}

// gpuWorkers fill a GPU fastest: on an H200 ten threads that copy from the page
// cache keep the bus full, and what each more of them costs is the pinning of its
// staging. A load that casts, or that picks rows from between other ranks', is bound
// by the processors, and takes as many workers as a load into host memory.
const gpuWorkers = 10

// minWorkers keep a disk busy where there are few processors.
const minWorkers = 4

// laborious reports whether a plan has copies that are more than reading a file.
func laborious(p *layout.Plan) bool {
	return slices.ContainsFunc(p.Copies, func(c layout.Copy) bool {
		return c.From != c.To || c.Rows > 1 && c.SrcStride != c.RowBytes
	})
}

// job is what a child of this configuration does with a plan.
func (s *Server) job(c config.Config, device string, plan *layout.Plan) loader.Job {
	job := loader.Job{Device: device, Plan: plan, Workers: c.Workers, BlockBytes: int(c.Block), Direct: c.Direct}
	if s.o.GPU && job.Workers == 0 && !laborious(plan) {
		job.Workers = min(gpuWorkers, max(runtime.GOMAXPROCS(0), minWorkers))
	}
	return job
}

// run starts the loader; when the device is full, once more after the entries
// that nobody uses have made room. Of a GPU's memory others may give some back: the
// second time that is waited for, whether there was anything to evict or not.
func (s *Server) run(ctx context.Context, c config.Config, job loader.Job, dir string, ticket *cache.Ticket) (*loader.Result, error) {
	progress := func(p loader.Progress) {
		if p.Digest != nil {
			return
		}
		ticket.Progress(cache.Progress{Model: dir, Allocated: p.Allocated, Done: p.Done, Total: p.Total, Waiting: p.Waiting})
		if p.Waiting != "" {
			s.log.Info("waiting for memory of the device", "model", dir, "want", p.Waiting)
		}
		s.tellStatus()
	}
	progress(loader.Progress{Total: job.Plan.Table.Bytes()})
	result, err := s.o.Run(ctx, s.o.Loader, job, progress)
	var full *loader.Error
	if !errors.As(err, &full) || full.Kind != loader.KindNoMemory {
		return result, err
	}
	if s.o.GPU {
		job.Patience = time.Duration(c.MemoryWait)
	}
	if ticket.Free(ctx, missing(full, job.Plan.Table.Segments[0])) > 0 || s.o.GPU {
		progress(loader.Progress{Total: job.Plan.Table.Bytes()})
		result, err = s.o.Run(ctx, s.o.Loader, job, progress)
	}
	return result, err
}

// missing is how many bytes of entries a model has to have out of its way. Where the
// device has refused what it says is free, that is no help.
func missing(full *loader.Error, model int64) int64 {
	if n := max(full.Want, model) - full.Free; n > 0 {
		return n
	}
	return model
}

// loadFiles are the descriptors that a load needs at once: the job, the loader's
// socket and pipes, a pidfd, the segments, the table, and their duplicates.
const loadFiles = 32

// roomForFiles reports that a load would run into the limit of open files.
func roomForFiles() error {
	var limit unix.Rlimit
	open, err := os.ReadDir("/proc/self/fd")
	if err == nil {
		err = unix.Getrlimit(unix.RLIMIT_NOFILE, &limit)
	}
	if need := len(open) + loadFiles; err == nil && uint64(need) > limit.Cur {
		return fmt.Errorf("make room: %d open files are needed and the limit is %d: raise LimitNOFILE= in a drop-in (systemctl --user edit wcache@.service), or ulimit -n", need, limit.Cur)
	}
	return nil // what can't be seen may well do
}

// allowed applies the policy. A pinned instance loads only what is pinned, and
// one key of each directory: another is told the fields in which it differs. From
// here on the load counts as one of its directory.
func (s *Server) allowed(c config.Config, want cache.Want, target *resolve.Target, pinned bool, ticket *cache.Ticket) error {
	s.choosing.Lock()
	defer s.choosing.Unlock()
	defer ticket.Progress(cache.Progress{Model: want.Dir, Total: target.Plan.Table.Bytes()})
	if c.Policy != config.PolicyPinned {
		return nil
	}
	dir := want.Dir
	if !pinned {
		dir = ""
	}
	if held, ok := s.cache.Nearest(want.Key, dir); ok {
		return &Mismatch{Fields: fingerprint.Compare(want.Key, held.Key)}
	}
	if !pinned {
		return &resolve.Refusal{
			Field:  "checkpoint",
			Reason: fmt.Sprintf("policy is \"pinned\" and %s is not pinned", want.Dir),
			Hint:   fmt.Sprintf("set pins = [%q] in wcache.toml", want.Dir),
		}
	}
	return nil
}
