// SPDX-FileCopyrightText: The wcache authors
// SPDX-License-Identifier: MIT

// Package daemon is the server: it accepts engines and control clients, reads their
// requests within a time limit, has the cache find or load the model, and answers. When it
// can't do something it answers with the reason, and goes on.
package daemon

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"sync"
	"time"

	"github.com/wcache/wcache/cache"
	"github.com/wcache/wcache/config"
	"github.com/wcache/wcache/daemon/socket"
	"github.com/wcache/wcache/device"
	"github.com/wcache/wcache/internal/quota"
	"github.com/wcache/wcache/loader"
	"github.com/wcache/wcache/manifest"
	"github.com/wcache/wcache/weights"
	"github.com/wcache/wcache/weights/index"
)

// Role is the purpose of a socket.
type Role string

// The roles. Draft models have a socket of their own, so that the socket of a request
// without a key says whether it is about the target or the draft model.
const (
	Target  Role = "target"
	Draft   Role = "draft"
	Control Role = "control"
)

// idleEvery is how often the server checks whether it is idle.
const idleEvery = 500 * time.Millisecond

// Listener is a socket to accept on. The server closes it.
type Listener struct {
	*net.UnixListener
	Role  Role
	Claim *socket.Claim // guards the socket's files; nil: the server doesn't check them. The caller closes it.
}

// Options of a server.
type Options struct {
	Instance string // "host", "0", …
	Device   string // the device that the loader opens: "host", or a GPU's uuid
	GPU      bool   // the device is a GPU
	AMD      bool   // the GPU is from AMD, and the loader keeps its memory
	// Legacy is the device that the loader opens if the configuration asks for legacy
	// handles: the same one, with memory that the loader keeps. "": Device.
	Legacy string
	// DeviceErr is why the device is missing. Then the server loads nothing.
	DeviceErr error
	UUID      string // sent to engines, which compare it with their GPU's; "": not sent
	Version   string
	// Configure reads the configuration, at the start and on Reload.
	Configure func() (config.Config, error)
	Index     *index.Index
	IndexPath string // where the index is kept, and read at the start; "": nowhere
	Manifest  string // path of the manifest, "": none is kept
	Loader    loader.Options
	// Verify compares a segment with a job's files. Nil: loader.Verify, in a child.
	Verify func(context.Context, loader.Options, loader.Job, device.Segment, func(loader.Progress)) (*loader.Difference, error)
	// Run loads a job. Nil: loader.Run, in a child.
	Run    func(context.Context, loader.Options, loader.Job, func(loader.Progress)) (*loader.Result, error)
	Health loader.Options      // starts the child that checks the GPU's health; no command: no checks
	Env    func(string) string // finds the Hugging Face cache; nil: os.Getenv
	Log    *slog.Logger        // nil: slog.Default()
	// LogProblem gives the problem of the log, "" for none. Nil: the log never has one.
	LogProblem func() string
	Store      cache.Store // keeps descriptors for the next process; nil: none are kept
	// CheckSegment reports why a segment from the store doesn't belong to the device. Nil:
	// segments aren't checked.
	CheckSegment func(device.Segment) error
	// Activated says that another process keeps the sockets open, so that the server may
	// end when it is idle.
	Activated bool
	// Status is called with the text to show in "systemctl status". Nil: not called.
	Status func(text string)
}

// Server answers engines and control clients. A request goes from accept.go through
// engine.go or control.go to find.go, which calls the finder and the cache; the cache calls
// the loads. Serve and Recover are called once; other methods are safe for concurrent use.
//
// Locks: each part has its own lock, and calls no other part while it holds the lock. The
// one exception is loads.choosing: the cache's lock is taken while it is held.
type Server struct {
	*base
	cache       *cache.Cache
	ledger      *ledger
	finder      *finder
	loads       *loads
	gpu         *guard
	hashing     *hashing
	replies     *replies
	attachments *attachments
	watches     *watches
	store       *store
	claims      claims
	crowd       *crowd
	manifest    *fileWriter
	index       *fileWriter
	since       time.Time
	conns       sync.WaitGroup
	keepers     sync.WaitGroup
	shown       chan struct{} // a token when the status line has to be updated
	verifying   chan struct{} // a token while entries are verified

	lost []manifest.Entry // what an earlier process held and this one doesn't; set before Serve

	mu       sync.Mutex
	last     time.Time // end of the last request
	paths    []string
	gpuState string // at the last check
}

// New makes a server. Serve runs it, and closes what it owns.
func New(o Options) (*Server, error) {
	b := newBase(o.withDefaults())
	s := &Server{
		base: b, ledger: newLedger(), hashing: newHashing(b), crowd: newCrowd(openFiles()), since: time.Now(), last: time.Now(),
		shown: make(chan struct{}, 1), verifying: make(chan struct{}, 1),
		finder: &finder{base: b, memory: weights.NewMemory(weights.OneDirectory)}, replies: &replies{base: b, room: quota.New(maxReplies)},
		store: &store{log: b.log, kept: o.Store},
	}
	s.gpu = &guard{tell: s.learned, errors: -1}
	if o.GPU && !o.AMD && o.DeviceErr == nil && len(o.Health.Command) > 0 {
		s.gpu.ask = func(ctx context.Context) (*device.GPU, error) { return loader.Ask(ctx, o.Health, o.Device) }
	}
	s.manifest, s.index = s.manifestWriter(), s.indexWriter()
	s.loads = &loads{
		base: b, finder: s.finder, gpu: s.gpu, hashing: s.hashing, ledger: s.ledger, keepers: &s.keepers,
		tell: s.tellStatus, indexed: s.index.changed,
	}
	s.cache = cache.New(cache.Options{
		Load: s.loads.load, Budget: int64(b.config.Budget), Fresh: s.loads.fresh, Changed: s.changed, Ended: s.ledger.ended, Store: o.Store,
	})
	s.loads.cache, s.hashing.cache = s.cache, s.cache
	var err error
	if s.attachments, err = newAttachments(b.log, s.cache); err != nil {
		return nil, fmt.Errorf("start server: %w", err)
	}
	s.watches = &watches{base: b, crowd: s.crowd, store: s.store, replies: s.replies, conns: &s.conns, lost: make(chan struct{})}
	s.readState()
	s.applyRoots()
	return s, nil
}

// readState reads what an earlier process has left of the index, and removes what one
// that was killed has left beside its files.
func (s *Server) readState() {
	_, err := inTime(s.o.IndexPath, func() (struct{}, error) {
		for _, path := range []string{s.o.IndexPath, s.o.Manifest} {
			if path == "" {
				continue
			}
			if n, err := clearLeft(path); n > 0 || err != nil {
				s.log.Info("left of a process that was killed", "file", path, "removed", n, "err", err)
			}
		}
		if s.o.IndexPath == "" {
			return struct{}{}, nil
		}
		return struct{}{}, s.o.Index.Load(s.o.IndexPath)
	})
	if err != nil {
		//diag starting
		// The record of known directories could not be read, for the logged reason. The daemon
		// searches `roots` again; nothing has to be done.
		s.log.Warn("index of model directories starts anew", "err", err)
	}
}

// withDefaults fills in what is nil.
func (o Options) withDefaults() Options {
	if o.Env == nil {
		o.Env = os.Getenv
	}
	if o.CheckSegment == nil {
		o.CheckSegment = func(device.Segment) error { return nil }
	}
	if o.Verify == nil {
		o.Verify = loader.Verify
	}
	if o.Run == nil {
		o.Run = loader.Run
	}
	if o.Log == nil {
		o.Log = slog.Default()
	}
	if o.LogProblem == nil {
		o.LogProblem = func() string { return "" }
	}
	return o
}

// Reload reads the configuration again. If it has an error the server goes on with the
// earlier one, and status shows the error.
func (s *Server) Reload() error {
	c, err := s.reload()
	if err != nil {
		return err
	}
	s.cache.SetBudget(int64(c.Budget))
	s.pin()
	s.applyRoots()
	s.changed()
	return nil
}

// pin tells the cache which directories are pinned. If the configuration or the
// directories can't be read, the earlier pins stay.
func (s *Server) pin() {
	if s.configProblem() != nil {
		return
	}
	pins, err := s.finder.pins(s.ctx)
	if err != nil {
		//diag restart
		// The file system of a pinned directory does not answer. Mend the mount; until then the
		// daemon keeps the pins that it knows.
		s.log.Warn("pins are not looked up", "err", err)
		return
	}
	setPinned(s.cache, pins)
}

func (s *Server) applyRoots() {
	c := s.configuration()
	roots := append(append([]string(nil), c.Roots...), c.Pins...)
	s.o.Index.SetRoots(append(roots, weights.HubCaches(s.o.Env)...))
}

// Serve accepts until ctx is done or, if Activated, until the server has been idle for
// idle_exit. Then it ends loads and requests, closes the listeners and all descriptors, and
// gives nil. Entries that are in the store stay there.
func (s *Server) Serve(ctx context.Context, listeners []Listener) error {
	if len(listeners) == 0 {
		return errors.New("serve: no sockets")
	}
	for _, l := range listeners {
		s.mu.Lock()
		s.paths = append(s.paths, l.Addr().String())
		s.mu.Unlock()
	}
	s.tellStatus()
	var keeping, writing sync.WaitGroup
	writing.Go(func() { s.manifest.run(s.ctx) })
	writing.Go(func() { s.index.run(s.ctx) })
	keeping.Go(func() { s.runStatus(s.ctx) })
	keeping.Go(func() { s.runSockets(s.ctx, listeners) })
	keeping.Go(func() { s.hashing.run(s.ctx) })
	keeping.Go(func() { s.evictUnused(s.ctx) })
	keeping.Go(func() { s.preload(s.ctx) })
	var err error
	for ctx.Err() == nil && err == nil {
		if err = s.acceptAll(ctx, listeners); err == nil && ctx.Err() == nil && s.idle() {
			s.log.Info("ending: nothing was held or asked for", "for", time.Duration(s.configuration().IdleExit))
			break
		}
	}
	for _, l := range listeners {
		err = errors.Join(err, l.Close())
	}
	// Before s.end, so that requests that wait for a load still get its error.
	s.cache.Close()
	s.end()
	keeping.Wait()
	s.conns.Wait()
	s.gpu.looks.Wait()
	s.keepers.Wait()
	err = errors.Join(err, s.attachments.close())
	s.endOf(&writing)
	return err
}
