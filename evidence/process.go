// SPDX-FileCopyrightText: The wcache authors
// SPDX-License-Identifier: MIT

package evidence

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

const (
	// maxText is the most that is read of a command line or an environment, in bytes: more
	// than Linux allows for both with the usual stack limit of 8 MiB.
	maxText = 2 << 20
	// maxParents is how many parents are followed. A worker is two levels below vllm serve,
	// or three with several API servers.
	maxParents = 16
)

// process is what /proc/PID/stat says. A pid and its start time identify a process for
// ever: to reuse the pid within a tick, a hundredth of a second, the kernel would have to
// start tens of thousands of processes.
type process struct {
	pid     int
	start   uint64 // clock ticks since boot, field 22
	state   byte
	parent  int // 0: none that can be seen from here
	session int
}

func findProcess(pid int) (process, error) {
	text, err := procFile(pid, "stat", 4096)
	if err != nil {
		return process{}, err
	}
	p, err := parseStat(text)
	if err == nil && (p.state == 'Z' || p.state == 'X') {
		err = ErrGone
	}
	if err != nil {
		return process{}, &Unreadable{PID: pid, What: "stat", Err: err}
	}
	return p, nil
}

// parseStat reads the line of /proc/PID/stat (proc_pid_stat(5)). The name, in
// parentheses, may contain anything.
func parseStat(text []byte) (process, error) {
	open, end := bytes.IndexByte(text, '('), bytes.LastIndexByte(text, ')')
	if open < 0 || end < open {
		return process{}, errors.New("has no name in parentheses")
	}
	fields := strings.Fields(string(text[end+1:])) // from field 3 on
	const start = 22 - 3
	if len(fields) <= start || len(fields[0]) != 1 {
		return process{}, fmt.Errorf("has %d fields behind the name", len(fields))
	}
	p := process{state: fields[0][0]}
	var err error
	number := func(s string) int {
		n, e := strconv.Atoi(s)
		err = errors.Join(err, e)
		return n
	}
	p.pid = number(strings.TrimSpace(string(text[:open])))
	p.parent, p.session = number(fields[1]), number(fields[3])
	ticks, e := strconv.ParseUint(fields[start], 10, 64)
	p.start = ticks
	return p, errors.Join(err, e)
}

// procFile reads a file of /proc/PID; more than limit bytes are an errTooLong.
func procFile(pid int, name string, limit int) ([]byte, error) {
	p := process{pid: pid}
	f, err := os.Open(procPath(pid, name))
	if err != nil {
		return nil, p.unreadable(name, err)
	}
	defer func() { _ = f.Close() }() // nothing was written
	text, err := io.ReadAll(io.LimitReader(f, int64(limit)+1))
	if err == nil && len(text) > limit {
		err = errTooLong
	}
	if err != nil {
		return nil, p.unreadable(name, err)
	}
	return text, nil
}

var errTooLong = errors.New("is longer than expected")

func procPath(pid int, name string) string {
	return path.Join("/proc", strconv.Itoa(pid), name)
}

func (p process) link(name string) (string, error) {
	to, err := os.Readlink(procPath(p.pid, name))
	return to, p.unreadable(name, err)
}

// unreadable makes an [Unreadable] of an error, nil of nil.
func (p process) unreadable(what string, err error) error {
	if err == nil {
		return nil
	}
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ESRCH) {
		err = ErrGone
	}
	return &Unreadable{PID: p.pid, What: what, Err: err}
}

// alive gives an error if the pid now belongs to another process.
func (p process) alive() error {
	_, err := p.now()
	return err
}

// hasParent gives an error if a process has another parent now: then the data read for the
// parent's pid may be of another process.
func (p process) hasParent() error {
	now, err := p.now()
	if err == nil && now.parent != p.parent {
		err = &Unreadable{PID: p.parent, What: "stat", Err: ErrGone}
	}
	return err
}

func (p process) now() (process, error) {
	now, err := findProcess(p.pid)
	if err == nil && now.start != p.start {
		err = &Unreadable{PID: p.pid, What: "stat", Err: ErrGone}
	}
	return now, err
}

// own reports whether all uids of a process are this user's. The owner of /proc/PID
// isn't enough: it is root for a process that isn't dumpable.
func (p process) own() (bool, error) {
	text, err := procFile(p.pid, "status", 64<<10)
	if err != nil {
		return false, err
	}
	for line := range strings.Lines(string(text)) {
		ids, ok := strings.CutPrefix(line, "Uid:")
		if !ok {
			continue
		}
		me := strconv.Itoa(os.Geteuid())
		fields := strings.Fields(ids)
		for _, id := range fields {
			if id != me {
				return false, nil
			}
		}
		return len(fields) == 4, nil
	}
	return false, nil
}

// command is a process's command line, nil if it is too long.
func (p process) command() ([]string, error) {
	text, err := procFile(p.pid, "cmdline", maxText)
	if errors.Is(err, errTooLong) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	return splitCommand(text), nil
}

// splitCommand splits a command line into words. A process that renamed itself leaves zero
// bytes behind its name, which are not words.
func splitCommand(text []byte) []string {
	words := strings.Split(strings.TrimSuffix(string(text), "\x00"), "\x00")
	if strings.Contains(words[0], "::") {
		for len(words) > 1 && words[len(words)-1] == "" {
			words = words[:len(words)-1]
		}
	}
	return words
}

// importTime is the least time that vLLM needs to import its own modules; on real machines
// it takes five seconds and more. Before that it hasn't read any file that names the model.
const importTime = time.Second

// changedSince reports whether a file with this change time may have had other contents
// when the process read it.
func (p process) changedSince(changed time.Time) (bool, error) {
	now := time.Now() // before the other clock: a pause between makes a process older
	var boot unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_BOOTTIME, &boot); err != nil {
		return false, fmt.Errorf("read clock: %w", err)
	}
	const tick = time.Second / 100 // USER_HZ, 100 on every architecture with GPUs
	age := time.Duration(boot.Nano()) - time.Duration(p.start)*tick
	return changed.After(now.Add(importTime - age)), nil
}

// chain is a process and its parents, up to the process that gives the evidence.
type chain struct {
	processes []process
	program   program  // of the last
	argv      []string // of the last
	none      string   // why there is no evidence
}

func (c chain) last() process { return c.processes[len(c.processes)-1] }

// ancestry goes from a process to the nearest parent that was started as a vLLM program. It
// stops at a process that isn't vLLM's own: such a process chooses what it starts, so a
// parent's command line says nothing about its engines.
func ancestry(pid int) (chain, error) {
	var c chain
	for next := pid; ; {
		p, err := findProcess(next)
		if next != pid && errors.Is(err, ErrGone) && c.last().hasParent() == nil {
			return c.without("process %d, the parent of %d, can't be seen from here", next, c.last().pid)
		}
		if err != nil {
			return c, err
		}
		if c.processes = append(c.processes, p); p.session != c.processes[0].session {
			// A process whose parent ended gets a parent that never started it, such
			// as the first process of a container.
			return c.without("process %d was started in another session than its parent %d", c.processes[len(c.processes)-2].pid, p.pid)
		}
		if own, err := p.own(); err != nil || !own {
			if err != nil {
				return c, err
			}
			return c.without("process %d is of another user", p.pid)
		}
		if c.argv, err = p.command(); err != nil {
			return c, err
		}
		var kind kind
		if c.program, kind = classify(c.argv); kind == isVLLM {
			c.none = c.program.none
			return c, nil
		}
		switch {
		case kind == isOther:
			return c.without("no parent of process %d is vllm serve or python -m vllm: process %d runs %s, whose models no command line names", pid, p.pid, describe(c.argv))
		case p.parent == 0:
			return c.without("no parent of process %d is vllm serve or python -m vllm: process %d has none here", pid, p.pid)
		case len(c.processes) > maxParents:
			return c.without("none of %d parents of process %d is vllm serve or python -m vllm", maxParents, pid)
		}
		next = p.parent
	}
}

func (c chain) without(format string, args ...any) (chain, error) {
	c.none = fmt.Sprintf(format, args...)
	return c, nil
}

// unchanged gives an error if a process of the chain has ended meanwhile, or if the last
// one runs another program now: the start time stays the same over execve(2).
func (c chain) unchanged() error {
	for _, p := range c.processes[:len(c.processes)-1] {
		if err := p.hasParent(); err != nil {
			return err
		}
	}
	p := c.last()
	if c.none != "" {
		return p.alive()
	}
	argv, err := p.command()
	if err == nil && !slices.Equal(argv, c.argv) {
		err = &Unreadable{PID: p.pid, What: "cmdline", Err: ErrGone}
	}
	if err != nil {
		return err
	}
	return p.alive()
}
