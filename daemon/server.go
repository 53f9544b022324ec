// SPDX-FileCopyrightText: The wcache authors
// SPDX-License-Identifier: MIT

// Package daemon is the server: it accepts engines and control clients, reads a
// request within its time, has the cache find or load what is asked for, and
// answers. It stays up and says why where it can't do something.
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

// Role is what a socket is for.
type Role string

// The roles. An engine's draft model has a socket of its own, so that a request
// without a key says which of the two it is about.
const (
	Target  Role = "target"
	Draft   Role = "draft"
	Control Role = "control"
)

// idleEvery is how often the server looks whether it is idle.
const idleEvery = 500 * time.Millisecond

// Listener is a socket to accept on. The server closes it.
type Listener struct {
	*net.UnixListener
	Role  Role
	Claim *socket.Claim // what is looked after of its files; nil: nothing. The caller closes it.
}

// Options of a server.
type Options struct {
	Instance string // "host", "0", …
	Device   string // what the loader opens: "host", or a GPU's uuid
	GPU      bool   // the device is one
	AMD      bool   // it is AMD's, and Device is one that keeps its memory
	// Legacy is what the loader opens instead where the configuration asks for legacy
	// handles: the same device, with memory that the loader keeps. "": Device.
	Legacy string
	// DeviceErr is why there is no such device. Nothing is loaded then.
	DeviceErr error
	UUID      string // told to engines, which then compare it with their GPU's; "" tells none
	Version   string
	// Configure reads the configuration, at the start and on Reload.
	Configure func() (config.Config, error)
	Index     *index.Index
	IndexPath string // where the index is kept, and read at the start; "": nowhere
	Manifest  string // path of the manifest, "": none is kept
	Loader    loader.Options
	// Verify compares a segment with a job's files. Nil: loader.Verify, in a child.
	Verify func(context.Context, loader.Options, loader.Job, device.Segment, func(loader.Progress)) (*loader.Difference, error)
	// Run carries a job out. Nil: loader.Run, in a child.
	Run    func(context.Context, loader.Options, loader.Job, func(loader.Progress)) (*loader.Result, error)
	Health loader.Options      // starts the child that looks how a GPU is; no command: nobody does
	Env    func(string) string // leads to the Hugging Face cache; nil: os.Getenv
	Log    *slog.Logger        // nil: slog.Default()
	// LogProblem says what is wrong with the log, "" for nothing. Nil: nothing ever is.
	LogProblem func() string
	Store      cache.Store // keeps descriptors for the next process; nil: there is none
	// CheckSegment reports why a descriptor that was kept is not a segment of the
	// device. Nil: it is not looked at.
	CheckSegment func(device.Segment) error
	// Activated tells that another process keeps the sockets open, so that the
	// server may end when it is idle.
	Activated bool
	// Status is told what to show beside the service's name. Nil: nobody.
	Status func(text string)
}

// Server answers engines and control clients. A request goes from accept.go over
// engine.go or control.go to find.go, which asks the finder, the cache and, through it,
// the loads.
//
// Locks: each part has one of its own and calls no other part while it holds it. There
// is one exception, loads.choosing, under which the cache's is taken.
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
	shown       chan struct{} // a token when the status line has to be told
	verifying   chan struct{} // a token while entries are verified

	lost []manifest.Entry // what an earlier process held and this one doesn't; set before Serve

	mu       sync.Mutex
	last     time.Time // of the last request's end
	paths    []string
	gpuState string // when last looked at
}

// New makes a server. Serve runs it, and closes what it has.
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

// Reload reads the configuration again. A broken one changes nothing but what
// status says.
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

// pin tells the cache what the configuration pins, unless that can't be read: then
// what was pinned stays so.
func (s *Server) pin() {
	if s.configProblem() != nil {
		return
	}
	pins, err := s.finder.pins(s.ctx)
	if err != nil {
		//diag restart
		// A file system with a pinned directory does not answer. Mend the mount; until then the
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

// Serve accepts until ctx is done, or until the server has been idle for as long
// as the configuration says, if it is allowed to end then. It ends loads and
// requests, frees what is held, and gives nil.
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
	// Loads end with an error that their waiters are told before connections go.
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
