// SPDX-FileCopyrightText: The wcache authors
// SPDX-License-Identifier: MIT

package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/wcache/wcache/client"
	"github.com/wcache/wcache/control"
)

const roleActivate = "activate"

// service is a wcache that this program has started.
type service struct {
	cmd    *exec.Cmd
	socket string
}

// start starts a service with some roots, without this user's configuration and without
// background hashing. An activated one begins to run at the first connection.
func (b *bench) start(activated bool, roots ...string) (*service, error) {
	return b.startWith(`verify = "off"`, activated, roots...)
}

// startWith is start with another configuration.
func (b *bench) startWith(text string, activated bool, roots ...string) (*service, error) {
	dir, err := os.MkdirTemp(b.dir, "service-")
	if err != nil {
		return nil, err
	}
	s := &service{socket: filepath.Join(dir, "host.sock")}
	config := filepath.Join(dir, "wcache.toml")
	if err := os.WriteFile(config, []byte(text), 0o600); err != nil {
		return nil, err
	}
	args := []string{b.program, "serve", "--device", "host", "--config", config, "--state", filepath.Join(dir, "state")}
	for _, r := range roots {
		args = append(args, "--root", r)
	}
	if activated {
		args = append([]string{"/proc/self/exe", "-role", roleActivate, s.socket}, args...)
	} else {
		args = append(args, "--listen", s.socket)
	}
	log, err := os.Create(filepath.Join(dir, "log"))
	if err != nil {
		return nil, err
	}
	defer log.Close()
	s.cmd = exec.Command(args[0], args[1:]...)
	s.cmd.Env = append(os.Environ(), "HF_HUB_CACHE="+dir)
	s.cmd.Stderr = log
	s.cmd.SysProcAttr = &unix.SysProcAttr{Pdeathsig: unix.SIGTERM}
	if err := s.cmd.Start(); err != nil {
		return nil, err
	}
	// A socket that exists may not listen yet; a connection would wake the service.
	// The control socket comes second.
	last := s.socket
	if !activated {
		last = control.Path(s.socket)
	}
	for end := time.Now().Add(10 * time.Second); !listens(last); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			text, _ := os.ReadFile(log.Name()) // shows as empty
			return nil, errors.Join(fmt.Errorf("start service: it doesn't listen: %s", text), s.stop())
		}
	}
	return s, nil
}

// listens looks a socket up in /proc/net/unix, where __SO_ACCEPTCON (0x10000) of
// the flags marks one that accepts.
func listens(socket string) bool {
	b, err := os.ReadFile("/proc/net/unix")
	if err != nil {
		return false
	}
	for line := range strings.Lines(string(b)) {
		if f := strings.Fields(line); len(f) == 8 && f[7] == socket && f[3] == "00010000" {
			return true
		}
	}
	return false
}

// stop ends the service, which frees its memory.
func (s *service) stop() error {
	if err := s.cmd.Process.Signal(unix.SIGTERM); err != nil {
		return err
	}
	err := s.cmd.Wait()
	var exit *exec.ExitError
	if errors.As(err, &exit) && exit.Sys().(unix.WaitStatus).Signal() == unix.SIGTERM {
		return nil // it was not yet the service
	}
	return err
}

// cpu is the time that all threads of the service have run.
func (s *service) cpu() (time.Duration, error) {
	// The clock of a process, as clock_getcpuclockid(3) makes its number:
	// CPUCLOCK_SCHED of the kernel's posix-timers.h.
	const sched = 2
	var t unix.Timespec
	if err := unix.ClockGettime(^int32(s.cmd.Process.Pid)<<3|sched, &t); err != nil {
		return 0, fmt.Errorf("read CPU time: %w", err)
	}
	return time.Duration(t.Nano()), nil
}

// childCPU is the CPU time of all children that have ended, in seconds: the
// fields cutime and cstime of /proc/PID/stat, in ticks of USER_HZ.
func (s *service) childCPU() (float64, error) {
	const hz, cutime = 100, 16
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", s.cmd.Process.Pid))
	if err != nil {
		return 0, err
	}
	// The command's name, field 2, may hold spaces.
	fields := strings.Fields(string(b[bytes.LastIndexByte(b, ')')+1:]))[cutime-3:]
	user, err := strconv.ParseFloat(fields[0], 64)
	if err != nil {
		return 0, fmt.Errorf("read CPU time: %w", err)
	}
	system, err := strconv.ParseFloat(fields[1], 64)
	return (user + system) / hz, err
}

// memory is a field of /proc/PID/status, such as VmRSS, in bytes.
func (s *service) memory(name string) (float64, error) {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", s.cmd.Process.Pid))
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(string(b)) {
		if f := strings.Fields(line); len(f) == 3 && f[0] == name+":" {
			kb, err := strconv.ParseFloat(f[1], 64)
			return kb * 1024, err
		}
	}
	return 0, fmt.Errorf("read memory: no %s", name)
}

// warm loads the model.
func (s *service) warm(ctx context.Context, model string) (*control.Entry, error) {
	r, err := client.Do(ctx, control.Path(s.socket), control.Request{Method: control.MethodWarm, Warm: &control.Warm{Model: model}}, nil)
	if err != nil {
		return nil, err
	}
	return r.Entry, nil
}

// evict frees the model again.
func (s *service) evict(ctx context.Context) error {
	_, err := client.Do(ctx, control.Path(s.socket), control.Request{Method: control.MethodEvict, Evict: &control.Evict{Force: true}}, nil)
	return err
}

// becomeService does what a socket unit does: it listens and, at the first connection,
// which it doesn't accept, becomes the service and passes the socket on, as
// sd_listen_fds(3) describes.
func becomeService(socket string, command []string) error {
	const firstFD = 3
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	if err := errors.Join(unix.Bind(fd, &unix.SockaddrUnix{Name: socket}), unix.Listen(fd, unix.SOMAXCONN)); err != nil {
		return err
	}
	for err = unix.EINTR; err == unix.EINTR; {
		_, err = unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, -1)
	}
	if err != nil {
		return err
	}
	if fd == firstFD {
		_, err = unix.FcntlInt(uintptr(fd), unix.F_SETFD, 0)
	} else {
		err = unix.Dup3(fd, firstFD, 0)
	}
	if err != nil {
		return err
	}
	env := append(os.Environ(), "LISTEN_PID="+strconv.Itoa(os.Getpid()), "LISTEN_FDS=1", "LISTEN_FDNAMES=wcache")
	return unix.Exec(command[0], command, env)
}
