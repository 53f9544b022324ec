// SPDX-FileCopyrightText: The wcache authors
// SPDX-License-Identifier: MIT

package daemon

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"
)

// checkLimit is how long it may take to check the files of an entry. A check is a few
// system calls; a file system that takes longer hangs.
const checkLimit = 10 * time.Second

// maxChecks is how many requests may look at files at once. A request that hangs keeps
// its place until the file system answers.
const maxChecks = 256

//diag model
// Many requests wait for file systems that hang, so the daemon did not begin this one. Mend the
// mounts; `wcache status` names the roots that do not answer.

// errChecks is the error when all places of maxChecks are taken.
var errChecks = errors.New("check files: too many other requests wait for file systems that don't answer")

// beside runs f, which looks at files, in a goroutine of its own and stops waiting for it
// when ctx is done: a file system that hangs must block this request only. F goes on until
// the file system answers.
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

// startLimit is how long a daemon waits for each of its own files when it starts.
const startLimit = 3 * time.Second

// inTime runs f, which reads files of this process's own, and leaves it to itself after
// startLimit: a file system that hangs keeps a daemon from nothing but what is in it.
func inTime[T any](path string, f func() (T, error)) (T, error) {
	ctx, cancel := context.WithTimeoutCause(context.Background(), startLimit, &hangs{path, startLimit})
	defer cancel()
	return beside(ctx, make(chan struct{}, 1), func(context.Context) (T, error) { return f() })
}

// hangs is the error of files that could not be looked at in time.
type hangs struct {
	dir   string
	limit time.Duration
}

func (e *hangs) Error() string {
	//diag model DIRECTORY TIME
	// The file system of this model hangs, mostly a network one. Mend the mount; other models are
	// served meanwhile.
	return fmt.Sprintf("check files of %s: the file system has not answered within %v", e.dir, e.limit)
}

// Advice is what to do about it.
func (e *hangs) Advice() string {
	return "see why the file system does not answer; other models are served meanwhile"
}

// calls merges concurrent calls of one name: one runs, the others wait for its result.
// Safe for concurrent use.
type calls struct {
	mu      sync.Mutex
	running map[string]*call
}

type call struct {
	done chan struct{}
	err  error
}

// do runs f, or waits for the f that already runs under this name. Ctx ends that wait
// only: a caller whose f runs stays until it ends, since f uses the caller's data.
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
