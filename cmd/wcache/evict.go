// SPDX-FileCopyrightText: The wcache authors
// SPDX-License-Identifier: MIT

package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/wcache/wcache/control"
)

const evictHelp = `Free the memory of an entry that no engine uses.

KEY is a key of "wcache status", or its first digits. An entry that engines may
still map is kept unless --force is given: then it is not served any more, and
the engines that have mapped it keep the memory until they end.`

// evictTime is much more than freeing a whole GPU takes.
const evictTime = time.Minute

func (a *app) evict() *cobra.Command {
	var all, force bool
	c := &cobra.Command{
		Use:   "evict KEY | --all",
		Short: "free what no engine uses",
		Long:  evictHelp,
		Args:  arguments(0, 1),

		ValidArgsFunction: a.completeKeys,
		RunE: func(cmd *cobra.Command, args []string) error {
			if all == (len(args) == 1) {
				//diag usage
				// `wcache evict` needs either one key or `--all`. `wcache status` lists the keys.
				return usage("evict: name one key, or give --all")
			}
			e := control.Evict{Force: force}
			if len(args) == 1 {
				if args[0] == "" {
					//diag usage
					// The argument has no characters, mostly because a variable of a script is not set.
					// Nothing was evicted; give a key that `wcache status` lists.
					return usage("evict: the key is empty")
				}
				e.Key = args[0]
			}
			//diag reaching TIME
			// `wcache evict` stopped waiting; the daemon goes on with the eviction and answers
			// other requests. Look at `wcache status`, and repeat the command if entries are left.
			ctx, cancel := context.WithTimeoutCause(cmd.Context(), evictTime, fmt.Errorf("it is not done after %v; wcache status shows what is left", evictTime))
			defer cancel()
			reply, err := a.ask(ctx, control.Request{Method: control.MethodEvict, Evict: &e}, nil)
			if reply == nil {
				return err
			}
			// The output lists what was freed, even if an engine kept the rest.
			if !a.json {
				for _, id := range reply.Evicted {
					say(a.out, "%s\n", id)
				}
				return err
			}
			evicted := append([]string{}, reply.Evicted...) // [] and not null
			if len(evicted) > 0 || err == nil {
				err = errors.Join(a.printJSON(map[string]any{"schema": outputSchema, "evicted": evicted}), err)
			}
			return err
		},
	}
	c.Flags().BoolVar(&all, "all", false, "every entry")
	c.Flags().BoolVar(&force, "force", false, "also what engines may still map")
	return c
}
