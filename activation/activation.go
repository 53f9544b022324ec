// SPDX-FileCopyrightText: The wcache authors
// SPDX-License-Identifier: MIT

// Package activation connects a service with systemd: it takes the descriptors that systemd
// passed, reports the service's state, and stores descriptors with the service manager for
// the next process.
//
// It follows sd_listen_fds(3), sd_notify(3), sd_watchdog_enabled(3) and
// sd_pid_notify_with_fds(3), systemd 252 to 257. It links no library of systemd and uses no
// bus, so a process without a service manager runs the same code, with an empty list of
// [Files] and a nil [Notifier].
package activation

import (
	"errors"
	"fmt"
	"net"
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/wcache/wcache/internal/fd"
)

// firstFD is SD_LISTEN_FDS_START: passed descriptors are numbered from here.
const firstFD = 3

// maxFiles is the default of fs.nr_open, the most descriptors of a process.
const maxFiles = 1 << 20

// File is a descriptor that systemd passed to the service: a listening socket of a socket
// unit, or a descriptor of any kind from the fd store.
type File struct {
	// Name is the unit's FileDescriptorName=, or the name given to [Notifier.Store].
	// Several files may share one. It is empty if systemd passed no names.
	Name string
	*fd.FD
}

// Files takes the descriptors that were passed to this process, in the order of their
// numbers; the caller owns them. They are close-on-exec from here on. The list is empty if
// none were passed, or if they were passed to a parent.
//
// Files removes the environment variables, so that children don't use them and a second call
// finds nothing. After an error it has closed all descriptors.
func Files() ([]File, error) {
	pid, count, names := os.Getenv("LISTEN_PID"), os.Getenv("LISTEN_FDS"), os.Getenv("LISTEN_FDNAMES")
	for _, name := range []string{"LISTEN_PID", "LISTEN_PIDFDID", "LISTEN_FDS", "LISTEN_FDNAMES"} {
		_ = os.Unsetenv(name) // fails for malformed names only
	}
	if pid != strconv.Itoa(os.Getpid()) || count == "" {
		return nil, nil
	}
	files, err := take(count, names)
	if err != nil {
		return nil, fmt.Errorf("take passed descriptors: %v", err)
	}
	return files, nil
}

// take makes owners for count descriptors before it checks anything, so that an error only
// has to close them.
func take(count, names string) (files []File, err error) {
	n, err := strconv.Atoi(count)
	if err != nil || n < 0 || n > maxFiles {
		return nil, fmt.Errorf("LISTEN_FDS is %q", count)
	}
	defer func() {
		if err != nil {
			for _, f := range files {
				_ = f.Close() // err is the cause
			}
			files = nil
		}
	}()
	var missing error
	for i := range n {
		if _, err := unix.FcntlInt(uintptr(firstFD+i), unix.F_SETFD, unix.FD_CLOEXEC); err != nil {
			if missing == nil {
				missing = fmt.Errorf("number %d of LISTEN_FDS=%d: %v", firstFD+i, n, err)
			}
			continue
		}
		owner, err := fd.New(firstFD + i)
		if err != nil {
			return files, err
		}
		files = append(files, File{FD: owner})
	}
	if missing != nil {
		return files, missing
	}
	if names == "" {
		return files, nil
	}
	list := strings.Split(names, ":")
	if len(list) != n {
		return files, fmt.Errorf("LISTEN_FDNAMES has %d names for %d descriptors", len(list), n)
	}
	for i := range files {
		files[i].Name = list[i]
	}
	return files, nil
}

// Listener makes a listener from a passed Unix stream socket. It closes the file in any case;
// the listener has a descriptor of its own. Its close doesn't remove the socket's path, which
// belongs to the service manager.
func (f File) Listener() (*net.UnixListener, error) {
	file := os.NewFile(uintptr(f.Disown()), f.Name)
	defer file.Close()
	// FileListener accepts a connected socket too, but Accept would always fail.
	if err := expectListening(file); err != nil {
		return nil, fmt.Errorf("listen on passed descriptor %q: %v", f.Name, err)
	}
	l, err := net.FileListener(file)
	if err != nil {
		return nil, fmt.Errorf("listen on passed descriptor %q: %v", f.Name, err)
	}
	u, ok := l.(*net.UnixListener)
	if !ok {
		_ = l.Close() // it was never used
		return nil, fmt.Errorf("listen on passed descriptor %q: it is a %s socket", f.Name, l.Addr().Network())
	}
	return u, nil
}

// expectListening checks that file is a stream socket that listens.
func expectListening(file *os.File) error {
	if file == nil {
		return errors.New("it is closed")
	}
	n := int(file.Fd())
	kind, err := unix.GetsockoptInt(n, unix.SOL_SOCKET, unix.SO_TYPE)
	if err != nil {
		return err
	}
	got, err := unix.GetsockoptInt(n, unix.SOL_SOCKET, unix.SO_ACCEPTCONN)
	if err != nil {
		return err
	}
	if kind != unix.SOCK_STREAM || got != 1 {
		return errors.New("not a listening stream socket")
	}
	return nil
}
