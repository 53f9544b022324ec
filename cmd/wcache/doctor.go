// SPDX-FileCopyrightText: The wcache authors
// SPDX-License-Identifier: MIT

package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"github.com/wcache/wcache/client"
	"github.com/wcache/wcache/config"
	"github.com/wcache/wcache/control"
	"github.com/wcache/wcache/doctor"
	"github.com/wcache/wcache/loader"
)

const doctorHelp = `Look for what keeps the instance from working, or from keeping its weights.

One line per check, with the command that fixes it. It changes and starts nothing, and
waits only a few seconds for what could hang. The exit status is 1 if a check failed.`

// Time limits of doctor's questions: the manager answers at once, the driver takes a
// second or more to wake an unused GPU.
const (
	managerTime = 5 * time.Second
	driverTime  = 15 * time.Second
)

func (a *app) doctor() *cobra.Command {
	return &cobra.Command{
		Use:   "doctor",
		Short: "look for problems, and say how to fix them",
		Long:  doctorHelp,
		Args:  arguments(0, 0),
		RunE: func(cmd *cobra.Command, _ []string) error {
			status, err := a.ownStatus(cmd.Context())
			switch { // the daemon knows which instance its socket belongs to
			case a.socket != "" && err == nil:
				a.gpu = status.Instance
			case a.socket != "":
				a.gpu = a.instance()
			}
			ask := func(ctx context.Context) (*doctor.Daemon, error) { return a.daemon(ctx, status, err) }
			list := doctor.Run(cmd.Context(), doctor.Machine{
				Instance: a.gpu, Socket: a.engineSocket(), Control: control.Path(a.engineSocket()), UID: os.Getuid(), IsRoot: a.isRoot, User: a.userName(), Version: ownVersion(), Env: a.env,
				Config: config.Paths(a.env), Root: a.sysroot, Systemctl: systemctl, Peer: a.peer, Daemon: ask, Driver: askDriver, Take: a.take, Largest: a.largest,
			})
			if err := a.printChecks(list); err != nil {
				return err
			}
			if doctor.Failed(list, doctor.Fail) > 0 {
				return &silent{exitFailed}
			}
			return nil
		},
	}
}

func (a *app) printChecks(list []doctor.Result) error {
	if a.json {
		return a.printJSON(map[string]any{
			"schema": outputSchema, "checks": list, "failed": doctor.Failed(list, doctor.Fail), "warnings": doctor.Failed(list, doctor.Warn),
		})
	}
	p := a.palette(a.out)
	styles := map[doctor.State]style{doctor.OK: good, doctor.Warn: uneasy, doctor.Fail: bad}
	return doctor.Write(a.out, list, func(s doctor.State, text string) string { return string(p.paint(styles[s], text)) })
}

// systemctl asks the user's manager, through systemctl because that can reach the manager
// without a message bus.
func systemctl(ctx context.Context, args ...string) (string, error) {
	out, err := output(ctx, managerTime, "systemctl", append([]string{"--user", "--no-pager"}, args...)...)
	text := strings.TrimSpace(string(out))
	var exit *exec.ExitError
	if errors.As(err, &exit) && len(exit.Stderr) > 0 {
		return text, errors.New(strings.TrimSpace(string(exit.Stderr)))
	}
	return text, err
}

// output runs a command and gives what it printed. After the limit it no longer waits for
// a process that can't even be killed, such as one that is stuck in a driver.
func output(ctx context.Context, limit time.Duration, name string, args ...string) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	type result struct {
		out []byte
		err error
	}
	done := make(chan result, 1)
	go func() {
		out, err := exec.CommandContext(ctx, name, args...).Output()
		done <- result{out, err}
	}()
	select {
	case r := <-done:
		if ctx.Err() != nil {
			r.err = ctx.Err() // rather than the signal that killed it
		}
		return r.out, r.err
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// daemon describes the daemon, as it sees itself and as seen from here, from the result of
// asking for its status.
func (a *app) daemon(ctx context.Context, s *control.Status, err error) (*doctor.Daemon, error) {
	var no *control.Error
	var foreign *client.Foreign
	switch {
	case errors.As(err, &no) && no.Code == control.CodeNotRunning:
		return nil, nil //nolint:nilnil // "no daemon runs" is an answer
	case errors.As(err, &foreign):
		return nil, doctor.Cause{Why: foreign.Error(), Mend: "see whose it is and have it removed: an instance answers its own user alone", Code: doctor.ControlSocketForeign}
	case err != nil:
		return nil, err
	}
	d := &doctor.Daemon{PID: s.PID, Version: s.Version.Daemon, Held: s.Bytes, Problems: s.Problems}
	d.NotKept = slices.ContainsFunc(s.Findings, func(p control.Problem) bool { return p.Code == control.EntryNotKept })
	if d.Peer, err = client.Peer(ctx, control.Path(a.engineSocket())); err != nil {
		return nil, err
	}
	// An older daemon doesn't know this request; then nothing is known.
	if reply, err := a.ask(ctx, control.Request{Method: control.MethodMisses}, nil); err == nil && len(reply.Misses) > 0 {
		if m := reply.Misses[0]; m.Reason == control.MissRefused {
			d.Refused = fmt.Sprintf("%s, %s: %s", asker(m), ago(time.Since(m.Time)), told(m))
		}
	}
	return d, nil
}

// peer is the process that serves the instance, 0 if none can be seen.
func (a *app) peer(ctx context.Context) int {
	pid, _ := client.Peer(ctx, control.Path(a.engineSocket())) // its callers report the error another way
	return pid
}

// take takes a descriptor from a process as an engine does: GPU memory by pidfd_getfd,
// host memory by /proc. It isn't a refusal if the process has no descriptor with the
// number.
func (a *app) take(pid int) error {
	const any = 0
	if a.gpu == doctor.Host {
		if _, err := os.Readlink(fmt.Sprintf("/proc/%d/fd/%d", pid, any)); err != nil && !errors.Is(err, unix.ENOENT) {
			return err
		}
		return nil
	}
	process, err := unix.PidfdOpen(pid, 0)
	if err != nil {
		return os.NewSyscallError("pidfd_open", err)
	}
	defer func() { _ = unix.Close(process) }() // nothing was written
	got, err := unix.PidfdGetfd(process, any, 0)
	switch {
	case errors.Is(err, unix.EBADF):
		return nil
	case err != nil:
		return os.NewSyscallError("pidfd_getfd", err)
	}
	return unix.Close(got)
}

// largest finds the largest model in the folders in which the daemon looks. Some of them
// may be on a file system that doesn't answer.
func (a *app) largest(ctx context.Context) (name string, bytes int64, err error) {
	ctx, cancel := context.WithTimeout(ctx, managerTime)
	defer cancel()
	type model struct {
		name  string
		bytes int64
	}
	done := make(chan model, 1)
	go func() {
		var most model
		for _, m := range a.models(ctx) {
			if m.Bytes > most.bytes {
				most = model{modelName(m.Path), m.Bytes}
			}
		}
		done <- most
	}()
	select {
	case m := <-done:
		return m.name, m.bytes, nil
	case <-ctx.Done():
		return "", 0, ctx.Err()
	}
}

// askDriver asks libcuda and NVML in a child process.
func askDriver(ctx context.Context, uuid string) (*doctor.Driver, error) {
	ctx, cancel := context.WithTimeout(ctx, driverTime)
	defer cancel()
	return loader.Probe(ctx, loader.Options{Command: []string{"/proc/self/exe", "probe"}}, uuid)
}
