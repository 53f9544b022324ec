// SPDX-FileCopyrightText: The wcache authors
// SPDX-License-Identifier: MIT

// Command bench measures the project's promises, against the program as users run it, and
// prints each result beside its target:
//
//	bench -wcache bin/wcache
//	bench -wcache bin/wcache -only hits
//
// It needs 2 GiB in the temporary folder, which should be in the page cache, and 5 GiB of
// memory; the scene with a hanging mount needs root. It prints medians with minimum and
// maximum, which show whether the machine was busy. CPU time is then more reliable than
// speed.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"text/tabwriter"

	"golang.org/x/sys/unix"
)

func main() {
	program := flag.String("wcache", "bin/wcache", "the program to measure")
	keep := flag.String("dir", "", "folder for the checkpoint, which stays there for the next run; \"\": a temporary one")
	only := flag.String("only", "", "what to measure, with commas: "+strings.Join(names(), ", ")+"; \"\": everything")
	role := flag.String("role", "", "used internally: what this process plays")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, unix.SIGTERM)
	defer stop()
	args := flag.Args()
	if part := strings.Fields(os.Getenv(roleVariable)); len(part) > 0 {
		*role, args = part[0], part[1:]
	}
	var err error
	switch *role {
	case "":
		err = run(ctx, *program, *keep, *only)
	case roleEngine:
		err = playEngine(args[0], args[1])
	case roleServer:
		err = playServer(args[0], args[1])
	case roleActivate:
		err = becomeService(args[0], args[1:])
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

// bench is the common state of the measurements.
type bench struct {
	program string // path of wcache
	dir     string // for sockets and state
	model   string // the checkpoint's directory
	request string // file of the get_state for it
	results []result
}

// measurement is a part of the table.
type measurement struct {
	name string
	do   func(*bench, context.Context) error
	big  bool // it needs the checkpoint of 2 GiB
}

func measurements() []measurement {
	return []measurement{
		{"idle", (*bench).firstConnection, true}, {"serving", (*bench).serving, true},
		{"loading", (*bench).loading, true}, {"verifying", (*bench).verifying, true}, {"hits", (*bench).hits, false},
	}
}

func names() []string {
	var list []string
	for _, m := range measurements() {
		list = append(list, m.name)
	}
	return list
}

// chosen gives the measurements in a comma-separated list, all if it is empty.
func chosen(only string) ([]measurement, error) {
	if only == "" {
		return measurements(), nil
	}
	wanted := strings.Split(only, ",")
	for _, name := range wanted {
		if !slices.Contains(names(), name) {
			return nil, fmt.Errorf("choose measurements: no %q among %q", name, names())
		}
	}
	return slices.DeleteFunc(measurements(), func(m measurement) bool { return !slices.Contains(wanted, m.name) }), nil
}

func run(ctx context.Context, program, keep, only string) (err error) {
	list, err := chosen(only)
	if err != nil {
		return err
	}
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
	if slices.ContainsFunc(list, func(m measurement) bool { return m.big }) {
		fmt.Fprintln(os.Stderr, "bench: making a checkpoint of 2 GiB")
		if err := b.prepare(); err != nil {
			return err
		}
	}
	for _, m := range list {
		if err := m.do(b, ctx); err != nil {
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
