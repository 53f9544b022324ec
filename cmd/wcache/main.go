// SPDX-FileCopyrightText: The wcache authors
// SPDX-License-Identifier: MIT

// Command wcache keeps a model's weights in memory between runs of an inference
// engine. This package is wiring and output: one file per subcommand, flags, exit status,
// wording. Calls go one way: main, root, a command, shared helpers.
//
// Output: data goes to standard output, everything else to standard error; an error is
// "wcache: error: …", followed by advice as "wcache: hint: …".
package main

import (
	"context"
	"errors"
	"os"
	"os/signal"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"github.com/wcache/wcache/internal/home"
)

func main() { os.Exit(run()) }

// run is main with an exit status, for the tests.
func run() int { return runOn(&app{sysroot: "/", isRoot: os.Getuid() == 0}) }

// runOn is run on the machine described by a.
func runOn(a *app) int {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, unix.SIGTERM)
	defer stop()
	a.in, a.out, a.err, a.env = os.Stdin, &stdout{File: os.Stdout}, os.Stderr, home.Env(os.Getenv)
	return a.execute(ctx, os.Args[1:])
}

// execute runs the command line and gives the exit status.
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
