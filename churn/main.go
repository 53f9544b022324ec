// SPDX-FileCopyrightText: The wcache authors
// SPDX-License-Identifier: MIT

// Command churn runs random engines against real daemons while it disturbs loaders,
// daemons, files, the service manager and the disk. It compares every byte that engines
// get with its own reference. Run.sh starts it.
//
// It starts a daemon by hand, whose weights end with it, and with -unit also uses an
// instance of the user's service manager, whose weights must outlive it. At the end it
// looks for leftovers. Exit status 1 says that it found a fault.
package main

import (
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/wcache/wcache/client"
)

type options struct {
	program string
	dir     string
	state   string
	unit    string
	kept    string
	manager int
	seed    uint64
	minutes float64
	engines int
}

func main() {
	var err error
	switch os.Getenv(roleVariable) {
	case roleEngine:
		err = playEngine(os.Stdin, os.Stdout)
	case roleServer:
		err = playServer()
	case roleHostile:
		err = playHostile(os.Args[1:])
	default:
		var o options
		flag.StringVar(&o.program, "wcache", "bin/wcache", "the `program` under test")
		flag.StringVar(&o.dir, "dir", "", "an empty `folder` for directories of models, sockets and logs")
		flag.StringVar(&o.state, "state", "", "state `folder` of the daemon by hand; one on a small file system of its own is filled")
		flag.StringVar(&o.unit, "unit", "", "also the `service` of the user's manager, such as wcache@host.service")
		flag.StringVar(&o.kept, "unit-state", "", "its state `folder`")
		flag.IntVar(&o.manager, "manager", 0, "`pid` of that manager, which is stopped at times; 0: it is not")
		flag.Uint64Var(&o.seed, "seed", 0, "`seed` of all that is random; 0: by the clock")
		flag.Float64Var(&o.minutes, "minutes", 1, "for how many `minutes`")
		flag.IntVar(&o.engines, "engines", 12, "`engines` at once")
		flag.Parse()
		err = run(o)
	}
	if err != nil {
		fmt.Fprintf(os.Stderr, "churn: error: %v\n", err)
		os.Exit(1)
	}
}

// churn is one run.
type churn struct {
	options
	tally    *tally
	world    *world
	services []*service
	promises promises
	asked    signal // an engine has been answered
	ends     time.Time
	stop     chan struct{}
}

// errFaults is the reason for the exit status if a fault was found.
var errFaults = errors.New("something was that must not be")

func run(o options) error {
	if o.seed == 0 {
		o.seed = uint64(time.Now().UnixNano())
	}
	fmt.Fprintf(os.Stdout, "seed %d, %g minutes, %d engines at once\n", o.seed, o.minutes, o.engines)
	c := &churn{options: o, tally: newTally(os.Stdout), stop: make(chan struct{})}
	if err := c.prepare(); err != nil {
		return err
	}
	base, err := c.baselines()
	if err != nil {
		return err
	}
	c.ends = time.Now().Add(time.Duration(o.minutes * float64(time.Minute)))
	err = c.play()
	if err == nil {
		err = c.settle(base)
	}
	for _, s := range c.services {
		err = errors.Join(err, s.stop())
	}
	err = errors.Join(err, c.tally.write(os.Stdout))
	if err == nil && c.tally.failed() {
		err = errFaults
	}
	return err
}

// prepare makes the world and starts the services.
func (c *churn) prepare() error {
	var err error
	if c.world, err = newWorld(filepath.Join(c.dir, "world"), c.random(0)); err != nil {
		return err
	}
	s := &service{
		name: "by hand", program: c.program, socket: filepath.Join(c.dir, "run", "host.sock"), state: c.state,
		config: filepath.Join(c.dir, "hand.toml"), tally: c.tally,
	}
	if s.state == "" {
		s.state = filepath.Join(c.dir, "state")
	}
	if err := errors.Join(os.MkdirAll(s.state, 0o700), os.MkdirAll(filepath.Dir(s.socket), 0o700), c.configure(s, "")); err != nil {
		return err
	}
	if err := s.start(); err != nil {
		return err
	}
	c.services = append(c.services, s)
	if c.unit == "" {
		return nil
	}
	instance := strings.TrimSuffix(strings.TrimPrefix(c.unit, "wcache@"), ".service")
	u := &service{
		name: c.unit, program: c.program, socket: client.Socket(os.Getenv, os.Getuid(), instance), state: c.kept, unit: c.unit,
		config: filepath.Join(os.Getenv("HOME"), ".config/wcache/wcache.toml"), tally: c.tally,
	}
	if err := errors.Join(os.MkdirAll(filepath.Dir(u.config), 0o700), c.configure(u, "")); err != nil {
		return err
	}
	c.services = append(c.services, u)
	return nil
}

// configure writes a service's configuration, with more lines than it needs.
func (c *churn) configure(s *service, more string) error {
	text := fmt.Sprintf("roots = [%q, %q]\nrequest_timeout = \"5s\"\n%s", c.world.roots[0], c.world.roots[1], more)
	return os.WriteFile(s.config, []byte(text), 0o600)
}

// random gives an actor its own random numbers.
func (c *churn) random(actor uint64) *rand.Rand { return rand.New(rand.NewPCG(c.seed, actor)) }

// signal wakes the goroutines that wait for it at that moment.
type signal struct {
	mu   sync.Mutex
	next chan struct{}
}

// wait gives a channel that is closed at the next signal.
func (s *signal) wait() <-chan struct{} {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.next == nil {
		s.next = make(chan struct{})
	}
	return s.next
}

func (s *signal) tell() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.next != nil {
		close(s.next)
		s.next = nil
	}
}
