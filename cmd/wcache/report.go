// SPDX-FileCopyrightText: The wcache authors
// SPDX-License-Identifier: MIT

package main

import (
	"errors"
	"fmt"
	"net"
	"os"

	"github.com/wcache/wcache/client"
	"github.com/wcache/wcache/control"
	"github.com/wcache/wcache/doctor"
	"github.com/wcache/wcache/internal/visible"
)

// exitOf reports an error, if there is one, and gives the exit status.
func (a *app) exitOf(err error) int {
	var told *silent
	switch {
	case err == nil:
		return 0
	case errors.As(err, &told):
		return told.exit
	}
	report := a.describe(err)
	if a.json {
		say(a.err, "%s", styled(jsonLine(map[string]any{"error": report})))
	} else {
		say(a.err, "wcache: %s %s\n", a.palette(a.err).paint(bad, "error:"), visible.Line(report.Message))
		a.hint(report.Hint)
	}
	return exitStatus(err, report.Code)
}

// hint prints advice, unless --quiet was given.
func (a *app) hint(text string) {
	if text != "" && !a.quiet {
		say(a.err, "wcache: %s %s\n", a.palette(a.err).paint(strong, "hint:"), visible.Line(text))
	}
}

// describe turns an error into a message, advice and code, for people and programs.
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

// silence makes the message for a daemon that runs and doesn't answer.
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

// notRunning makes the message for an instance without a daemon, and the advice.
func (a *app) notRunning() (message, hint string) {
	socket := a.engineSocket()
	//diag reaching NAME SOCKET
	// Neither a daemon nor the service manager listens on that socket. Enable the instance's socket
	// unit, or start a daemon with `--listen` on the socket.
	message = fmt.Sprintf("cannot reach %s: no process listens on %s", a.name(), socket)
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
		message = fmt.Sprintf("cannot reach %s: %s was removed, and a process still listens on it", a.name(), socket)
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
	case a.isRoot: // for root systemctl would do nothing and print nothing
		return message, fmt.Sprintf("root has no service: run this as the user who runs engines, or start a daemon by hand: wcache serve --instance %s --listen %s", a.gpu, socket)
	}
	return message, fmt.Sprintf("systemctl --user enable --now wcache@%s.socket", a.gpu)
}
