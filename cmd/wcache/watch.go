// SPDX-FileCopyrightText: The wcache authors
// SPDX-License-Identifier: MIT

package main

import (
	"bytes"
	"context"
	"errors"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/wcache/wcache/control"
)

// Sequences of ECMA-48 and of xterm's private modes: the alternate screen, which leaves no
// trace; a hidden cursor; long lines cut at the edge.
const (
	enterScreen = "\x1b[?1049h\x1b[?25l\x1b[?7l"
	leaveScreen = "\x1b[?7h\x1b[?25h\x1b[?1049l"
	topLeft     = "\x1b[H"
	restOfLine  = "\x1b[K"
	restOfPage  = "\x1b[J"
)

// watch shows the status repeatedly until the user types q, the daemon ends or ctx is done.
// On a terminal it is drawn in place; elsewhere each status follows the last one, and in
// JSON each one is a line.
func (a *app) watch(ctx context.Context, every time.Duration) error {
	s, err := a.ownStatus(ctx)
	if err != nil {
		return a.notServing(err)
	}
	draws := !a.json && terminal(a.out)
	restore := func() {}
	if draws {
		say(a.out, enterScreen)
		restore = a.listenForKeys()
	}
	var last bytes.Buffer
	for first := true; err == nil; first = false {
		last.Reset()
		a.drawInto(&last, *s)
		switch {
		case draws:
			say(a.out, "%s", styled(page(last.String(), a.rows())))
		case !first && !a.json:
			say(a.out, "\n%s", styled(last.String()))
		default:
			say(a.out, "%s", styled(last.String()))
		}
		if a.wait(ctx, every, draws) {
			break
		}
		s, err = a.ownStatus(ctx)
	}
	if draws {
		restore()
		say(a.out, "%s", styled(leaveScreen+last.String())) // the last status stays on the screen
	}
	var no *control.Error
	switch {
	case ctx.Err() != nil:
		return nil // asked to end
	case errors.As(err, &no) && no.Code == control.CodeNotRunning:
		say(a.err, "wcache: %s has ended\n", a.name())
		return &silent{exitNotRunning}
	}
	return err
}

// page draws a text over the last one, as far as the rows suffice.
func page(text string, rows int) string {
	lines := strings.Split(strings.TrimSuffix(text, "\n"), "\n")
	if rows > 1 && len(lines) > rows-1 {
		lines = lines[:rows-1]
	}
	return topLeft + strings.Join(lines, restOfLine+"\n") + restOfLine + "\n" + restOfPage
}

// rows is the number of the terminal's rows, 0 if it isn't known.
func (a *app) rows() int {
	f, ok := a.out.(interface{ Fd() uintptr })
	if !ok {
		return 0
	}
	size, err := unix.IoctlGetWinsize(int(f.Fd()), unix.TIOCGWINSZ)
	if err != nil {
		return 0
	}
	return int(size.Row)
}

// listenForKeys makes the terminal deliver keys as they are typed, without showing them.
// Ctrl-C stays a signal. restore resets the terminal.
func (a *app) listenForKeys() (restore func()) {
	if a.in == nil || !terminal(a.in) {
		return func() {}
	}
	n := int(a.in.Fd())
	before, err := unix.IoctlGetTermios(n, unix.TCGETS)
	if err != nil {
		return func() {}
	}
	now := *before
	now.Lflag &^= unix.ICANON | unix.ECHO
	_ = unix.IoctlSetTermios(n, unix.TCSETS, &now) // if it fails, q needs Enter
	return func() { _ = unix.IoctlSetTermios(n, unix.TCSETS, before) }
}

// lookEvery is how soon watch notices a key or a signal.
const lookEvery = 50 * time.Millisecond

// wait waits for a while, and reports whether to end before that is over.
func (a *app) wait(ctx context.Context, while time.Duration, keys bool) (end bool) {
	keys = keys && a.in != nil && terminal(a.in)
	for until := time.Now().Add(while); time.Now().Before(until); {
		step := min(lookEvery, time.Until(until))
		select {
		case <-ctx.Done():
			return true
		case <-time.After(step):
		}
		if keys && a.typedQ() {
			return true
		}
	}
	return ctx.Err() != nil
}

// typedQ reports whether q was typed, without waiting.
func (a *app) typedQ() bool {
	n := int(a.in.Fd())
	for {
		set := []unix.PollFd{{Fd: int32(n), Events: unix.POLLIN}}
		if ready, err := unix.Poll(set, 0); err != nil || ready == 0 {
			return false
		}
		var b [16]byte
		got, err := unix.Read(n, b[:])
		if err != nil || got == 0 { // the terminal is gone
			return true
		}
		if bytes.ContainsAny(b[:got], "qQ\x03\x04") {
			return true
		}
	}
}
