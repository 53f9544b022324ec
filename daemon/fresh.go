// SPDX-FileCopyrightText: The wcache authors
// SPDX-License-Identifier: MIT

package daemon

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/wcache/wcache/cache"
	"github.com/wcache/wcache/manifest"
	"github.com/wcache/wcache/weights"
)

// checkLimit is how long the files of a model that is held may take to be looked at.
// It is a few system calls; a file system that takes longer hangs.
const checkLimit = 10 * time.Second

// maxChecks is how many requests may look at files at once. Those that hang keep their
// place until the file system answers.
const maxChecks = 256

// tooManyChecks is the error where every place is taken.
var errChecks = errors.New("check files: too many other requests wait for file systems that don't answer")

// beside runs f, which looks at files, and leaves it to itself when ctx is done: a file
// system that hangs must keep this request and no other.
func beside[T any](ctx context.Context, places chan struct{}, f func(context.Context) (T, error)) (T, error) {
	type result struct {
		value T
		err   error
	}
	var none T
	select {
	case places <- struct{}{}:
	case <-ctx.Done():
		return none, errors.Join(errChecks, context.Cause(ctx))
	}
	done := make(chan result, 1)
	go func() {
		value, err := f(ctx)
		<-places
		done <- result{value, err}
	}()
	select {
	case r := <-done:
		return r.value, r.err
	case <-ctx.Done():
		return none, context.Cause(ctx)
	}
}

// hangs is the error of files that could not be looked at in time.
type hangs struct {
	dir   string
	limit time.Duration
}

func (e *hangs) Error() string {
	return fmt.Sprintf("check files of %s: the file system has not answered within %v", e.dir, e.limit)
}

// fresh reports as a [*cache.Stale] why what is held is not to be served any more: its
// files are not what was loaded.
func (s *Server) fresh(ctx context.Context, h *cache.Hold) error {
	e := h.Record()
	if device := s.device(s.configuration()); e.Device != device {
		return &cache.Stale{Why: fmt.Sprintf("handles in wcache.toml ask for memory of %s, it is of %s", device, e.Device)}
	}
	limited, cancel := context.WithTimeoutCause(ctx, checkLimit, &hangs{e.Dir, checkLimit})
	defer cancel()
	_, err := beside(limited, s.checks, func(context.Context) (struct{}, error) { return struct{}{}, recordOf(e).Stale() })
	var changed *weights.Changed
	switch {
	case err == nil:
		return nil
	case errors.As(err, &changed) && changed.MayBeEqual:
		return s.compare(ctx, h, changed)
	case errors.As(err, &changed):
		return &cache.Stale{Why: changed.Error()}
	}
	return err
}

// compare has a child hold the memory of an entry against its files, of which only what
// shapes no contents has certainly changed: attributes, inode numbers or the mount. If
// they are equal the entry goes on with the files as they are now. That costs the time
// of a load, and no second copy of the weights beside the one that engines have mapped.
func (s *Server) compare(ctx context.Context, h *cache.Hold, changed *weights.Changed) error {
	e := h.Record()
	return s.compares.do(ctx, e.ID, func() error {
		now, err := s.against(s.ctx, h, false, nil)
		var slow *tooSlow
		var gone *gpuGone
		var busy *weights.Busy
		switch {
		case errors.As(err, &slow), errors.As(err, &gone), errors.As(err, &busy), s.ctx.Err() != nil:
			return err
		case err != nil:
			s.log.Info("loading again", "key", e.Key.ID()[:12], "model", e.Dir, "changed", changed, "err", err)
			return &cache.Stale{Why: changed.Error()}
		case now.difference != nil:
			s.log.Info("loading again", "key", e.Key.ID()[:12], "model", e.Dir, "changed", changed, "difference", *now.difference)
			return &cache.Stale{Why: changed.Error()}
		}
		h.Renew(now.files) // without digests, which are computed anew: not all of each file was read
		s.log.Info("files were touched, and hold what was loaded", "key", e.Key.ID()[:12], "model", e.Dir, "changed", changed)
		return nil
	})
}

// calls lets those who want the same done at one time wait for one who does it. Safe for
// concurrent use.
type calls struct {
	mu      sync.Mutex
	running map[string]*call
}

type call struct {
	done chan struct{}
	err  error
}

// do runs f, or waits for the one that runs for this name until ctx is done. The one who
// runs it is not let go before: f uses what is the caller's.
func (c *calls) do(ctx context.Context, name string, f func() error) error {
	c.mu.Lock()
	if running := c.running[name]; running != nil {
		c.mu.Unlock()
		select {
		case <-running.done:
			return running.err
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
	if c.running == nil {
		c.running = make(map[string]*call)
	}
	mine := &call{done: make(chan struct{})}
	c.running[name] = mine
	c.mu.Unlock()
	mine.err = f()
	c.mu.Lock()
	delete(c.running, name)
	c.mu.Unlock()
	close(mine.done)
	return mine.err
}

// recordOf is the record of an entry's directory.
func recordOf(e manifest.Entry) weights.Record {
	r := weights.Record{Path: e.Dir, Indexed: e.Indexed}
	for _, f := range e.Files {
		r.Files = append(r.Files, weights.Stamp{Name: f.Name, Stamp: f.Stamp, Used: f.Used})
	}
	return r
}

// record notes the files of a target's directory, as they were when it was read.
func record(r weights.Record) []manifest.File {
	var files []manifest.File
	for _, f := range r.Files {
		files = append(files, manifest.File{Name: f.Name, Stamp: f.Stamp, Used: f.Used})
	}
	return files
}
