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

// engineSocket is the socket of the chosen instance.
func (a *app) engineSocket() string {
	if a.socket != "" {
		return a.socket
	}
	return client.Socket(a.env, os.Getuid(), a.gpu)
}

// userName is the name of this user, as loginctl shows it, or the uid if the name isn't
// known.
func (a *app) userName() string {
	if u, err := user.LookupId(strconv.Itoa(os.Getuid())); err == nil {
		return u.Username
	}
	return strconv.Itoa(os.Getuid())
}

// waits reports whether a process of this user listens on the instance's socket.
func (a *app) waits() bool {
	return client.Listening(a.engineSocket()) && !a.othersSocket(a.engineSocket())
}

// othersSocket reports whether a file belongs to another user.
func (a *app) othersSocket(path string) bool {
	st, err := os.Stat(path)
	return err == nil && int(st.Sys().(*syscall.Stat_t).Uid) != os.Getuid() || errors.Is(err, unix.EACCES) // what os gives on Linux
}

// name is the instance's name in messages.
func (a *app) name() string {
	if a.socket != "" {
		return a.socket
	}
	return "wcache@" + a.gpu
}

// instance is the instance's name by the options, whether it runs or not. For --socket it
// is derived from the file's name, because units name sockets after instances.
func (a *app) instance() string {
	if a.socket != "" {
		return strings.TrimSuffix(filepath.Base(a.socket), ".sock")
	}
	return a.gpu
}

// typed is a command line for this instance, as a user would type it.
func (a *app) typed(command string) string {
	if a.socket != "" {
		return fmt.Sprintf("wcache --socket %s %s", a.socket, command)
	}
	return fmt.Sprintf("wcache --gpu %s %s", a.gpu, command)
}
