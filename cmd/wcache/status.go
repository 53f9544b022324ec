// SPDX-FileCopyrightText: The wcache authors
// SPDX-License-Identifier: MIT

package main

import (
	"time"

	"github.com/spf13/cobra"
)

const statusHelp = `Show what an instance holds, for whom, and what is wrong.

This never starts the daemon: if it isn't running, the command says so and the exit
status is 3. With --json the output has a schema number; fields are only added.

With --watch it is shown again every second, until q, Ctrl-C or the daemon's end.
With --prometheus it is in the text format of Prometheus, for node_exporter's
textfile collector; a daemon that isn't running is wcache_up 0, and not an error.`

func (a *app) status() *cobra.Command {
	var watch, prometheus bool
	c := &cobra.Command{
		Use:   "status",
		Short: "show the held weights and the engines that use them",
		Long:  statusHelp,
		Args:  arguments(0, 0),
		RunE: func(cmd *cobra.Command, _ []string) error {
			switch {
			case prometheus && (watch || a.json):
				//diag usage
				// `--prometheus` prints the state once in a format of its own. Leave out `--json`
				// and `--watch`.
				return usage("status: --prometheus has its own format; leave out --json and --watch")
			case prometheus:
				return a.metrics(cmd.Context())
			case watch:
				return a.watch(cmd.Context(), time.Second)
			}
			s, err := a.ownStatus(cmd.Context())
			if err != nil {
				return a.notServing(err)
			}
			return a.show(*s)
		},
	}
	c.Flags().BoolVarP(&watch, "watch", "w", false, "show it again every second, until q or Ctrl-C")
	c.Flags().BoolVar(&prometheus, "prometheus", false, "in the text format of Prometheus")
	return c
}
