// SPDX-FileCopyrightText: The wcache authors
// SPDX-License-Identifier: MIT

package main

import (
	"errors"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"
)

// manager is the part of a service manager that the tests need: it keeps descriptors.
type manager struct {
	conn  *os.File
	raw   syscall.RawConn
	ended chan struct{}

	mu   sync.Mutex
	held []stored
}

type stored struct {
	name string
	fd   int
}

func newManager(path string) (*manager, error) {
	n, err := unix.Socket(unix.AF_UNIX, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	if err := unix.Bind(n, &unix.SockaddrUnix{Name: path}); err != nil {
		return nil, errors.Join(err, unix.Close(n))
	}
	m := &manager{conn: os.NewFile(uintptr(n), path), ended: make(chan struct{})}
	if m.raw, err = m.conn.SyscallConn(); err != nil {
		return nil, errors.Join(err, m.conn.Close())
	}
	go func() { // datagrams are read at once: only few may wait, and they hold descriptors
		defer close(m.ended)
		_ = m.raw.Read(func(n uintptr) bool {
			m.receive(int(n))
			return false // until the socket is closed
		})
	}()
	return m, nil
}

// receive takes in all that has been sent.
func (m *manager) receive(socket int) {
	m.mu.Lock()
	defer m.mu.Unlock()
	b, oob := make([]byte, 4096), make([]byte, unix.CmsgSpace(4*256))
	for {
		n, oobn, _, _, err := unix.Recvmsg(socket, b, oob, unix.MSG_CMSG_CLOEXEC|unix.MSG_DONTWAIT)
		if err != nil {
			return
		}
		var fds []int
		if messages, err := unix.ParseSocketControlMessage(oob[:oobn]); err == nil {
			for i := range messages {
				if list, err := unix.ParseUnixRights(&messages[i]); err == nil {
					fds = append(fds, list...)
				}
			}
		}
		var name string
		lines := strings.Split(string(b[:n]), "\n")
		for _, l := range lines {
			if v, ok := strings.CutPrefix(l, "FDNAME="); ok {
				name = v
			}
		}
		switch {
		case slices.Contains(lines, "FDSTORE=1"):
			for _, f := range fds {
				m.held = append(m.held, stored{name, f})
			}
		case slices.Contains(lines, "FDSTOREREMOVE=1"):
			m.held = slices.DeleteFunc(m.held, func(s stored) bool {
				if s.name == name {
					_ = unix.Close(s.fd)
				}
				return s.name == name
			})
		default:
			for _, f := range fds {
				_ = unix.Close(f)
			}
		}
	}
}

// pass starts a command with a socket and the stored descriptors.
func (m *manager) pass(cmd *exec.Cmd, socket *os.File) error {
	if err := m.raw.Control(func(n uintptr) { m.receive(int(n)) }); err != nil { // what the last process sent
		return err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	cmd.ExtraFiles = []*os.File{socket}
	names := []string{"wcache"} // as the socket unit says
	for _, s := range m.held {
		// The command gets duplicates, which the caller closes when it has started.
		n, err := unix.FcntlInt(uintptr(s.fd), unix.F_DUPFD_CLOEXEC, 0)
		if err != nil {
			return err
		}
		cmd.ExtraFiles = append(cmd.ExtraFiles, os.NewFile(uintptr(n), s.name))
		names = append(names, s.name)
	}
	cmd.Env = append(slices.Clone(cmd.Env), "LISTEN_FDS="+strconv.Itoa(len(names)), "LISTEN_FDNAMES="+strings.Join(names, ":"))
	return nil
}

// names are the names of the stored descriptors, without their variable parts.
func (m *manager) names() string {
	m.mu.Lock()
	defer m.mu.Unlock()
	var list []string
	for _, s := range m.held {
		if s.name != "a-engines" { // there is always one
			list = append(list, s.name[:2])
		}
	}
	slices.Sort(list)
	return strings.Join(list, " ")
}

// swap exchanges the names of the first two descriptors of a kind.
func (m *manager) swap(prefix string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	var list []*stored
	for i := range m.held {
		if s := &m.held[i]; strings.HasPrefix(s.name, prefix) {
			list = append(list, s)
		}
	}
	list[0].fd, list[1].fd = list[1].fd, list[0].fd
}

func (m *manager) close() {
	_ = m.conn.Close()
	<-m.ended
	for _, s := range m.held {
		_ = unix.Close(s.fd)
	}
	m.held = nil
}

// service becomes the command as a service manager starts it.
func service(args []string) error {
	if v := os.Getenv(envFiles); v != "" {
		n, err := strconv.ParseUint(v, 10, 64)
		if err != nil {
			return err
		}
		if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: n, Max: n}); err != nil {
			return err
		}
	}
	return syscall.Exec("/proc/self/exe", append([]string{"wcache"}, args...), append(os.Environ(), "LISTEN_PID="+strconv.Itoa(os.Getpid())))
}
