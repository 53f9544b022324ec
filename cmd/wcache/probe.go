// SPDX-FileCopyrightText: The wcache authors
// SPDX-License-Identifier: MIT

package main

import (
	"github.com/spf13/cobra"

	"github.com/wcache/wcache/device/place"
)

// probe is the child in which serve and doctor ask a GPU's driver. A driver may hang or end
// the process that calls it, so the daemon doesn't open one.
func (a *app) probe() *cobra.Command {
	var brief bool
	c := &cobra.Command{
		Use:    "probe UUID",
		Short:  "report in JSON what a GPU's driver says, for the daemon and wcache doctor",
		Hidden: true,
		Args:   arguments(1, 1),
		RunE: func(_ *cobra.Command, args []string) error {
			r, err := place.Probe(args[0], brief)
			if err != nil {
				return err
			}
			if brief {
				return a.printJSON(r.GPU)
			}
			return a.printJSON(r)
		},
	}
	c.Flags().BoolVar(&brief, "brief", false, "ask only NVML: the GPU's health and which processes use it")
	return c
}
