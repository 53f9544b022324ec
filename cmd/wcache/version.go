// SPDX-FileCopyrightText: The wcache authors
// SPDX-License-Identifier: MIT

package main

import (
	"fmt"

	"github.com/spf13/cobra"

	"github.com/wcache/wcache/control"
)

func (a *app) versionCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "version",
		Short: "show the version of this program and of the running daemon",
		Args:  arguments(0, 0),
		RunE: func(cmd *cobra.Command, _ []string) error {
			v, instance := control.Version{Client: ownVersion()}, a.gpu
			if status, err := a.ownStatus(cmd.Context()); err == nil {
				v.Daemon, instance = status.Version.Daemon, status.Instance
			}
			if a.json {
				return a.printJSON(struct {
					Schema int `json:"schema"`
					control.Version
				}{outputSchema, v})
			}
			say(a.out, "client %s\n", v.Client)
			if v.Daemon == "" {
				if !a.quiet {
					say(a.err, "wcache: %s is not running\n", a.name())
				}
				return nil
			}
			say(a.out, "daemon %s\n", v.Daemon)
			if v.Daemon != v.Client {
				a.hint(fmt.Sprintf("systemctl --user restart wcache@%s.service keeps the weights and runs the new version", instance))
			}
			return nil
		},
	}
}
