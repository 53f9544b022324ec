// SPDX-FileCopyrightText: The wcache authors
// SPDX-License-Identifier: MIT

package activation

import (
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"golang.org/x/sys/unix"

	"github.com/wcache/wcache/internal/fd"
)

const (
	// maxStatus keeps a message well below the 4096 bytes (NOTIFY_BUFFER_MAX)
	// above which the manager drops it completely.
	maxStatus = 2048
	// sendTimeout ends the wait for a manager that doesn't read. It is longer
	// than the second or so that it may be busy comparing stored descriptors.
	sendTimeout = 10 * time.Second
)

// Notifier talks to the service manager that started the service. A nil Notifier has no
// manager: its methods do nothing and return no error.
//
// Safe for concurrent use, except that no method may be called after Close. Messages are
// datagrams: a sent message is queued, not handled.
type Notifier struct {
	socket   *fd.FD
	manager  string // the address, in the form of package unix
	watchdog time.Duration
	store    int // its limit, 0: unknown
}

// NewNotifier makes the notifier for NOTIFY_SOCKET, nil if that isn't set. The caller closes
// it. NewNotifier removes the environment variables, so that children don't use them.
func NewNotifier() (*Notifier, error) {
	env := make(map[string]string)
	for _, name := range []string{
		"NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID", "FDSTORE", "WCACHE_FDSTORE",
	} {
		env[name] = os.Getenv(name)
		_ = os.Unsetenv(name) // fails for malformed names only
	}
	if env["NOTIFY_SOCKET"] == "" {
		return nil, nil
	}
	n, err := connect(env)
	if err != nil {
		return nil, fmt.Errorf("reach the service manager: %v", err)
	}
	return n, nil
}

func connect(env map[string]string) (*Notifier, error) {
	path := env["NOTIFY_SOCKET"]
	// An @ stands for the zero byte of an abstract name, as in package unix.
	if path[0] != '/' && path[0] != '@' || len(path) >= len(unix.RawSockaddrUnix{}.Path) {
		return nil, fmt.Errorf("NOTIFY_SOCKET=%q is not the address of a unix socket", path)
	}
	n := &Notifier{manager: path}
	if usec, pid := env["WATCHDOG_USEC"], env["WATCHDOG_PID"]; usec != "" && (pid == "" || pid == strconv.Itoa(os.Getpid())) {
		v, err := strconv.ParseInt(usec, 10, 64)
		if err != nil || v <= 0 || v > int64(1<<63-1)/int64(time.Microsecond) {
			return nil, fmt.Errorf("WATCHDOG_USEC=%q is not a time", usec)
		}
		n.watchdog = time.Duration(v) * time.Microsecond
	}
	for _, name := range []string{"FDSTORE", "WCACHE_FDSTORE"} {
		if env[name] == "" {
			continue
		}
		v, err := strconv.Atoi(env[name])
		if err != nil || v < 0 {
			return nil, fmt.Errorf("%s=%q is not a number of descriptors", name, env[name])
		}
		n.store = v
		break
	}
	s, err := unix.Socket(unix.AF_UNIX, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	if n.socket, err = fd.New(s); err != nil {
		return nil, err
	}
	timeout := unix.NsecToTimeval(sendTimeout.Nanoseconds())
	if err := unix.SetsockoptTimeval(s, unix.SOL_SOCKET, unix.SO_SNDTIMEO, &timeout); err != nil {
		return nil, errors.Join(err, n.socket.Close())
	}
	return n, nil
}

// Close ends the notifier. It sends nothing to the manager.
func (n *Notifier) Close() error {
	if n == nil {
		return nil
	}
	return n.socket.Close()
}

// Ready says that the service has started, or has finished [Notifier.Reloading].
func (n *Notifier) Ready() error { return n.send("READY=1") }

// Status sets the line that "systemctl status" shows. Line breaks become spaces, and bytes
// that aren't UTF-8 question marks; a text over 2 KiB is cut.
func (n *Notifier) Status(text string) error {
	text = strings.Join(strings.FieldsFunc(text, func(r rune) bool { return r == '\n' || r == '\r' }), " ")
	text = strings.ToValidUTF8(strings.ReplaceAll(text, "\x00", "?"), "?")
	if len(text) > maxStatus {
		end := maxStatus
		for !utf8.RuneStart(text[end]) {
			end--
		}
		text = text[:end]
	}
	return n.send("STATUS=" + text)
}

// Reloading says that the service reads its configuration again. Ready ends it.
func (n *Notifier) Reloading() error {
	// Type=notify-reload (systemd 253) needs the time to tell this reload from an earlier
	// one. Other types ignore the line.
	var now unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &now); err != nil {
		return fmt.Errorf("read the clock: %w", err)
	}
	return n.send(fmt.Sprintf("RELOADING=1\nMONOTONIC_USEC=%d", now.Nano()/1000))
}

// Stopping says that the service is ending, by itself or on request.
func (n *Notifier) Stopping() error { return n.send("STOPPING=1") }

// Watchdog says that the service works.
func (n *Notifier) Watchdog() error { return n.send("WATCHDOG=1") }

// WatchdogInterval is the time without a [Notifier.Watchdog] after which the manager kills
// the service; half of it is a good period. 0: the manager has no watchdog for the service.
func (n *Notifier) WatchdogInterval() time.Duration {
	if n == nil {
		return 0
	}
	return n.watchdog
}

// send sends one message, with descriptors that stay the caller's.
func (n *Notifier) send(message string, fds ...int) error {
	if n == nil {
		return nil
	}
	var rights []byte
	if len(fds) > 0 {
		rights = unix.UnixRights(fds...)
	}
	// A new address for each message, because package unix writes into it.
	to := &unix.SockaddrUnix{Name: n.manager}
	for {
		err := unix.Sendmsg(n.socket.Int(), []byte(message), rights, to, unix.MSG_NOSIGNAL)
		switch {
		case err == nil:
			return nil
		case errors.Is(err, unix.EINTR): // a timeout makes sendmsg interruptible, see signal(7)
		case errors.Is(err, unix.EAGAIN):
			return fmt.Errorf("send %q to the service manager: it has read nothing for %v", message, sendTimeout)
		default:
			return fmt.Errorf("send %q to the service manager: %w", message, err)
		}
	}
}
