// SPDX-FileCopyrightText: The wcache authors
// SPDX-License-Identifier: MIT

package main

import (
	"fmt"
	"slices"

	"github.com/spf13/cobra"

	"github.com/wcache/wcache/control"
	"github.com/wcache/wcache/internal/visible"
)

const verifyHelp = `Compare what is held, byte for byte, with what its files give, and each file with
its sha256: the one that is on record since an earlier look at it, and the one by
which a Hugging Face cache names it.

KEY is a key of "wcache status", or its first digits, MODEL a model directory or a
model id; without any every entry is compared. Engines may use the entries
meanwhile. Memory that differs from files that have not changed is served no more.

The exit status is 1 if anything differs or could not be compared.`

func (a *app) verify() *cobra.Command {
	return &cobra.Command{
		Use:   "verify [KEY | MODEL]...",
		Short: "compare what is held with its files",
		Long:  verifyHelp,
		Args:  arguments(0, -1),

		ValidArgsFunction: a.completeHeld,
		RunE: func(cmd *cobra.Command, args []string) error {
			v := control.Verify{Targets: []string{}}
			for _, arg := range args {
				if arg == "" {
					//diag usage
					// An argument has no characters, mostly because a variable of a script is not set.
					// Give keys or models that `wcache status` lists.
					return usage("verify: a key or model is empty")
				}
				v.Targets = append(v.Targets, modelArgument(arg))
			}
			show, end := a.progress("verify")
			reply, err := a.ask(cmd.Context(), control.Request{Method: control.MethodVerify, Verify: &v}, show)
			end()
			if err != nil {
				return err
			}
			if err := a.printVerified(reply.Verified); err != nil {
				return err
			}
			if slices.ContainsFunc(reply.Verified, func(v control.Verified) bool { return v.State != control.StateEqual }) {
				return &silent{exitFailed}
			}
			return nil
		},
	}
}

// printVerified shows one row per entry, and below it what is wrong with it.
func (a *app) printVerified(list []control.Verified) error {
	if a.json {
		return a.printJSON(struct {
			Schema   int                `json:"schema"`
			Verified []control.Verified `json:"verified"`
		}{outputSchema, append([]control.Verified{}, list...)}) // [] and not null
	}
	if len(list) == 0 {
		return nil
	}
	p := a.palette(a.out)
	var t table
	t.texts(faint, "KEY", "MODEL", "RANK", "MEMORY", "FILES", "RESULT")
	styles := map[string]style{control.StateEqual: good, control.StateDiffers: bad, control.StateChanged: uneasy, control.StateFailed: bad}
	for _, v := range list {
		t.add(plain.cell(fmt.Sprintf("%.12s", v.Key)), plain.cell(modelName(v.Model)), plain.cell(rank(v.Fingerprint)), plain.cell(size(v.Bytes)),
			plain.cell(fmt.Sprint(len(v.Files))), cell{{v.State, styles[v.State]}, {", " + seconds(v.Seconds), plain}})
	}
	t.write(a.out, p)
	for _, v := range list {
		if v.Message != "" {
			say(a.out, "%s\n", p.paint(uneasy, visible.Line(fmt.Sprintf("# %.12s: %s", v.Key, v.Message))))
		}
		if v.Hint != "" && !a.quiet {
			say(a.out, "%s\n", p.paint(uneasy, visible.Line("#   "+v.Hint)))
		}
	}
	return nil
}
