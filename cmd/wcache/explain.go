// SPDX-FileCopyrightText: The wcache authors
// SPDX-License-Identifier: MIT

package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"github.com/wcache/wcache/explain"
	"github.com/wcache/wcache/fingerprint"
	"github.com/wcache/wcache/release"
	"github.com/wcache/wcache/weights"
	"github.com/wcache/wcache/weights/index"
)

const explainHelp = `Without an argument: why the last request of an engine was not answered from
memory, from the daemon's record: which fields differ from the held weights and
from the directory's files, and which option of the engine changes them.

With a model directory or id: its key, field by field, and where each value comes from.

With the key of an engine, as JSON text or as a file, also show in which fields
the two differ and why; the directory may be left out if its headers are found.
The key of a cached entry is in "wcache status --json" under fingerprint.`

func (a *app) explain() *cobra.Command {
	var o fingerprint.Options
	var file string
	var roots []string
	c := &cobra.Command{
		Use:   "explain [MODEL | KEY-JSON [MODEL]]",
		Short: "show why an engine's request missed, or a model's key",
		Long:  explainHelp,
		Args:  arguments(0, 2),

		ValidArgsFunction: a.completeModels,
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) == 0 {
				return a.explainLast(cmd.Context())
			}
			if err := checkRanks(o.TPSize, o.TPRank, o.PPSize, o.PPRank); err != nil {
				return err
			}
			key, isKey, err := explain.ReadKey(args[0])
			switch {
			case errors.As(err, new(*explain.BadKey)):
				return usage("%w", err)
			case err != nil:
				return err
			case !isKey && len(args) == 2:
				//diag usage TEXT
				// With two arguments, the first is an engine's key: JSON text, or a file that holds
				// it. Take it from `fingerprint` in `wcache status --json`.
				return usage("explain: %q is not a key in JSON", args[0])
			case !isKey:
				return a.explainDir(args[0], file, roots, o)
			}
			dir, err := a.explained(cmd.Context(), key, args[1:], file, roots)
			if err != nil {
				return err
			}
			return a.explainKey(key, dir)
		},
	}
	f := c.Flags()
	rankFlags(c, &o.TPSize, &o.TPRank, &o.PPSize, &o.PPRank)
	f.StringVar(&o.DType, "dtype", "", "element `TYPE`, such as bfloat16 (default: as the model says)")
	f.StringVar(&o.Release, "vllm-version", release.Newest().Version, "`VERSION` of the engine")
	f.StringVar(&file, "config", "", "configuration `FILE`, instead of the system's and the user's")
	f.StringArrayVar(&roots, "root", nil, "a model `DIRECTORY`, or a folder of them (may repeat)")
	return c
}

// explained is the directory with which a key is compared.
func (a *app) explained(ctx context.Context, key fingerprint.Key, args []string, file string, roots []string) (*weights.Dir, error) {
	if len(args) > 0 {
		return a.openModel(args[0], file, roots)
	}
	c, err := configuration(a.env, file, a.gpu)
	if err != nil {
		return nil, err
	}
	x := index.New(index.Options{})
	defer x.Close()
	x.SetRoots(slices.Concat(c.Roots, absolute(roots), weights.HubCaches(a.env)))
	answer, err := x.Lookup(ctx, key.Str("checkpoint"))
	if err != nil {
		return nil, err
	}
	found := answer.Dirs
	if len(found) == 0 {
		//diag usage HASH
		// No directory of the service's `roots` has headers with this hash. Give the model's
		// directory as second argument, or its folder with `--root`.
		return nil, &hinted{err: fmt.Errorf("explain: no model directory with the checkpoint hash %q is known", key.Str("checkpoint")), hint: "give the directory too, or its folder with --root"}
	}
	for _, p := range found[1:] {
		say(a.err, "wcache: hint: %s has the same headers\n", p.Path)
	}
	return weights.Open(found[0].Path)
}

func (a *app) explainDir(name, file string, roots []string, o fingerprint.Options) error {
	dir, err := a.openModel(name, file, roots)
	if err != nil {
		return err
	}
	key, err := fingerprint.Compute(dir, o)
	if err != nil {
		return err
	}
	plan := explain.Plan(key, dir)
	if a.json {
		loader := ""
		if plan.Refusal == "" {
			loader = plan.Loader + ", " + size(plan.Bytes)
		}
		return a.printJSON(map[string]any{"schema": outputSchema, "directory": dir.Path, "key": key.ID(), "fingerprint": key, "loader": loader, "refusal": plan.Refusal})
	}
	say(a.out, "directory   %s\nkey         %s\n\n", dir.Path, key.ID())
	printKey(a.out, key, dir)
	say(a.out, "\n%s\n", loaded(plan))
	return nil
}

// printKey lists the fields and, for the hashes, what they are computed from.
func printKey(out io.Writer, key fingerprint.Key, dir *weights.Dir) {
	var table strings.Builder
	w := tabwriter.NewWriter(&table, 0, 0, 3, ' ', 0)
	say(w, "FIELD\tVALUE\tOF\n")
	for _, f := range key.Fields() {
		say(w, "%s\t%s\t%s\n", f.Name, word(f.Value), explain.Source(f.Name, dir))
	}
	_ = w.Flush() // to memory
	for line := range strings.Lines(table.String()) {
		say(out, "%s\n", strings.TrimRight(line, " \n")) // a last cell may be empty
	}
}

func (a *app) explainKey(key fingerprint.Key, dir *weights.Dir) error {
	differences := fingerprint.Explain(key, dir)
	if a.json {
		if differences == nil {
			differences = []fingerprint.Difference{}
		}
		return a.printJSON(map[string]any{"schema": outputSchema, "directory": dir.Path, "key": key.ID(), "differences": differences})
	}
	say(a.out, "directory   %s\nkey         %s\n\n", dir.Path, key.ID())
	if len(differences) == 0 {
		say(a.out, "every field that the directory decides is the same\n")
	}
	for _, d := range differences {
		if !d.Certain {
			say(a.out, "%s can't be told\n   engine      %s\n   because     %s\n", d.Field, word(d.Engine), d.Why)
			continue
		}
		say(a.out, "%s differs\n   engine      %s\n   directory   %s\n   because     %s\n", d.Field, word(d.Engine), word(d.Computed), d.Why)
	}
	say(a.out, "\n%s\n", loaded(explain.Plan(key, dir)))
	return nil
}
