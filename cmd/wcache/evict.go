// SPDX-FileCopyrightText: The wcache authors
// SPDX-License-Identifier: MIT

package main

import (
	"fmt"

	"github.com/spf13/cobra"

	"github.com/wcache/wcache/control"
)

const evictHelp = `Free the memory of an entry that no engine uses.

KEY is a key of "wcache status", or its first digits. An entry that engines may
still map is left alone unless --force is given: then it is not served any more,
and the engines that have mapped it keep what they have until they end.`

func (a *app) evict() *cobra.Command {
	var all, force bool
	c := &cobra.Command{
		Use:   "evict KEY | --all",
		Short: "free what no engine uses",
		Long:  evictHelp,
		Args:  cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if all == (len(args) == 1) {
				return usage("evict: name one key, or give --all")
			}
			e := control.Evict{Force: force}
			if len(args) == 1 {
				if args[0] == "" {
					return usage("evict: the key is empty")
				}
				e.Key = args[0]
			}
			reply, err := a.ask(cmd.Context(), control.Request{Method: control.MethodEvict, Evict: &e}, nil)
			if reply != nil {
				for _, id := range reply.Evicted {
					if !a.json {
						fmt.Fprintln(a.out, id)
					}
				}
			}
			if err != nil {
				return err
			}
			if a.json {
				return a.printJSON(map[string][]string{"evicted": reply.Evicted})
			}
			return nil
		},
	}
	c.Flags().BoolVar(&all, "all", false, "every entry")
	c.Flags().BoolVar(&force, "force", false, "also what engines may still map")
	return c
}
