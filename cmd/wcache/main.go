// SPDX-FileCopyrightText: The wcache authors
// SPDX-License-Identifier: MIT

// Command wcache keeps a model's weights in memory between runs of an inference
// engine. This package is wiring: a file a subcommand, flags, exit status.
//
// How it speaks: data on standard output, everything else on standard error; an
// error as "wcache: error: …", then what to do as "wcache: hint: …".
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"os/user"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"github.com/wcache/wcache/client"
	"github.com/wcache/wcache/control"
	"github.com/wcache/wcache/internal/visible"
)

// version is set by the linker; a build without it says what Go knows.
var version string

// Exit status, as wcache(1) promises it.
const (
	exitFailed     = 1
	exitUsage      = 2
	exitNotRunning = 3
	exitNoKey      = 4
	exitInUse      = 5
	exitConfig     = 78 // EX_CONFIG of sysexits.h: the service is not tried again
)

func main() { os.Exit(run()) }

// run is main with an exit status, for the tests.
func run() int { return runOn(&app{sysroot: "/", isRoot: os.Getuid() == 0}) }

// runOn is run on the machine that a says.
func runOn(a *app) int {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, unix.SIGTERM)
	defer stop()
	a.in, a.out, a.err, a.env = os.Stdin, &stdout{File: os.Stdout}, os.Stderr, withHome(os.Getenv)
	return a.execute(ctx, os.Args[1:])
}

// app is one run of the command.
type app struct {
	in       *os.File // nil: nobody types
	out, err io.Writer
	flush    func() // has what was written to err reach people; nil: it has
	env      func(string) string
	sysroot  string        // "/" but in tests: holds the driver's part of /proc
	isRoot   bool          // the user is root, whom the units don't serve
	patience time.Duration // with an instance that says nothing, 0: the client's
	json     bool
	quiet    bool
	gpu      string
	socket   string
}

// stdout is standard output, with the first error of writing there: half of an
// answer must not look like a whole one.
type stdout struct {
	*os.File
	err error
}

func (o *stdout) Write(p []byte) (int, error) {
	n, err := o.File.Write(p)
	if o.err == nil {
		o.err = err
	}
	return n, err
}

// WriteString is the other way by which a file is written.
func (o *stdout) WriteString(s string) (int, error) { return o.Write([]byte(s)) }

// ReadFrom is the third.
func (o *stdout) ReadFrom(r io.Reader) (int64, error) {
	return io.Copy(struct{ io.Writer }{o}, r)
}

// hinted is an error with what to do about it, and an exit status of its own.
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

// usage is an error of the command line. What to do about it is in the help of the
// command that was typed.
func usage(format string, args ...any) error {
	return &hinted{err: fmt.Errorf(format, args...), exit: exitUsage}
}

func (a *app) execute(ctx context.Context, args []string) int {
	root := a.root()
	root.SetArgs(args)
	if len(args) > 0 && strings.HasPrefix(args[0], cobra.ShellCompRequestCmd) {
		describeFlags(root)
	}
	a.json = slices.Contains(args, "--json") // for errors of flags before it, too
	cmd, err := root.ExecuteContextC(ctx)
	var h *hinted
	if errors.As(err, &h) && h.exit == exitUsage && h.hint == "" {
		h.hint = cmd.CommandPath() + " --help"
	}
	if o, ok := a.out.(*stdout); ok && err == nil {
		err = o.err
	}
	code := a.exitOf(err)
	if a.flush != nil {
		a.flush()
	}
	return code
}

// exitOf tells an error, if there is one to tell, and gives the exit status.
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

// hint says what to do, to those who want to hear it.
func (a *app) hint(text string) {
	if text != "" && !a.quiet {
		say(a.err, "wcache: %s %s\n", a.palette(a.err).paint(strong, "hint:"), visible.Line(text))
	}
}

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

func (a *app) envOr(name, otherwise string) string {
	if v := a.env(name); v != "" {
		return v
	}
	return otherwise
}

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

// outputSchema is the number of what commands print in JSON, other than status,
// which has one of its own: fields are only added.
const outputSchema = 1

// ownVersion is the version of this program.
func ownVersion() string {
	if version != "" {
		return version
	}
	if info, ok := debug.ReadBuildInfo(); ok && info.Main.Version != "" {
		return info.Main.Version
	}
	return "unknown"
}
