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

// How often the daemon checks the GPU's health, and how long a check may take. The daemon
// polls and doesn't subscribe to the driver's events (Xid): that needs a process that
// always has the driver open, and a poll finds all that concerns weights.
const (
	lookEvery  = 5 * time.Second // the shortest pause between checks that no request waits for
	lookAgain  = time.Second     // the shortest pause while the GPU can't be used, or for a status request
	lookTime   = 5 * time.Second // the longest that a check may take
	statusWait = time.Second     // the longest that a status request waits for a check
)

// guard checks the health of the instance's GPU and holds the last result. Its methods
// are safe for concurrent use.
type guard struct {
	ask func(context.Context) (*device.GPU, error) // nil: the instance has no GPU
	// tell is called with the result of each check: the GPU's state, why weights are gone
	// ("" if they aren't), and whether the count of errors has changed.
	tell func(now *device.GPU, gone string, counted bool)

	looks sync.WaitGroup

	mu      sync.Mutex
	last    *device.GPU   // nil: no check has ended yet
	began   time.Time     // start of the last check that has ended
	at      time.Time     // its end
	running chan struct{} // closed at the end of the check that is under way; nil: none is
	stuck   *loader.Stuck // the last check's child if it hangs, else nil
	errors  int64         // last known count of uncorrected memory errors, -1: not known
	losses  int           // how often checks found the weights gone
}

// errSlowLook is the error of a check that exceeded lookTime.
var errSlowLook = errors.New("the driver doesn't answer")

// look begins a check of the GPU in a child, unless the last one ended within the given
// time, is still under way, or hangs. The channel is closed when there is a result.
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

// hangs reports whether the last check's child still hangs in the kernel, where signals
// don't reach it. Another child would only hang too. Precondition: mu is held.
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

// judge stores the result of a check and decides whether weights are gone.
func (g *guard) judge(h *device.GPU, err error, began time.Time) {
	g.mu.Lock()
	g.stuck = nil
	_ = errors.As(err, &g.stuck)
	if err != nil { // the weights may be well
		h = &device.GPU{Index: -1, State: device.GPUUnknown, Uncorrected: -1, Processes: []device.GPUProcess{}}
		if g.last != nil {
			h.UUID, h.Driver = g.last.UUID, g.last.Driver
		}
		h.Reason = err.Error()
	}
	if h.Name == "" && g.last != nil { // a lost GPU doesn't give its name
		h.Name, h.Index = g.last.Name, g.last.Index
	}
	gone := ""
	before := g.errors
	switch {
	case h.Gone():
		gone = "the GPU is " + h.State
	case h.Uncorrected >= 0 && g.errors >= 0 && h.Uncorrected > g.errors:
		gone = fmt.Sprintf("the GPU's memory has had %d uncorrected errors, %d more than before", h.Uncorrected, h.Uncorrected-g.errors)
	case h.Uncorrected >= 0 && h.Uncorrected < g.errors: // the count began anew
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

// health is the result of the last check and its time; nil before the first.
func (g *guard) health() (*device.GPU, time.Time) {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.last, g.at
}

// lost is how often checks found the weights gone.
func (g *guard) lost() int {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.losses
}

// uncorrected is the count of uncorrected memory errors for the manifest, nil if it isn't
// known.
func (g *guard) uncorrected() *int64 {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.errors < 0 {
		return nil
	}
	n := g.errors
	return &n
}

// outlived sets that count from the manifest of an earlier process.
func (g *guard) outlived(n int64) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.errors = n
}

// wait waits for a check, or until ctx is done.
func (g *guard) wait(ctx context.Context, look <-chan struct{}) {
	select {
	case <-look:
	case <-ctx.Done():
	}
}

// after waits for a check that began after the given moment, for lookTime at most, and
// gives its result; nil if there is none. Life is the context of the check itself.
func (g *guard) after(ctx, life context.Context, moment time.Time) *device.GPU {
	ctx, cancel := context.WithTimeout(ctx, lookTime)
	defer cancel()
	for range 2 { // the first may have begun before the moment
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
