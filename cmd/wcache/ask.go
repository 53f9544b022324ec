// SPDX-FileCopyrightText: The wcache authors
// SPDX-License-Identifier: MIT

package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/wcache/wcache/client"
	"github.com/wcache/wcache/control"
	"github.com/wcache/wcache/doctor"
)

// ask sends a control request to the instance. It never starts one, and ends when the
// instance is silent.
func (a *app) ask(ctx context.Context, request control.Request, each func(control.Reply)) (*control.Reply, error) {
	return client.Asker{Socket: control.Path(a.engineSocket()), Patience: a.patience}.Do(ctx, request, each)
}

// describe words an error for people and programs.
func (a *app) describe(err error) control.Error {
	out := control.Error{Code: control.CodeFailed, Message: err.Error()}
	var no *control.Error
	var h *hinted
	var silent *client.Silent
	var foreign *client.Foreign
	switch {
	case errors.As(err, &no):
		out = *no
		if out.Code == control.CodeNotRunning {
			out.Message, out.Hint = a.notRunning()
		}
	case errors.As(err, &h):
		out.Hint = h.hint
		if h.exit == exitUsage {
			out.Code = control.CodeUsage
		}
	case errors.As(err, &silent):
		out.Message, out.Hint = a.silence(silent)
	case errors.As(err, &foreign):
		out.Hint = "an instance answers its own user: run this as that one, or name a socket of your own"
	case errors.As(err, new(*net.OpError)):
		if cause := doctor.Denied(a.sysroot, control.Path(a.engineSocket()), os.Getuid(), err); cause.Why != "" {
			out.Message, out.Hint = fmt.Sprintf("cannot reach %s: %s", a.name(), cause.Why), cause.Mend
		}
	}
	return out
}

// silence words that an instance is there and says nothing.
func (a *app) silence(err *client.Silent) (message, hint string) {
	cause := doctor.Stuck(a.sysroot, err.PID)
	if cause.Why == "" {
		cause.Why = err.Error()
	}
	if cause.Mend == "" {
		cause.Mend = a.typed("doctor") + " looks for why"
	}
	//diag reaching NAME REASON
	// The daemon runs and sends no reply. The next section explains the reason and says what to do.
	return fmt.Sprintf("%s does not answer: %s", a.name(), cause.Why), cause.Mend
}

// notRunning words that nobody answers, and what would change that.
func (a *app) notRunning() (message, hint string) {
	socket := a.engineSocket()
	//diag reaching NAME SOCKET
	// Neither a daemon nor the service manager listens on that socket. Enable the instance's socket
	// unit, or start a daemon with `--listen` on the socket.
	message = fmt.Sprintf("cannot reach %s: nobody listens on %s", a.name(), socket)
	switch {
	case a.waits():
		//diag reaching NAME
		// The service manager listens on the socket and no daemon runs yet. `wcache warm`, or the
		// first engine that asks, starts the daemon.
		return fmt.Sprintf("%s is idle: nothing is cached", a.name()), "wcache warm MODEL loads a model, and so does the first engine that asks"
	case client.Removed(socket):
		//diag reaching NAME SOCKET
		// The socket's file or its folder is gone, so that no program can connect. A daemon that
		// was started with `--listen` makes the file again within seconds; for the service manager
		// restart the socket unit.
		message = fmt.Sprintf("cannot reach %s: %s was removed, and somebody listens on it", a.name(), socket)
		hint = "a daemon that made it by itself makes it again within seconds"
		if a.socket == "" {
			hint += fmt.Sprintf("; else: systemctl --user restart wcache@%s.socket, which keeps what a daemon holds by descriptors", a.gpu)
		}
		return message, hint
	case a.othersSocket(socket):
		//diag reaching NAME SOCKET
		// An instance answers its own user only. Run the command as that user, or start an instance
		// of your own.
		return fmt.Sprintf("cannot reach %s: %s is another user's", a.name(), socket), "an instance answers its own user: run this as that one, or name a socket of your own"
	case a.socket != "":
		return message, fmt.Sprintf("wcache serve --listen %s", socket)
	case a.isRoot: // for whom systemctl would do nothing and say nothing
		return message, fmt.Sprintf("root has no service: run this as the user who runs engines, or start a daemon by hand: wcache serve --instance %s --listen %s", a.gpu, socket)
	}
	return message, fmt.Sprintf("systemctl --user enable --now wcache@%s.socket", a.gpu)
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
