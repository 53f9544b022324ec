// SPDX-FileCopyrightText: The wcache authors
// SPDX-License-Identifier: MIT

package main

import (
	"time"

	"github.com/spf13/cobra"
)

const statusHelp = `Show what an instance holds, for whom, and what is wrong.

Asking never starts the daemon: if it isn't running, that is said and the exit
status is 3. With --json the output has a schema number; fields are only added.

With --watch it is shown anew every second, until q, Ctrl-C or the daemon's end.
With --prometheus it is in the text format of Prometheus, for node_exporter's
textfile collector; a daemon that isn't running is wcache_up 0 and no error.`

func (a *app) status() *cobra.Command {
	var watch, prometheus bool
	c := &cobra.Command{
		Use:   "status",
		Short: "show what is held and for whom",
		Long:  statusHelp,
		Args:  arguments(0, 0),
		RunE: func(cmd *cobra.Command, _ []string) error {
			switch {
			case prometheus && (watch || a.json):
				//diag usage
				// `--prometheus` prints the state once in a format of its own. Leave out `--json`
				// and `--watch`.
				return usage("status: --prometheus is a form of its own, without --json and --watch")
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
	c.Flags().BoolVarP(&watch, "watch", "w", false, "show it anew every second, until q or Ctrl-C")
	c.Flags().BoolVar(&prometheus, "prometheus", false, "in the text format of Prometheus")
	return c
}
