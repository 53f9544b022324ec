// SPDX-FileCopyrightText: The wcache authors
// SPDX-License-Identifier: MIT

package daemon

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/wcache/wcache/cache"
	"github.com/wcache/wcache/config"
	"github.com/wcache/wcache/fingerprint"
	"github.com/wcache/wcache/loader"
	"github.com/wcache/wcache/manifest"
	"github.com/wcache/wcache/resolve"
	"github.com/wcache/wcache/stamp"
)

// errLost is the error of a load during which the GPU lost its memory, and works again.
var errLost = errors.New("load model: the GPU lost its memory during the load")

// loads loads models, and compares entries with their files. Its fields are set before the
// first request. Safe for concurrent use.
type loads struct {
	*base
	cache   *cache.Cache
	finder  *finder
	gpu     *guard
	hashing *hashing
	ledger  *ledger
	keepers *sync.WaitGroup
	tell    func() // updates the status line
	indexed func() // has the index written

	compares calls
	choosing sync.Mutex // held while allowed applies the policy; the cache's lock is taken under it
}

// load is called by the cache for a key that it doesn't hold. If files change during the
// load, it plans and loads once more; if they change again, their writer hasn't finished.
// If the GPU lost its memory, it also loads once more: the check that found the loss may
// have seen one from before the load.
func (l *loads) load(ctx context.Context, want cache.Want, ticket *cache.Ticket) (*cache.Contents, error) {
	defer l.hashing.pause()()
	contents, err := l.loadOnce(ctx, want, ticket)
	if filesChanged(err) || errors.Is(err, errLost) {
		l.log.Info("planning again", "key", want.Key.ID()[:12], "err", err)
		contents, err = l.loadOnce(ctx, want, ticket)
	}
	if filesChanged(err) {
		err = &cache.Moved{Err: err}
	}
	return contents, err
}

// filesChanged reports whether a load ended because its files are being written.
func filesChanged(err error) bool {
	var planning *stamp.Changed
	var filling *loader.Error
	return errors.As(err, &planning) || errors.As(err, &filling) && filling.Kind == loader.KindFileChanged
}

func (l *loads) loadOnce(ctx context.Context, want cache.Want, ticket *cache.Ticket) (*cache.Contents, error) {
	key := want.Key
	if err := l.unlessBroken(nil); err != nil {
		return nil, err
	}
	c := l.configuration()
	whole := ctx
	ctx, cancel := l.within(ctx)
	defer cancel()
	if err := l.usable(ctx); err != nil {
		return nil, err
	}
	losses := l.gpu.lost()
	pins, err := l.finder.pins(ctx)
	if err != nil {
		return nil, err
	}
	setPinned(l.cache, pins)
	target, err := beside(ctx, l.checks, func(context.Context) (*resolve.Target, error) {
		return resolve.Plan(l.finder.options(c), key, want.Dir)
	})
	if err != nil {
		return nil, err
	}
	defer target.Dir.Close()
	l.o.Index.Add(want.Dir)
	l.indexed()
	pinned := slices.Contains(pins, want.Dir)
	if err := l.allowed(c, want, target, pinned, ticket); err != nil {
		return nil, err
	}
	for _, note := range target.Plan.Notes {
		l.log.Info("plan", "key", key.ID()[:12], "note", note)
	}
	if err := roomForFiles(); err != nil {
		return nil, err
	}
	bytes := target.Plan.Table.Segment
	if err := ticket.Reserve(bytes); err != nil {
		return nil, err
	}
	begin := time.Now()
	files := manifestFiles(target.Dir.Record())
	job := l.job(c, l.device(c), target.Plan)
	var places []int // in files
	if c.Verify == config.VerifyLoad {
		job.Digests, places = wanted(want.Dir, files, target.Plan)
	}
	result, err := l.run(ctx, c, job, want.Dir, ticket)
	if err != nil {
		return nil, l.blame(whole, err, time.Now())
	}
	if result.Keeper != nil {
		l.follow(result.Keeper)
	}
	if l.gpu.lost() != losses {
		result.Close()
		if err := l.usable(ctx); err != nil {
			return nil, err
		}
		return nil, errLost
	}
	for _, d := range result.Digests {
		f := &files[places[d.File]]
		f.SHA256, f.Hub = d.SHA256, d.Hub
	}
	took := time.Since(begin)
	l.ledger.loaded(bytes, took)
	l.log.Info("loaded", "key", key.ID()[:12], "model", target.Dir.Path, "sure", want.By, "loader", target.Loader, "why", target.Reason,
		"bytes", bytes, "seconds", took.Seconds(), "filling_seconds", result.Filling.Seconds())
	return &cache.Contents{
		Table: result.Table, TableFD: result.TableFD, Segment: result.Segment,
		Record: manifest.Entry{
			Revision: key.Revision().Exact(), Device: l.device(c), Loader: target.Loader, Reason: target.Reason,
			Seconds: took.Seconds(), Pinned: pinned,
			Indexed: target.Dir.Record().Indexed, Files: files,
		},
	}, nil
}

// run starts the loader. If the device is full, it evicts unused entries and starts the
// loader once more. The second time, on a GPU, the loader waits up to memory_wait for
// memory that other programs may free, also if there was no entry to evict.
func (l *loads) run(ctx context.Context, c config.Config, job loader.Job, dir string, ticket *cache.Ticket) (*loader.Result, error) {
	progress := func(p loader.Progress) {
		if p.Digest != nil {
			return
		}
		ticket.Progress(cache.Progress{Model: dir, Allocated: p.Allocated, Done: p.Done, Total: p.Total, Waiting: p.Waiting})
		if p.Waiting != "" {
			l.log.Info("waiting for memory of the device", "model", dir, "want", p.Waiting)
		}
		l.tell()
	}
	progress(loader.Progress{Total: job.Plan.Table.Bytes()})
	result, err := l.o.Run(ctx, l.o.Loader, job, progress)
	var full *loader.Error
	if !errors.As(err, &full) || full.Kind != loader.KindNoMemory {
		return result, err
	}
	if l.o.GPU {
		job.Patience = time.Duration(c.MemoryWait)
	}
	if ticket.Free(ctx, missing(full, job.Plan.Table.Segment)) > 0 || l.o.GPU {
		progress(loader.Progress{Total: job.Plan.Table.Bytes()})
		result, err = l.o.Run(ctx, l.o.Loader, job, progress)
	}
	return result, err
}

// missing is how many bytes of entries have to be evicted for a model. If the device
// refused although it says that enough is free, that is the model's whole size.
func missing(full *loader.Error, model int64) int64 {
	if n := max(full.Want, model) - full.Free; n > 0 {
		return n
	}
	return model
}

// allowed applies the policy. A pinned instance loads only pinned directories, and one key
// per directory; the error for another key names the fields in which it differs. From here
// on the load counts as a key of its directory.
func (l *loads) allowed(c config.Config, want cache.Want, target *resolve.Target, pinned bool, ticket *cache.Ticket) error {
	l.choosing.Lock()
	defer l.choosing.Unlock()
	defer ticket.Progress(cache.Progress{Model: want.Dir, Total: target.Plan.Table.Bytes()})
	if c.Policy != config.PolicyPinned {
		return nil
	}
	dir := want.Dir
	if !pinned {
		dir = ""
	}
	if held, ok := l.cache.Nearest(want.Key, dir); ok {
		return &Mismatch{Fields: fingerprint.Compare(want.Key, held.Key)}
	}
	if !pinned {
		//diag model DIRECTORY
		// With `policy = "pinned"` the service loads pinned directories only. Add the directory to
		// `pins`, or change `policy`.
		return &resolve.Refusal{
			Field:  "checkpoint",
			Reason: fmt.Sprintf("policy is \"pinned\" and %s is not pinned", want.Dir),
			Hint:   fmt.Sprintf("set pins = [%q] in wcache.toml", want.Dir),
		}
	}
	return nil
}

// setPinned tells the cache which directories are pinned: absolute paths without links.
func setPinned(c *cache.Cache, dirs []string) {
	pinned := make(map[string]bool)
	for _, dir := range dirs {
		pinned[dir] = true
	}
	c.SetPinned(pinned)
}
