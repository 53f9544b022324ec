// SPDX-FileCopyrightText: The wcache authors
// SPDX-License-Identifier: MIT

package main

import (
	"errors"

	"github.com/spf13/cobra"

	"github.com/wcache/wcache/control"
)

func (a *app) versionCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "version",
		Short: "show the version of this program and of the running daemon",
		Args:  arguments(0, 0),
		RunE: func(cmd *cobra.Command, _ []string) error {
			v := control.Version{Client: ownVersion()}
			status, err := a.ownStatus(cmd.Context())
			var no *control.Error
			switch {
			case err == nil:
				v.Daemon = status.Version.Daemon
			case errors.As(err, &no) && no.Code == control.CodeNotRunning:
				err = nil // reported below
			}
			if a.json {
				return errors.Join(a.printJSON(struct {
					Schema int `json:"schema"`
					control.Version
				}{outputSchema, v}), err)
			}
			say(a.out, "client %s\n", v.Client)
			if err != nil || v.Daemon == "" {
				if err == nil && !a.quiet {
					say(a.err, "wcache: %s is not running\n", a.name())
				}
				return err
			}
			say(a.out, "daemon %s\n", v.Daemon)
			if v.Daemon != v.Client {
				a.hint(renewal(*status))
			}
			return nil
		},
	}
}
