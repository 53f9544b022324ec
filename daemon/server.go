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

	"golang.org/x/sys/unix"

	"github.com/wcache/wcache/attached"
	"github.com/wcache/wcache/cache"
	"github.com/wcache/wcache/config"
	"github.com/wcache/wcache/device"
	"github.com/wcache/wcache/internal/quota"
	"github.com/wcache/wcache/loader"
	"github.com/wcache/wcache/manifest"
	"github.com/wcache/wcache/resolve"
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
	Claim *Claim // what is looked after of its files; nil: nothing. The caller closes it.
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
	IndexPath string // where the index is kept, "": nowhere
	Manifest  string // path of the manifest, "": none is kept
	Loader    loader.Options
	// Verify compares segments with a job's files. Nil: loader.Verify, in a child.
	Verify func(context.Context, loader.Options, loader.Job, []device.Segment, func(loader.Progress)) (*loader.Difference, error)
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

// Server answers engines and control clients.
type Server struct {
	o        Options
	log      *slog.Logger
	cache    *cache.Cache
	ledger   *ledger
	engines  *engines
	attached *attached.File // what of engines outlives this process
	since    time.Time
	ctx      context.Context // done when connections have to end
	end      context.CancelFunc
	conns    sync.WaitGroup
	keepers  sync.WaitGroup
	crowd    *crowd
	manifest *fileWriter
	index    *fileWriter
	shown    chan struct{} // a token when the status line has to be told
	replies  *quota.Quota  // bytes of replies that are being written
	memory   *weights.Memory

	lost []manifest.Entry // what an earlier process held and this one doesn't; set before Serve

	gpu      guard
	choices  choices
	compares calls
	claims   claims
	checks   chan struct{} // a token for each request that looks at files

	hashing   *hashing
	verifying chan struct{} // a token while entries are verified

	choosing sync.Mutex // held while a load is held against the policy, taken before mu

	mu        sync.Mutex
	config    config.Config
	configErr error     // why config isn't what the file says
	declined  int64     // loads that were not begun, because that no is a lasting one
	last      time.Time // of the last request's end
	paths     []string
	gpuState  string          // when last looked at
	watching  context.Context // done when those that watch have to be told that weights are gone
	unwatch   context.CancelFunc
}

// New makes a server. Serve runs it, and closes what it has.
func New(o Options) (*Server, error) {
	engines, err := attached.New()
	if err != nil {
		return nil, fmt.Errorf("start server: %w", err)
	}
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
	s := &Server{o: o, log: o.Log, attached: engines, crowd: newCrowd(openFiles()), checks: make(chan struct{}, maxChecks), shown: make(chan struct{}, 1), replies: quota.New(maxReplies), memory: weights.NewMemory(weights.OneDirectory), hashing: newHashing(), verifying: make(chan struct{}, 1), ledger: newLedger(), since: time.Now(), last: time.Now()}
	s.ctx, s.end = context.WithCancel(context.Background())
	s.watching, s.unwatch = context.WithCancel(context.Background())
	s.gpu = guard{tell: s.learned, errors: -1}
	if o.GPU && !o.AMD && o.DeviceErr == nil && len(o.Health.Command) > 0 {
		s.gpu.ask = func(ctx context.Context) (*device.GPU, error) { return loader.Ask(ctx, o.Health, o.Device) }
	}
	s.config, s.configErr = o.Configure()
	if s.configErr != nil {
		s.config = config.Default()
		s.log.Error("configuration is not used", "err", s.configErr)
	}
	s.manifest, s.index = s.keepManifest(), s.keepIndex()
	s.cache = cache.New(cache.Options{Load: s.load, Budget: int64(s.config.Budget), Fresh: s.fresh, Changed: s.changed, Store: o.Store})
	s.engines = newEngines(func(pid int) {
		s.detach(pid)
		s.log.Debug("engine ended", "pid", pid)
	})
	s.applyRoots()
	return s, nil
}

// Reload reads the configuration again. A broken one changes nothing but what
// status says.
func (s *Server) Reload() error {
	c, err := s.o.Configure()
	s.mu.Lock()
	s.configErr = err
	if err == nil {
		s.config = c
	}
	s.mu.Unlock()
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
	s.mu.Lock()
	pins, broken := s.config.Pins, s.configErr != nil
	s.mu.Unlock()
	if broken {
		return
	}
	ctx, cancel := context.WithTimeout(s.ctx, checkLimit)
	defer cancel()
	real, err := beside(ctx, s.checks, func(context.Context) ([]string, error) { return resolve.RealPins(pins), nil })
	if err != nil {
		s.log.Warn("pins are not looked up", "err", err)
		return
	}
	s.setPinned(real)
}

// setPinned tells the cache which directories are pinned, links followed.
func (s *Server) setPinned(dirs []string) {
	pinned := make(map[string]bool)
	for _, dir := range dirs {
		pinned[dir] = true
	}
	s.cache.SetPinned(pinned)
}

func (s *Server) applyRoots() {
	c := s.configuration()
	roots := append(append([]string(nil), c.Roots...), c.Pins...)
	s.o.Index.SetRoots(append(roots, weights.HubCaches(s.o.Env)...))
}

func (s *Server) configuration() config.Config {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.config
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
	keeping.Go(func() { s.keepStatus(s.ctx) })
	keeping.Go(func() { s.keepClaims(s.ctx, listeners) })
	keeping.Go(func() { s.keepHashing(s.ctx) })
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
	s.engines.close()
	err = errors.Join(err, s.attached.Close())
	s.endOf(&writing)
	return err
}

// acceptAll accepts on all listeners until ctx is done, one of them fails, or the
// server seems idle. When it returns nothing is being accepted any more: only
// then can the caller tell whether a connection came in the last moment.
func (s *Server) acceptAll(ctx context.Context, listeners []Listener) error {
	var accepting sync.WaitGroup
	failed := make(chan error, len(listeners))
	for _, l := range listeners {
		if err := l.SetDeadline(time.Time{}); err != nil {
			return fmt.Errorf("accept on %s: %w", l.Addr(), err)
		}
	}
	for _, l := range listeners {
		accepting.Go(func() {
			if err := s.accept(l); err != nil {
				failed <- err
			}
		})
	}
	tick := time.NewTicker(idleEvery)
	defer tick.Stop()
	var err error
	for end := false; !end; {
		select {
		case <-ctx.Done():
			end = true
		case err = <-failed:
			end = true
		case <-tick.C:
			end = s.idle()
		}
	}
	for _, l := range listeners {
		err = errors.Join(err, l.SetDeadline(time.Now()))
	}
	accepting.Wait()
	return err
}

// idle reports whether the time to end has come.
func (s *Server) idle() bool {
	s.mu.Lock()
	after, last := time.Duration(s.config.IdleExit), s.last
	s.mu.Unlock()
	return s.o.Activated && after > 0 && s.crowd.open.Load() == 0 && time.Since(last) >= after && s.cache.Empty()
}

// accept serves what connects until the listener's deadline. It keeps no connection
// waiting for another.
func (s *Server) accept(l Listener) error {
	lobby := &s.crowd.engines
	if l.Role == Control {
		lobby = &s.crowd.control
	}
	for {
		conn, err := l.AcceptUnix()
		switch {
		case errors.Is(err, os.ErrDeadlineExceeded):
			return nil
		case errors.Is(err, unix.EMFILE), errors.Is(err, unix.ENFILE), errors.Is(err, unix.ENOBUFS), errors.Is(err, unix.ENOMEM),
			errors.Is(err, unix.ECONNABORTED):
			s.log.Error("cannot accept", "err", err)
			lobby.sendAway()
			time.Sleep(100 * time.Millisecond) // until others have closed theirs
			continue
		case err != nil:
			return fmt.Errorf("accept on %s: %w", l.Addr(), err)
		}
		s.crowd.open.Add(1)
		visitor := lobby.enter(s.ctx)
		s.conns.Go(func() {
			s.serve(conn, l.Role, visitor)
			visitor.leave()
			visitor.end(nil)
			if l.Role != Control { // asking keeps nothing awake
				s.mu.Lock()
				s.last = time.Now()
				s.mu.Unlock()
			}
			s.crowd.open.Add(-1)
		})
	}
}

// serve has one connection from its first byte to its end.
func (s *Server) serve(conn *net.UnixConn, role Role, v *visitor) {
	defer func() { _ = conn.Close() }()
	ctx := s.ctx
	// When the server ends, a peer that says nothing isn't waited for.
	stop := context.AfterFunc(ctx, func() { _ = conn.SetReadDeadline(time.Now()) })
	defer stop()
	p, err := peerOf(conn)
	if err == nil && p.uid != os.Getuid() {
		err = fmt.Errorf("check peer: process %d of uid %d is not this user's", p.pid, p.uid)
	}
	if err != nil {
		s.log.Warn("connection refused", "role", role, "err", err)
		return
	}
	if role == Control {
		s.serveControl(ctx, conn, p, v)
		return
	}
	s.serveEngine(ctx, conn, p, role, v)
}
