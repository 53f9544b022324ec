// SPDX-FileCopyrightText: The wcache authors
// SPDX-License-Identifier: MIT

// Package doctor looks for problems that keep an instance from working, or from keeping
// its weights, and says what to do. It changes nothing and starts nothing.
//
// It gets everything that it can't read itself, or that could hang, from functions of
// [Machine]: the service manager, the daemon, the GPU's driver.
package doctor

import (
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"text/tabwriter"

	"github.com/wcache/wcache/device"
	"github.com/wcache/wcache/internal/visible"
)

// State is the result of a check.
type State string

// The states. Warn is for a machine that works now and will lose weights or time later.
const (
	OK   State = "ok"
	Warn State = "warn"
	Fail State = "fail"
)

// Result is the result of a check, for people.
type Result struct {
	State State  `json:"state"`
	Check string `json:"check"`
	Code  Code   `json:"code,omitempty"` // what was found, "" if all is well
	Text  string `json:"text"`
	Mend  string `json:"mend,omitempty"` // a command or an edit, "" if all is well
}

// Host is the instance that keeps weights in the machine's own memory and needs no GPU.
const Host = "host"

// Machine is where the checks look. All fields but Root are needed.
type Machine struct {
	Instance string
	Socket   string // the instance's own
	Control  string // the socket beside it, for commands
	UID      int
	IsRoot   bool // the user is root; the units don't run for root
	User     string
	Version  string // of the client
	Env      func(string) string
	Config   []string // configuration files, in the order in which they are read
	Root     string   // holds dev, proc, run, tmp and var, "" is /
	// Systemctl runs "systemctl --user" and gives what it printed.
	Systemctl func(ctx context.Context, args ...string) (string, error)
	// Peer is the process that listens on Control, also if it doesn't answer: 0 if there
	// is none, or none that can be seen from here.
	Peer func(ctx context.Context) int
	// Daemon asks the instance; nil without an error if none runs.
	Daemon func(ctx context.Context) (*Daemon, error)
	// Driver asks libcuda and NVML about the instance's GPU, in another process.
	Driver func(ctx context.Context, uuid string) (*Driver, error)
	// Take takes a descriptor of a process, as an engine does, and closes it.
	Take func(pid int) error
	// Largest finds the largest known model, "" if there is none.
	Largest func(ctx context.Context) (name string, bytes int64, err error)
}

// Daemon is what a running daemon reports about itself.
type Daemon struct {
	PID      int // the pid that it reports
	Peer     int // the pid as seen from here, 0 if it can't be seen
	Version  string
	Held     int64 // bytes of all entries
	Problems []string
	NotKept  bool   // some entry would not outlive the daemon
	Refused  string // what the last request that missed was told, "" if it was no refusal
}

// Driver is the report of the GPU's driver. A fault in it says why the GPU can't be used.
type Driver = device.Report

// Run makes all checks, in the order in which they depend on each other. ctx bounds the
// checks that ask other programs.
func Run(ctx context.Context, m Machine) []Result {
	configuration, handles := m.configuration()
	results := []Result{configuration, m.runtimeDir()}
	unit := service{handles: handles, answers: m.Peer(ctx)}
	daemon, silent := m.Daemon(ctx)
	switch {
	case daemon != nil:
		unit.answers, unit.partly = daemon.PID, daemon.NotKept
	case unit.answers == 0: // it can't be connected to, and has the lock all the same
		unit.answers = m.lockHolder(m.Control)
	}
	manager := m.manager(ctx, daemon)
	results = append(results, manager)
	if manager.State == OK {
		unit.props, unit.err = m.serviceProps(ctx)
		var socket Result
		socket, unit.listen, unit.listens = m.socketUnit(ctx, unit)
		if results = append(results, socket, m.unit(unit)); unit.err == nil {
			results = append(results, m.store(unit), m.openFiles(unit))
		}
	}
	results = append(results, m.socketFile(unit), m.daemon(daemon, silent, unit))
	if daemon != nil {
		results = append(results, m.lastRequest(daemon))
	}
	results = append(results, m.lingering())
	results = append(append(results, m.reach(daemon, unit, handles)...), m.tempDir(unit))
	if m.Instance != Host {
		return append(results, m.gpuChecks(ctx, unit, daemon, handles)...)
	}
	return append(results, m.room(ctx, m.meminfo("MemAvailable"), m.meminfo("MemTotal"), daemon, unit))
}

// Failed counts the results with a state.
func Failed(list []Result, s State) int {
	n := 0
	for _, r := range list {
		if r.State == s {
			n++
		}
	}
	return n
}

// Write lists results for people, one line per check and below it what to do. paint may
// show a state in a style.
func Write(out io.Writer, list []Result, paint func(State, string) string) error {
	w := tabwriter.NewWriter(out, 0, 0, 3, ' ', 0)
	for _, r := range list {
		mend := ""
		if r.Mend != "" {
			mend = "   -> " + visible.Line(r.Mend)
		}
		fmt.Fprintf(w, "%s   %s\t%s%s\n", paint(r.State, fmt.Sprintf("%-4s", r.State)), r.Check, visible.Line(r.Text), mend)
	}
	warnings := "warnings"
	if Failed(list, Warn) == 1 {
		warnings = "warning"
	}
	fmt.Fprintf(w, "%d failed, %d %s\n", Failed(list, Fail), Failed(list, Warn), warnings)
	if err := w.Flush(); err != nil {
		return fmt.Errorf("write checks: %w", err)
	}
	return nil
}

func result(check string, s State, mend, format string, args ...any) Result {
	return Result{State: s, Check: check, Text: fmt.Sprintf(format, args...), Mend: mend}
}

// as gives the result a code.
func (r Result) as(c Code) Result {
	r.Code = c
	return r
}

// path is the path of a file of the machine.
func (m *Machine) path(parts ...string) string {
	return filepath.Join(append([]string{"/", m.Root}, parts...)...)
}

// read gives a small file of the machine without surrounding space, "" if it can't be
// read.
func (m *Machine) read(parts ...string) string {
	b, err := os.ReadFile(m.path(parts...))
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(b))
}

func (m *Machine) exists(parts ...string) bool {
	_, err := os.Lstat(m.path(parts...))
	return err == nil
}

// unitName is a unit of the instance.
func (m *Machine) unitName(kind string) string { return "wcache@" + m.Instance + "." + kind }
