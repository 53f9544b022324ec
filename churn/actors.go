// SPDX-FileCopyrightText: The wcache authors
// SPDX-License-Identifier: MIT

package main

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/wcache/wcache/control"
)

// actor repeats one action until the end of the run, with pauses up to a maximum.
type actor struct {
	name  string
	pause time.Duration
	act   func(rng *rand.Rand) error
}

// play runs all actors until the end. The first error of this program itself ends the run
// earlier.
func (c *churn) play() error {
	actors := []actor{
		{"change files", 500 * time.Millisecond, func(*rand.Rand) error { c.tally.count(countChanges); return c.world.change() }},
		{"give commands", 2 * time.Second, c.commands},
		{"kill daemons", 4 * time.Second, c.killDaemon},
		{"kill loaders", 2 * time.Second, c.killLoader},
		{"be hostile", time.Second, c.hostile},
		{"configure", 10 * time.Second, c.reconfigure},
		{"look for attachments", 1500 * time.Millisecond, func(*rand.Rand) error {
			for _, s := range c.services {
				c.attachedEngines(s)
			}
			return nil
		}},
		{"fill disks", 15 * time.Second, c.fillDisk},
	}
	if c.manager != 0 {
		actors = append(actors, actor{"stop the manager", 40 * time.Second, c.stopManager})
	}
	for range c.engines {
		actors = append(actors, actor{"engines", 200 * time.Millisecond, c.life})
	}
	var all sync.WaitGroup
	errs := make(chan error, len(actors))
	for i, a := range actors {
		rng := c.random(uint64(i) + 1)
		all.Go(func() {
			for !c.over() {
				if err := a.act(rng); err != nil {
					errs <- fmt.Errorf("%s: %w", a.name, err)
					return
				}
				c.rest(time.Duration(rng.Float64() * float64(a.pause)))
			}
		})
	}
	var first error
	select {
	case first = <-errs:
	case <-time.After(time.Until(c.ends)):
	}
	close(c.stop)
	all.Wait()
	return first
}

// over reports whether the run has ended.
func (c *churn) over() bool {
	select {
	case <-c.stop:
		return true
	default:
		return time.Now().After(c.ends)
	}
}

// rest waits, unless the run ends.
func (c *churn) rest(d time.Duration) {
	select {
	case <-c.stop:
	case <-time.After(d):
	}
}

func (c *churn) anyService(rng *rand.Rand) *service { return c.services[rng.IntN(len(c.services))] }

// commands runs users' commands, some of them through the program itself.
func (c *churn) commands(rng *rand.Rand) error {
	s := c.anyService(rng)
	var err error
	switch n := rng.IntN(20); {
	case n < 5:
		_, err = s.status()
	case n < 6:
		s.command("status", "--json")
	case n < 7:
		s.command("explain")
	case n < 9:
		p, ok := c.world.any(rng, func(place) bool { return true })
		if ok {
			s.command("explain", p.path)
		}
	case n < 14:
		p, ok := c.world.any(rng, func(place) bool { return true })
		if ok {
			rank := rng.IntN(2)
			_, err = s.ask(control.Request{Method: control.MethodWarm, Warm: &control.Warm{Model: p.path, TPSize: 1 + rank, TPRank: rng.IntN(1 + rank)}})
		}
	default:
		s.evict(rng)
	}
	var no *control.Error
	if errors.As(err, &no) {
		c.tally.refused(no.Message)
	}
	return nil // of a daemon that has just been killed
}

// evict evicts all unused entries, one key, or, seldom, anything by force.
func (s *service) evict(rng *rand.Rand) {
	e := control.Evict{Force: rng.IntN(6) == 0}
	if status, err := s.status(); err == nil && len(status.Entries) > 0 && rng.IntN(3) > 0 {
		e.Key = status.Entries[rng.IntN(len(status.Entries))].Key
	}
	done := s.forgetting(e.Force)
	_, err := s.ask(control.Request{Method: control.MethodEvict, Evict: &e})
	done()
	var no *control.Error
	if errors.As(err, &no) {
		s.tally.refused(no.Message)
	}
}

// killDaemon kills a daemon at any moment, or a moment after an engine got an answer, and
// checks what remains of it.
func (c *churn) killDaemon(rng *rand.Rand) error {
	s := c.anyService(rng)
	s.killing.Lock()
	defer s.killing.Unlock()
	if rng.IntN(2) == 0 {
		select {
		case <-c.asked.wait():
		case <-time.After(2 * time.Second):
		}
	}
	return c.kill(s, time.Duration(rng.IntN(50))*time.Millisecond)
}

// kill kills a daemon and checks what remains of it.
func (c *churn) kill(s *service, after time.Duration) error {
	d, err := s.kill(after)
	if errors.Is(err, errNoAnswer) || d == nil {
		return nil // it is counted as stuck
	}
	if err != nil {
		return err
	}
	c.entries(s, d.before, d.after, d.asked)
	c.attachedEngines(s)
	return nil
}

// killLoader waits for a load, or asks for one, and kills the loader.
func (c *churn) killLoader(rng *rand.Rand) error {
	s := c.anyService(rng)
	done := make(chan struct{})
	go func() {
		defer close(done)
		p, ok := c.world.any(rng, func(p place) bool { return families()[p.family].name == "medium" })
		if ok { // most likely it is not held
			_, err := s.ask(control.Request{Method: control.MethodWarm, Warm: &control.Warm{Model: p.path, TPSize: 4, TPRank: rng.IntN(4)}})
			var no *control.Error
			if errors.As(err, &no) {
				c.tally.refused(no.Message)
			}
		}
	}()
	moment := time.Duration(rng.IntN(5)*rng.IntN(5)) * time.Millisecond
	s.killLoader(500*time.Millisecond, moment)
	<-done
	return nil
}

// reconfigure gives the daemon by hand another budget, and replies of another form, and
// makes both daemons read their configuration again.
func (c *churn) reconfigure(rng *rand.Rand) error {
	for _, s := range c.services {
		more := ""
		budget := false
		if !s.keeps() {
			more = []string{"", "handles = \"value\"\n"}[rng.IntN(2)]
			if rng.IntN(3) == 0 {
				more += fmt.Sprintf("budget = \"%dMiB\"\n", 4+rng.IntN(40))
				budget = true
			}
		}
		s.mu.Lock()
		s.budget = s.budget || budget // what is asked for now may be answered later
		s.mu.Unlock()
		if err := c.configure(s, more); err != nil {
			return err
		}
		s.reload(c.manager)
	}
	return nil
}

// stopManager stops the service manager for a while. Entries answered before outlive even a
// daemon that is killed meanwhile.
func (c *churn) stopManager(rng *rand.Rand) error {
	for _, s := range c.services {
		if s.keeps() {
			return c.stopManagerOf(s, time.Duration(500+rng.IntN(2000))*time.Millisecond, rng.IntN(3) == 0)
		}
	}
	return nil
}

func (c *churn) stopManagerOf(s *service, long time.Duration, kill bool) error {
	s.killing.Lock()
	defer s.killing.Unlock()
	s.mu.Lock()
	pid := s.pid
	s.mu.Unlock()
	if parent, err := parentOf(pid); err != nil || parent != c.manager {
		return nil // the daemon is not there
	}
	s.mu.Lock()
	s.stopped = append(s.stopped, span{from: clock()})
	s.mu.Unlock()
	if err := unix.Kill(c.manager, unix.SIGSTOP); err != nil {
		return fmt.Errorf("stop the manager: %w", err)
	}
	c.tally.count(countStops)
	killed := make(chan error, 1)
	if kill {
		go func() { killed <- c.kill(s, long/2) }()
	} else {
		killed <- nil
	}
	time.Sleep(long)
	err := unix.Kill(c.manager, unix.SIGCONT)
	s.mu.Lock()
	s.stopped[len(s.stopped)-1].to = clock()
	s.mu.Unlock()
	return errors.Join(err, <-killed)
}

// smallDisk is the size up to which a file system is filled, in bytes.
const smallDisk = 8 << 20

// fillDisk fills the state folder's file system for a while, if it is a small one.
func (c *churn) fillDisk(rng *rand.Rand) error {
	s := c.anyService(rng)
	var fs unix.Statfs_t
	if err := unix.Statfs(s.state, &fs); err != nil || int64(fs.Blocks)*fs.Bsize > smallDisk {
		return nil // it isn't made yet
	}
	path := filepath.Join(s.state, "filler")
	f, err := os.OpenFile(path, os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		return nil // it is full already
	}
	defer os.Remove(path)
	for piece := make([]byte, 64<<10); err == nil && len(piece) > 0; piece = piece[:len(piece)/2] {
		for err == nil {
			_, err = f.Write(piece)
		}
		if errors.Is(err, unix.ENOSPC) {
			err = nil
		}
	}
	if err := errors.Join(err, f.Close()); err != nil {
		return fmt.Errorf("fill %s: %w", path, err)
	}
	c.tally.count(countFull)
	c.rest(time.Duration(rng.IntN(5000)) * time.Millisecond)
	return nil
}

// hostile runs a process that does what real engines never do, until it is killed.
func (c *churn) hostile(rng *rand.Rand) error {
	s := c.anyService(rng)
	flood := rng.IntN(3) == 0
	h := exec.Command("/proc/self/exe", s.socket, fmt.Sprint(rng.Uint64()), fmt.Sprint(flood))
	h.Env = append(os.Environ(), roleVariable+"="+roleHostile)
	h.Stderr = os.Stderr
	h.SysProcAttr = &unix.SysProcAttr{Pdeathsig: unix.SIGKILL}
	if err := h.Start(); err != nil {
		return err
	}
	c.tally.count(countHostile)
	if flood {
		s.mu.Lock()
		s.floods = append(s.floods, span{from: clock()})
		s.mu.Unlock()
	}
	c.rest(time.Duration(2+rng.IntN(10)) * time.Second)
	err := h.Process.Kill()
	_ = h.Wait() // it was killed
	if flood {
		s.mu.Lock()
		s.floods[len(s.floods)-1].to = clock() + int64(settling) // until the manager has forgotten it
		s.mu.Unlock()
	}
	return err
}
