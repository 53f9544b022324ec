// SPDX-FileCopyrightText: The wcache authors
// SPDX-License-Identifier: MIT

package daemon

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/wcache/wcache/config"
	"github.com/wcache/wcache/daemon/socket"
	"github.com/wcache/wcache/device"
	"github.com/wcache/wcache/device/host"
	"github.com/wcache/wcache/internal/fd"
	"github.com/wcache/wcache/loader"
	"github.com/wcache/wcache/loader/native"
	"github.com/wcache/wcache/stamp"
	"github.com/wcache/wcache/weights/index"
)

// The long run of TestCertain: -certain.steps=100000 -certain.seed=N.
var (
	certainSteps = flag.Int("certain.steps", 1500, "steps of TestCertain, of all worlds together")
	certainSeed  = flag.Uint64("certain.seed", 0, "seed of TestCertain's first world; 0: by the clock")
)

// TestCertain changes random directories at random while engines ask, and compares
// what they get with what their path held: by an oracle that knows every version that
// every directory has had, and when. An answer that is another directory's, an older
// file's, or a mixture is a failure, and so is an error to an engine whose directory
// was certain and at rest.
func TestCertain(t *testing.T) {
	const worlds = 12
	seed := *certainSeed
	if seed == 0 {
		seed = uint64(time.Now().UnixNano())
	}
	t.Logf("seeds from %d on, %d steps", seed, *certainSteps)
	var total tally
	var wait sync.WaitGroup
	for n := range worlds {
		wait.Go(func() {
			w := newWorld(t, seed+uint64(n))
			defer w.close()
			for range max(*certainSteps/worlds, 1) {
				w.step()
			}
			total.add(&w.tally)
		})
	}
	wait.Wait()
	t.Logf("%s", &total)
	if total.wrong.Load() > 0 || total.refused.Load() > 0 {
		t.Errorf("run again with -certain.seed=%d", seed)
	}
	if total.right.Load() == 0 || total.unsure.Load() == 0 {
		t.Error("the worlds were too simple to say anything")
	}
}

// tally counts answers.
type tally struct {
	right   atomic.Int64 // of which the oracle says the same
	wrong   atomic.Int64
	unsure  atomic.Int64 // errors where nothing made a directory certain
	moving  atomic.Int64 // errors and mixtures on the disk while the engine's own files were changing
	refused atomic.Int64 // errors where a sure answer existed
	hits    atomic.Int64
}

func (c *tally) add(d *tally) {
	c.right.Add(d.right.Load())
	c.wrong.Add(d.wrong.Load())
	c.unsure.Add(d.unsure.Load())
	c.moving.Add(d.moving.Load())
	c.refused.Add(d.refused.Load())
	c.hits.Add(d.hits.Load())
}

func (c *tally) String() string {
	return fmt.Sprintf("%d right (%d from memory), %d wrong, %d errors without certainty, %d while files moved, %d where an answer was sure",
		c.right.Load(), c.hits.Load(), c.wrong.Load(), c.unsure.Load(), c.moving.Load(), c.refused.Load())
}

// world is a server, its directories, and what the oracle knows of them.
type world struct {
	t   *testing.T
	rng *rand.Rand
	dir string
	s   *Server
	end context.CancelFunc
	tally
	config config.Config

	seed    uint64
	version uint64 // of the next content
	places  []string
	steps   []string // what was done, the latest last
	patient []target // engines that have read headers and not asked yet
	engines sync.WaitGroup

	doing   sync.Mutex // held while the world is changed, and noted
	mu      sync.Mutex
	history map[string][]held // by real path of a directory
}

// held is what a directory held from a moment on: a version, 0 while it holds nothing
// that can be loaded.
type held struct {
	since   time.Time
	version uint64
	changes bool   // it may hold what it held before, what it holds next, or nothing
	link    string // the directory that a link leads to
}

func newWorld(t *testing.T, seed uint64) *world {
	w := &world{
		t: t, rng: rand.New(rand.NewPCG(seed, 0)), dir: private(t), seed: seed, version: 1,
		history: make(map[string][]held), config: config.Default(),
	}
	w.config.Roots = []string{filepath.Join(w.dir, "root"), filepath.Join(w.dir, "more")}
	for _, d := range append(slices.Clone(w.config.Roots), filepath.Join(w.dir, "outside")) {
		do(t, os.MkdirAll(d, 0o700))
	}
	var err error
	x := index.New(index.Options{})
	w.s, err = New(Options{
		Instance: "host", Device: "host", Index: x, Run: inProcess, Verify: compareInProcess,
		Configure: func() (config.Config, error) { return w.config, nil },
		Env:       func(string) string { return "" }, Log: slog.New(slog.DiscardHandler),
	})
	do(t, err)
	l, lock, err := socket.Listen(filepath.Join(w.dir, "s.sock"))
	do(t, err)
	ctx, end := context.WithCancel(context.Background())
	served := make(chan error, 1)
	go func() { served <- w.s.Serve(ctx, []Listener{{UnixListener: l, Role: Target, Claim: lock}}) }()
	w.end = func() {
		end()
		do(t, <-served, lock.Close())
		x.Close()
	}
	for range 3 {
		w.create()
	}
	return w
}

func (w *world) close() {
	w.engines.Wait()
	w.end()
}

// inProcess is loader.Run without a child.
func inProcess(ctx context.Context, _ loader.Options, job loader.Job, _ func(loader.Progress)) (*loader.Result, error) {
	buf, err := host.Open().Alloc(job.Plan.Table.Segment)
	if err != nil {
		return nil, err
	}
	defer buf.Close()
	if err := native.Fill(ctx, job.Plan, buf, native.Options{Workers: 1}); err != nil {
		var changed *stamp.Changed
		if errors.As(err, &changed) {
			return nil, &loader.Error{Kind: loader.KindFileChanged, Message: err.Error()}
		}
		return nil, err
	}
	s, err := buf.Seal()
	if err != nil {
		return nil, err
	}
	table := *job.Plan.Table
	table.Segment = s.Bytes
	b, err := table.Encode()
	if err != nil {
		return nil, errors.Join(err, s.Close())
	}
	f, err := fd.Sealed("wcache-table", b)
	if err != nil {
		return nil, errors.Join(err, s.Close())
	}
	return &loader.Result{Table: &table, TableFD: f, Segment: s}, nil
}

// compareInProcess is loader.Verify without a child.
func compareInProcess(ctx context.Context, _ loader.Options, job loader.Job, s device.Segment, _ func(loader.Progress)) (*loader.Difference, error) {
	view, err := host.Open().View(s)
	if err != nil {
		return nil, err
	}
	defer view.Close()
	return native.Compare(ctx, job.Plan, view, native.Options{Workers: 1})
}

// did notes a step for the report.
func (w *world) did(format string, args ...any) {
	w.steps = append(w.steps, strings.ReplaceAll(fmt.Sprintf(format, args...), w.dir, ""))
	w.steps = w.steps[max(0, len(w.steps)-40):]
}

// now notes that a directory holds a version from here on.
func (w *world) now(dir string, version uint64) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.history[dir] = append(w.history[dir], held{since: time.Now(), version: version})
}

// changes notes that a directory may be changing from here on.
func (w *world) changes(dir string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.history[dir] = append(w.history[dir], held{since: time.Now(), changes: true})
}

// linked notes that a link leads to a directory from here on.
func (w *world) linked(link, dir string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.history[link] = append(w.history[link], held{since: time.Now(), link: dir})
}

// during gives what a path has held between two moments, and whether it was at rest
// all the time.
func (w *world) during(path string, from, to time.Time) (versions []uint64, rest bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.between(path, from, to)
}

// between is during. Precondition: mu is held.
func (w *world) between(path string, from, to time.Time) (versions []uint64, rest bool) {
	list := w.history[path]
	rest = true
	n := 0
	add := func(h held) {
		if h.link == "" {
			versions, rest = append(versions, h.version), rest && h.version != 0
			return
		}
		more, still := w.between(h.link, from, to)
		versions, rest = append(versions, more...), rest && still
	}
	for i, h := range list {
		end := to
		if i+1 < len(list) {
			end = list[i+1].since
		}
		if h.since.After(to) || end.Before(from) {
			continue
		}
		n++
		rest = rest && h.since.Before(from) && !h.changes
		add(h)
		if h.changes && i > 0 {
			add(list[i-1])
		}
		if h.changes && i+1 < len(list) {
			add(list[i+1])
		}
	}
	return versions, rest && n == 1
}

// latest is what a directory holds now.
func (w *world) latest(dir string) uint64 {
	w.mu.Lock()
	defer w.mu.Unlock()
	if list := w.history[dir]; len(list) > 0 {
		return list[len(list)-1].version
	}
	return 0
}
