// SPDX-FileCopyrightText: The wcache authors
// SPDX-License-Identifier: MIT

package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"github.com/wcache/wcache/device/place"
	"github.com/wcache/wcache/loader"
)

// load is the loader child that serve starts, one per job. It is not for direct use.
func (a *app) load() *cobra.Command {
	return &cobra.Command{
		Use:    "load",
		Short:  "carry out one load for the daemon that started it",
		Hidden: true,
		Args:   arguments(0, 0),
		RunE: func(cmd *cobra.Command, _ []string) error {
			// The daemon reads what is written to standard error. A loader that keeps the
			// memory must outlive it.
			signal.Ignore(unix.SIGPIPE)
			conn := os.NewFile(loader.ChildFD, "job")
			if st, err := conn.Stat(); err != nil || st.Mode().Type() != os.ModeSocket {
				//diag usage NUMBER
				// The daemon starts `wcache load` for each load and gives it a socket. To load a
				// model by hand, use `wcache warm`.
				return &hinted{err: fmt.Errorf("load: no job on descriptor %d", loader.ChildFD), hint: "wcache serve starts it; use wcache warm", exit: exitUsage}
			}
			err := loader.Child(cmd.Context(), conn, place.Open, memoryUsers)
			if errors.As(err, new(*loader.Error)) { // the daemon logs it, where the request ends
				return &silent{exitFailed}
			}
			return err
		},
	}
}

// memoryUsers says which processes hold the memory of a job's device, "" if that isn't known.
func memoryUsers(ctx context.Context, name string) string {
	if g := place.Users(ctx, name); g != nil {
		return holders(*g)
	}
	return ""
}
