// SPDX-FileCopyrightText: The wcache authors
// SPDX-License-Identifier: MIT

package main

import (
	"errors"
	"fmt"
	"os"
	"os/user"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/wcache/wcache/client"
)

// engineSocket is the socket of the instance that is asked for.
func (a *app) engineSocket() string {
	if a.socket != "" {
		return a.socket
	}
	return client.Socket(a.env, os.Getuid(), a.gpu)
}

// userName is who this user is, as loginctl calls him, or his number where nobody knows
// a name.
func (a *app) userName() string {
	if u, err := user.LookupId(strconv.Itoa(os.Getuid())); err == nil {
		return u.Username
	}
	return strconv.Itoa(os.Getuid())
}

// waits reports whether the instance's socket is listened on, by somebody of this user's.
func (a *app) waits() bool {
	return client.Listening(a.engineSocket()) && !a.othersSocket(a.engineSocket())
}

// othersSocket reports whether a file is another user's.
func (a *app) othersSocket(path string) bool {
	st, err := os.Stat(path)
	return err == nil && int(st.Sys().(*syscall.Stat_t).Uid) != os.Getuid() || errors.Is(err, unix.EACCES) // what os gives on Linux
}

// name is how messages call the instance that is asked for.
func (a *app) name() string {
	if a.socket != "" {
		return a.socket
	}
	return "wcache@" + a.gpu
}

// instance is what the instance is called by who asks, whether it runs or not: a socket's
// is the name of that, as units and the manual name sockets after instances.
func (a *app) instance() string {
	if a.socket != "" {
		return strings.TrimSuffix(filepath.Base(a.socket), ".sock")
	}
	return a.gpu
}

// typed is a command about this instance, as it is typed.
func (a *app) typed(command string) string {
	if a.socket != "" {
		return fmt.Sprintf("wcache --socket %s %s", a.socket, command)
	}
	return fmt.Sprintf("wcache --gpu %s %s", a.gpu, command)
}
