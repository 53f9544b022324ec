// SPDX-FileCopyrightText: The wcache authors
// SPDX-License-Identifier: MIT

package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/user"
	"strings"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"github.com/wcache/wcache/config"
	"github.com/wcache/wcache/doctor"
)

const doctorHelp = `Look for what keeps the instance from working, or from keeping its weights.

A line a check, with the command that mends it. Nothing is changed or started.
The exit status is 1 if a check failed.`

func (a *app) doctor() *cobra.Command {
	return &cobra.Command{
		Use:   "doctor",
		Short: "look for what is wrong, and say what mends it",
		Long:  doctorHelp,
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			name := a.env("USER")
			if u, err := user.Current(); err == nil {
				name = u.Username
			}
			list := doctor.Run(cmd.Context(), doctor.Machine{
				Instance: a.gpu, Socket: a.engineSocket(), UID: os.Getuid(), User: name, Env: a.env,
				Config: config.Paths(a.env), Systemctl: systemctl,
			})
			if a.json {
				if err := a.printJSON(map[string]any{"schema": 1, "checks": list}); err != nil {
					return err
				}
			} else {
				printChecks(a.out, list)
			}
			if doctor.Failed(list, doctor.Fail) > 0 {
				return &silent{exitFailed}
			}
			return nil
		},
	}
}

func printChecks(out io.Writer, list []doctor.Result) {
	w := tabwriter.NewWriter(out, 0, 0, 3, ' ', 0)
	for _, r := range list {
		mend := ""
		if r.Mend != "" {
			mend = "   -> " + r.Mend
		}
		fmt.Fprintf(w, "%s\t%s\t%s%s\n", r.State, r.Check, r.Text, mend)
	}
	_ = w.Flush() // an error of out shows at the next write to it
	fmt.Fprintf(out, "%d failed, %d warnings\n", doctor.Failed(list, doctor.Fail), doctor.Failed(list, doctor.Warn))
}

// systemctl asks the user's manager. It is systemctl that knows how to reach one
// without a message bus.
func systemctl(ctx context.Context, args ...string) (string, error) {
	out, err := exec.CommandContext(ctx, "systemctl", append([]string{"--user", "--no-pager"}, args...)...).Output()
	text := strings.TrimSpace(string(out))
	var exit *exec.ExitError
	if errors.As(err, &exit) && len(exit.Stderr) > 0 {
		return text, errors.New(strings.TrimSpace(string(exit.Stderr)))
	}
	return text, err
}
