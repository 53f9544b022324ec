// SPDX-FileCopyrightText: The wcache authors
// SPDX-License-Identifier: MIT

package daemon

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/wcache/wcache/device"
	"github.com/wcache/wcache/loader"
)

// How often somebody looks how the GPU is, and how long that may take. Nobody
// listens for what the driver reports (Xid): that needs a process that always has
// the driver open, and what concerns weights can be asked for afterwards.
const (
	lookEvery  = 5 * time.Second // at most, because of requests that don't wait for it
	lookAgain  = time.Second     // at most, while the GPU can't be used
	lookTime   = 5 * time.Second
	statusWait = time.Second // of a client that asks for the status
)

// guard is what is known of the instance's GPU. Its methods are safe for
// concurrent use.
type guard struct {
	ask func(context.Context) (*device.GPU, error) // nil: there is no GPU to ask about
	// tell is told what was found, why weights are gone if they are, and whether the
	// count of errors is another.
	tell func(now *device.GPU, gone string, counted bool)

	looks sync.WaitGroup

	mu      sync.Mutex
	last    *device.GPU   // nil: nobody has looked
	began   time.Time     // of the last look that has ended
	at      time.Time     // of its end
	running chan struct{} // closed at the end of a look that is under way, else nil
	stuck   *loader.Stuck // of the last look, nil if its child has ended
	errors  int64         // uncorrected ones that what is held has outlived, -1: not known
	losses  int           // how often weights were found to be gone
}

// errSlowLook is why a look was given up.
var errSlowLook = errors.New("the driver doesn't answer")

// look has a child ask how the GPU is, unless that was done within the given time
// or is being done, or the last one hangs. What it gives is closed when there is an
// answer.
func (g *guard) look(ctx context.Context, within time.Duration) <-chan struct{} {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.running != nil {
		return g.running
	}
	done := make(chan struct{})
	if g.ask == nil || ctx.Err() != nil || g.last != nil && time.Since(g.at) < within || g.hangs() {
		close(done)
		return done
	}
	g.running = done
	g.looks.Go(func() {
		began := time.Now()
		ctx, cancel := context.WithTimeoutCause(ctx, lookTime, errSlowLook)
		defer cancel()
		h, err := g.ask(ctx)
		g.judge(h, err, began)
		close(done)
	})
	return done
}

// hangs reports whether the last look's child is there yet, which no signal reaches.
// More of them would only be more that hang. Preconditions: mu is held.
func (g *guard) hangs() bool {
	if g.stuck == nil {
		return false
	}
	select {
	case <-g.stuck.Ended:
		return false
	default:
		return true
	}
}

// judge takes in what a look found.
func (g *guard) judge(h *device.GPU, err error, began time.Time) {
	g.mu.Lock()
	g.stuck = nil
	_ = errors.As(err, &g.stuck)
	if err != nil { // which says nothing about the weights
		h = &device.GPU{Index: -1, State: device.GPUUnknown, Uncorrected: -1, Processes: []device.GPUProcess{}}
		if g.last != nil {
			h.UUID, h.Driver = g.last.UUID, g.last.Driver
		}
		h.Reason = err.Error()
	}
	if h.Name == "" && g.last != nil { // a GPU that is lost can't say
		h.Name, h.Index = g.last.Name, g.last.Index
	}
	gone := ""
	before := g.errors
	switch {
	case h.Gone():
		gone = "the GPU is " + h.State
	case h.Uncorrected >= 0 && g.errors >= 0 && h.Uncorrected > g.errors:
		gone = fmt.Sprintf("the GPU's memory has had %d uncorrected errors, %d more than before", h.Uncorrected, h.Uncorrected-g.errors)
	case h.Uncorrected >= 0 && h.Uncorrected < g.errors: // counted anew
		gone = "the GPU has been reset"
	}
	if h.Uncorrected >= 0 {
		g.errors = h.Uncorrected
	}
	if gone != "" {
		g.losses++
	}
	noted := g.errors != before
	g.last, g.began, g.at, g.running = h, began, time.Now(), nil
	g.mu.Unlock()
	g.tell(h, gone, noted)
}

// health is what the last look found, nil if there was none, and when.
func (g *guard) health() (*device.GPU, time.Time) {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.last, g.at
}

// lost counts how often weights were found to be gone.
func (g *guard) lost() int {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.losses
}

// uncorrected is the count of errors that what is held has outlived, nil if it
// isn't known.
func (g *guard) uncorrected() *int64 {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.errors < 0 {
		return nil
	}
	n := g.errors
	return &n
}

// outlived sets that count, as an earlier process noted it.
func (g *guard) outlived(n int64) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.errors = n
}

// wait waits for a look, as long as ctx allows.
func (g *guard) wait(ctx context.Context, look <-chan struct{}) {
	select {
	case <-look:
	case <-ctx.Done():
	}
}

// after waits for a look that began after the given moment.
func (g *guard) after(ctx, life context.Context, moment time.Time) *device.GPU {
	ctx, cancel := context.WithTimeout(ctx, lookTime)
	defer cancel()
	for range 2 { // the first may have been under way
		g.wait(ctx, g.look(life, 0))
		g.mu.Lock()
		last, began := g.last, g.began
		g.mu.Unlock()
		if last != nil && began.After(moment) {
			return last
		}
	}
	return nil
}
