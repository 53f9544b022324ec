// SPDX-FileCopyrightText: The wcache authors
// SPDX-License-Identifier: MIT

// Command bench measures what the project promises, against the program as users
// run it, and prints what it measured beside what was aimed at:
//
//	bench -wcache bin/wcache
//
// It needs 2 GiB in the temporary folder, which should be in the page cache, and
// 5 GiB of memory. Measured are medians, with the least and the greatest: a busy
// machine shows there. CPU time tells more of it than speed does.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"text/tabwriter"

	"golang.org/x/sys/unix"
)

func main() {
	program := flag.String("wcache", "bin/wcache", "the program to measure")
	keep := flag.String("dir", "", "folder for the checkpoint, which stays there for the next run; \"\": a temporary one")
	role := flag.String("role", "", "used internally: what this process plays")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, unix.SIGTERM)
	defer stop()
	var err error
	switch *role {
	case "":
		err = run(ctx, *program, *keep)
	case roleEngine:
		err = playEngine(flag.Arg(0), flag.Arg(1))
	case roleActivate:
		err = becomeService(flag.Arg(0), flag.Args()[1:])
	default:
		err = fmt.Errorf("play: no role %q", *role)
	}
	if err != nil {
		fmt.Fprintf(os.Stderr, "bench: error: %v\n", err)
		os.Exit(1)
	}
}

// result is a line of the table.
type result struct {
	what, measured, aim string
	met                 bool
}

// bench is what the measurements share.
type bench struct {
	program string // path of wcache
	dir     string // for sockets and state
	model   string // the checkpoint's directory
	request string // file of the get_state for it
	results []result
}

func run(ctx context.Context, program, keep string) (err error) {
	dir, err := os.MkdirTemp("", "wcache-bench-")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	if program, err = filepath.Abs(program); err != nil {
		return err
	}
	if keep == "" {
		keep = dir
	}
	b := &bench{program: program, dir: dir, model: filepath.Join(keep, "model"), request: filepath.Join(dir, "get_state")}
	fmt.Fprintln(os.Stderr, "bench: making a checkpoint of 2 GiB")
	if err := b.prepare(); err != nil {
		return err
	}
	for _, measure := range []func(context.Context) error{b.firstConnection, b.serving, b.loading} {
		if err := measure(ctx); err != nil {
			return err
		}
	}
	return b.print()
}

func (b *bench) print() error {
	w := tabwriter.NewWriter(os.Stdout, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "WHAT\tMEASURED\tAIM\t")
	for _, r := range b.results {
		verdict := "met"
		switch {
		case r.aim == "":
			verdict = ""
		case !r.met:
			verdict = "MISSED"
		}
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\n", r.what, r.measured, r.aim, verdict)
	}
	return w.Flush()
}
