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

// The most connections of each kind at once. Each kind has its own limit, so that
// thousands of watches or of silent clients leave room for a new request.
const (
	maxReading = 512  // of engines that haven't sent their requests yet
	maxStates  = 1024 // of engines and control clients that wait for weights
	maxWatches = 4096
	maxControl = 128 // control clients that haven't sent their requests yet
	maxAsked   = 128 // control clients that wait for another answer
)

// crowd counts connections by purpose. Safe for concurrent use.
type crowd struct {
	engines, control       lobby
	states, watches, asked places
	kept                   share        // watches in the store, for the next process
	open                   atomic.Int64 // connections of all kinds
}

// share counts watches in the store. They take at most half of the room that entries
// leave there: however many engines watch, there is room for the next model.
type share struct {
	all    atomic.Int64 // stored or about to be
	stored atomic.Int64 // stored
}

// add counts a watch that is about to be stored. It gives how many descriptors the store
// must have room for: the watches that are about to be stored, and as many again as there
// are watches.
func (s *share) add() int { return int(2*s.all.Add(1) - s.stored.Load()) }

// arrived counts an added watch as stored.
func (s *share) arrived() { s.stored.Add(1) }

// gone subtracts a stored watch.
func (s *share) gone() {
	s.all.Add(-1)
	s.stored.Add(-1)
}

// newCrowd makes limits that together take less than half of the given number of open
// files. Descriptors of that half come and go: connections, loads and logs. The other
// half is for segments.
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
		return 1024 // the usual limit
	}
	return limit.Cur
}

// lobby holds the connections whose requests are being read. When all places are taken
// the newest connection gets the place of the oldest: an engine sends its request at
// once, and silent connections must not keep it out. Safe for concurrent use.
type lobby struct {
	max int

	mu   sync.Mutex
	here []*visitor // oldest first
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

// errCrowded is the error of a connection that lost its place to a newer one.
var errCrowded = errors.New("read request: none came, and newer connections need its place")

// enter takes a place until leave. The visitor's context ends with ctx, or when it loses
// the place.
func (l *lobby) enter(ctx context.Context) *visitor {
	v := &visitor{lobby: l}
	v.ctx, v.end = context.WithCancelCause(ctx)
	l.mu.Lock()
	defer l.mu.Unlock()
	l.shrink(l.max - 1)
	l.here = append(l.here, v)
	return v
}

// sendAway sends the oldest visitor away.
func (l *lobby) sendAway() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.shrink(len(l.here) - 1)
}

// shrink sends away all but the newest n. Precondition: mu is held.
func (l *lobby) shrink(n int) {
	for len(l.here) > max(n, 0) {
		l.here[0].end(errCrowded)
		l.here = slices.Delete(l.here, 0, 1)
	}
}

// leave gives the place back, unless a newer visitor has it.
func (v *visitor) leave() {
	v.lobby.mu.Lock()
	defer v.lobby.mu.Unlock()
	if i := slices.Index(v.lobby.here, v); i >= 0 {
		v.lobby.here = slices.Delete(v.lobby.here, i, i+1)
	}
}

// places limits the connections of one kind that wait for an answer; newer connections
// don't replace them. Safe for concurrent use.
type places struct {
	what  string // the kind, in the plural
	max   int64
	taken atomic.Int64
}

// take takes a place until leave; false if all are taken.
func (p *places) take() bool {
	if p.taken.Add(1) > p.max {
		p.taken.Add(-1)
		return false
	}
	return true
}

func (p *places) leave() { p.taken.Add(-1) }

// full is the error when all places are taken.
func (p *places) full() error {
	//diag engine NUMBER THINGS
	// Each kind of connection has a limit, which follows from how many files may be open. The
	// daemon serves again when some of them end; raise `LimitNOFILE=` of the service for more.
	return fmt.Errorf("there are %d %s already, which is the limit", p.max, p.what)
}
