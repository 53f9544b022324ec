// SPDX-FileCopyrightText: The wcache authors
// SPDX-License-Identifier: MIT

package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/wcache/wcache/client"
	"github.com/wcache/wcache/control"
)

// service is a wcache that engines ask: one that this program has started by hand, or an
// instance of the user's service manager, which keeps its descriptors. It is safe for
// concurrent use.
type service struct {
	name    string
	program string
	socket  string
	state   string // the folder with its manifest
	config  string // its configuration's file
	unit    string // of the manager; "" for one by hand
	tally   *tally

	mu       sync.Mutex
	cmd      *exec.Cmd // by hand
	pid      int       // of the daemon that answered last, 0 before the first answer
	killed   map[int]bool
	down     []span  // when no daemon ran because it was killed
	loaders  []int64 // when loaders were killed, by clock
	stopped  []span  // when the manager was stopped
	floods   []span  // when there were more watches than it keeps
	forced   []span  // when entries were being evicted by force
	retiring []span  // when anything was being evicted or released
	budget   bool    // there is one, or was lately

	killing sync.Mutex // held while a daemon is killed, or its manager is stopped
}

// span is from one moment to another, by clock; a zero end is to come.
type span struct{ from, to int64 }

// keeps reports whether what is held outlives the daemon.
func (s *service) keeps() bool { return s.unit != "" }

// start starts the one by hand.
func (s *service) start() error {
	if s.unit != "" {
		return nil
	}
	log, err := os.OpenFile(filepath.Join(filepath.Dir(s.config), s.name+".log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	defer log.Close()
	c := exec.Command(s.program, "serve", "--device", "host", "--config", s.config, "--state", s.state, "--listen", s.socket)
	c.Env = append(os.Environ(), "HF_HUB_CACHE="+filepath.Join(s.state, "none"))
	c.Stderr = log
	c.SysProcAttr = &unix.SysProcAttr{Pdeathsig: unix.SIGKILL}
	if err := c.Start(); err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.cmd = c
	return nil
}

// stop ends the daemon started by hand. The manager ends the other.
func (s *service) stop() error {
	s.mu.Lock()
	cmd := s.cmd
	s.mu.Unlock()
	if cmd == nil {
		return nil
	}
	return errors.Join(cmd.Process.Signal(unix.SIGTERM), cmd.Wait())
}

// errNoAnswer is the error of a command that got no answer within patience.
var errNoAnswer = errors.New("no answer")

// ask sends a control request. A request that takes longer than patience counts as stuck.
func (s *service) ask(request control.Request) (*control.Reply, error) {
	ctx, cancel := context.WithTimeoutCause(context.Background(), patience, errNoAnswer)
	defer cancel()
	s.tally.count(countCommands)
	reply, err := client.Do(ctx, control.Path(s.socket), request, nil)
	if errors.Is(err, errNoAnswer) {
		s.tally.fault(faultStuck, "%s: %s is not answered", s.name, request.Method)
	}
	return reply, err
}

// status asks for the status, and notes which daemon answers.
func (s *service) status() (*control.Status, error) {
	reply, err := s.ask(control.Request{Method: control.MethodStatus})
	if err != nil {
		return nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if pid := reply.Status.PID; pid != s.pid {
		if s.pid != 0 && !s.killed[s.pid] {
			s.tally.fault(faultUnexpected, "%s: the daemon %d has ended by itself", s.name, s.pid)
		}
		s.pid = pid
	}
	return reply.Status, nil
}

// awaken waits until a daemon answers, and gives its status. It sends the request that engines
// send first, which starts an idle service.
func (s *service) awaken(before int) (*control.Status, error) {
	for begin := time.Now(); ; time.Sleep(20 * time.Millisecond) {
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		err := client.Start(ctx, s.socket)
		cancel()
		var status *control.Status
		if err == nil {
			if status, err = s.status(); err == nil && status.PID != before {
				return status, nil
			}
		}
		if time.Since(begin) > patience {
			s.tally.fault(faultStuck, "%s: no daemon answers: %v", s.name, err)
			return nil, errors.Join(errNoAnswer, err)
		}
	}
}

// death is the end of a daemon and the next one's start.
type death struct {
	before, after *control.Status
	asked         int64 // when before was asked for, by clock
}

// kill kills the daemon after a delay, and waits for the next one. It is nil if there was no
// daemon to kill. Precondition: killing is held.
func (s *service) kill(after time.Duration) (*death, error) {
	d := &death{asked: clock()}
	var err error
	if d.before, err = s.status(); err != nil {
		return nil, nil // it is not there
	}
	time.Sleep(after)
	s.mu.Lock()
	if s.killed == nil {
		s.killed = make(map[int]bool)
	}
	s.killed[d.before.PID] = true
	s.down = append(s.down, span{from: clock()})
	s.pid = 0
	cmd := s.cmd
	s.mu.Unlock()
	if err := unix.Kill(d.before.PID, unix.SIGKILL); err != nil {
		return nil, fmt.Errorf("kill %d: %w", d.before.PID, err)
	}
	s.tally.count(countDaemons)
	if cmd != nil {
		_ = cmd.Wait() // it was killed
		if err := s.start(); err != nil {
			return nil, err
		}
	}
	if d.after, err = s.awaken(d.before.PID); err != nil {
		return nil, err
	}
	s.tally.count(countRestarts)
	s.mu.Lock()
	s.down[len(s.down)-1].to = clock()
	s.mu.Unlock()
	return d, nil
}

// reload makes the daemon read its configuration again, if it runs.
func (s *service) reload(manager int) {
	if !s.keeps() {
		manager = os.Getpid()
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if parent, err := parentOf(s.pid); err == nil && parent == manager { // it is the daemon still
		_ = unix.Kill(s.pid, unix.SIGHUP) // it may have been killed
	}
}

// parentOf is field 4 of /proc/PID/stat.
func parentOf(pid int) (int, error) {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0, err
	}
	var name, state string
	var number, parent int
	_, err = fmt.Sscanf(string(b), "%d %s %s %d", &number, &name, &state, &parent)
	return parent, err
}

// killLoader kills a loader, if one starts within some time, after a short delay.
func (s *service) killLoader(within, moment time.Duration) bool {
	s.mu.Lock()
	pid := s.pid
	s.mu.Unlock()
	for begin := time.Now(); time.Since(begin) < within; time.Sleep(500 * time.Microsecond) {
		for _, child := range children(pid) {
			if !isLoader(child) {
				continue
			}
			time.Sleep(moment)
			s.mu.Lock()
			s.loaders = append(s.loaders, clock())
			s.mu.Unlock()
			if unix.Kill(child, unix.SIGKILL) != nil {
				return false // it has ended
			}
			s.tally.count(countLoaders)
			return true
		}
	}
	return false
}

// overlaps reports whether any span has a part between two moments.
func overlaps(list []span, from, to int64) bool {
	return slices.ContainsFunc(list, func(s span) bool { return s.from <= to && (s.to == 0 || s.to >= from) })
}

// killedBetween reports whether there was no daemon for some time between two moments.
func (s *service) killedBetween(from, to int64) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return overlaps(s.down, from, to)
}

// flooded reports whether a watch that was answered at some moment may not be kept.
func (s *service) flooded(at int64) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return overlaps(s.floods, at, at) || overlaps(s.stopped, at-int64(settling), at)
}

// killedAfter gives how long after a moment a daemon was killed first.
func (s *service) killedAfter(at int64) int64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, d := range s.down {
		if d.from >= at {
			return d.from - at
		}
	}
	return -1
}

func (s *service) loaderKilledBetween(from, to int64) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.ContainsFunc(s.loaders, func(at int64) bool { return from <= at && at <= to })
}

// budgeted reports whether a load may be refused for its size.
func (s *service) budgeted() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.budget
}

// forgetting notes that entries may go on request, by force or not, until done is called.
func (s *service) forgetting(force bool) (done func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	lists := []*[]span{&s.retiring}
	if force {
		lists = append(lists, &s.forced)
	}
	for _, l := range lists {
		*l = append(*l, span{from: clock()})
	}
	at := []int{len(s.retiring) - 1, len(s.forced) - 1}
	return func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		for i, l := range lists {
			(*l)[at[i]].to = clock()
		}
	}
}

// command runs wcache as users do, and checks that the exit status is a documented one.
func (s *service) command(args ...string) {
	s.tally.count(countCommands)
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	c := exec.CommandContext(ctx, s.program, append([]string{"--gpu", "host", "--socket", s.socket}, args...)...)
	out, err := c.CombinedOutput()
	switch {
	case ctx.Err() != nil:
		s.tally.fault(faultStuck, "%s: wcache %s doesn't end", s.name, strings.Join(args, " "))
	case c.ProcessState == nil:
		s.tally.fault(faultUnexpected, "wcache %s: %v", strings.Join(args, " "), err)
	case c.ProcessState.ExitCode() < 0 || c.ProcessState.ExitCode() > 5:
		s.tally.fault(faultUnexpected, "wcache %s: %v: %s", strings.Join(args, " "), err, out)
	}
}

// children are the processes that a process has started.
func children(pid int) []int {
	var list []int
	tasks, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/children", pid))
	if err != nil {
		return nil
	}
	for _, path := range tasks {
		b, _ := os.ReadFile(path) // its thread may have ended
		for _, text := range strings.Fields(string(b)) {
			if n, err := strconv.Atoi(text); err == nil {
				list = append(list, n)
			}
		}
	}
	return list
}

func isLoader(pid int) bool {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
	return err == nil && strings.HasSuffix(strings.TrimRight(string(b), "\x00"), "\x00load")
}
