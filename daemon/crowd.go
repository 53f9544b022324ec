// SPDX-FileCopyrightText: The wcache authors
// SPDX-License-Identifier: MIT

package daemon

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"

	"golang.org/x/sys/unix"
)

// The most connections of each kind at once. Each kind has room of its own: thousands
// of watches, or of clients that say nothing, take none from a new request.
const (
	maxReading = 512  // of engines, whose requests are not there yet
	maxStates  = 1024 // of engines and control clients that wait for weights
	maxWatches = 4096
	maxControl = 128 // control clients whose requests are not there yet
	maxAsked   = 128 // control clients that wait for another answer
)

// crowd counts connections by what they are there for.
type crowd struct {
	engines, control       lobby
	states, watches, asked places
	kept                   share        // watches that are kept for the next process
	open                   atomic.Int64 // connections of all kinds
}

// share counts watches in the store, which take at most half of what entries leave of
// its room: however many there are, a model that is loaded is kept.
type share struct {
	all    atomic.Int64 // that are there or on their way
	stored atomic.Int64 // that are there
}

// add counts one on its way, and gives how much room there has to be for it: for those
// on their way, and for as many again as there are of watches.
func (s *share) add() int { return int(2*s.all.Add(1) - s.stored.Load()) }

// arrived counts one that was on its way.
func (s *share) arrived() { s.stored.Add(1) }

// gone counts one out that has arrived.
func (s *share) gone() {
	s.all.Add(-1)
	s.stored.Add(-1)
}

// newCrowd has room for less than half of so many open files: the numbers of that half
// are those of what comes and goes, connections, loads and logs; the others are those
// of segments.
func newCrowd(files uint64) *crowd {
	c := &crowd{
		states: places{what: "requests that wait for weights"}, watches: places{what: "engines that watch"}, asked: places{what: "control requests"},
	}
	share := func(most int, part uint64) int { return min(most, max(4, int(min(files, 1<<20)/part))) }
	c.engines.max, c.control.max = share(maxReading, 32), share(maxControl, 32)
	c.states.max, c.watches.max, c.asked.max = int64(share(maxStates, 8)), int64(share(maxWatches, 5)), int64(share(maxAsked, 32))
	return c
}

// openFiles is how many files this process may open.
func openFiles() uint64 {
	var limit unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &limit); err != nil {
		return 1024 // the usual one
	}
	return limit.Cur
}

// lobby is where connections are whose request is being read. Where all places are
// taken the newest gets that of the one that has been there longest: a request that is
// sent at once is there at once, and what says nothing must not keep it out.
type lobby struct {
	max int

	mu   sync.Mutex
	here []*visitor // the one that came first is the first
}

// visitor is a connection in a lobby.
type visitor struct {
	lobby *lobby
	ctx   context.Context // done when its time in the lobby is over
	end   context.CancelCauseFunc
}

//diag engine
// Hundreds of connections have sent no request, and the daemon has closed the one that was silent
// longest. Look with `ss -xp` which program opens them.

// errCrowded is why a request is not waited for any longer.
var errCrowded = errors.New("read request: it has not come, and newer ones need its place")

// enter takes a place until leave, for a connection that ends with ctx.
func (l *lobby) enter(ctx context.Context) *visitor {
	v := &visitor{lobby: l}
	v.ctx, v.end = context.WithCancelCause(ctx)
	l.mu.Lock()
	defer l.mu.Unlock()
	l.shrink(l.max - 1)
	l.here = append(l.here, v)
	return v
}

// sendAway has the one leave that has been there longest.
func (l *lobby) sendAway() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.shrink(len(l.here) - 1)
}

// shrink sends away all but n. Precondition: mu is held.
func (l *lobby) shrink(n int) {
	for len(l.here) > max(n, 0) {
		l.here[0].end(errCrowded)
		l.here = slices.Delete(l.here, 0, 1)
	}
}

// leave gives the place back, unless that was given to another.
func (v *visitor) leave() {
	v.lobby.mu.Lock()
	defer v.lobby.mu.Unlock()
	if i := slices.Index(v.lobby.here, v); i >= 0 {
		v.lobby.here = slices.Delete(v.lobby.here, i, i+1)
	}
}

// places are for connections that wait for something and are not sent away.
type places struct {
	what  string // takes them
	max   int64
	taken atomic.Int64
}

// take takes a place, if there is one, until leave.
func (p *places) take() bool {
	if p.taken.Add(1) > p.max {
		p.taken.Add(-1)
		return false
	}
	return true
}

func (p *places) leave() { p.taken.Add(-1) }

// full is the error of one that finds no place.
func (p *places) full() error {
	//diag engine NUMBER THINGS
	// Each kind of connection has a limit, which follows from how many files may be open. The
	// daemon serves again when some of them end; raise `LimitNOFILE=` of the service for more.
	return fmt.Errorf("there are %d %s already, as many as there is room for", p.max, p.what)
}
