// SPDX-FileCopyrightText: The wcache authors
// SPDX-License-Identifier: MIT

package main

import (
	"errors"
	"fmt"

	"github.com/wcache/wcache/control"
)

// Exit status, as documented in wcache(1).
const (
	exitFailed     = 1
	exitUsage      = 2
	exitNotRunning = 3
	exitNoKey      = 4
	exitInUse      = 5
	exitConfig     = 78 // EX_CONFIG of sysexits.h: the service is not tried again
)

// hinted is an error with advice and its own exit status.
type hinted struct {
	err  error
	hint string
	exit int // 0: exitFailed
}

func (h *hinted) Error() string { return h.err.Error() }
func (h *hinted) Unwrap() error { return h.err }

// silent is an exit status with nothing more to say.
type silent struct{ exit int }

//diag - it ends the command without a message

func (s *silent) Error() string { return fmt.Sprintf("exit status %d", s.exit) }

// usage is an error of the command line. The help of the typed command says how to correct
// it.
func usage(format string, args ...any) error {
	return &hinted{err: fmt.Errorf(format, args...), exit: exitUsage}
}

// exitStatus is the exit status of an error that is reported with a code.
func exitStatus(err error, code string) int {
	var h *hinted
	if errors.As(err, &h) && h.exit != 0 {
		return h.exit
	}
	switch code {
	case control.CodeUsage:
		return exitUsage
	case control.CodeNotRunning:
		return exitNotRunning
	case control.CodeNoKey:
		return exitNoKey
	case control.CodeInUse:
		return exitInUse
	}
	return exitFailed
}
