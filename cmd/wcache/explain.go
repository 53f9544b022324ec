// SPDX-FileCopyrightText: The wcache authors
// SPDX-License-Identifier: MIT

package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"github.com/wcache/wcache/config"
	"github.com/wcache/wcache/fingerprint"
	"github.com/wcache/wcache/release"
	"github.com/wcache/wcache/resolve"
	"github.com/wcache/wcache/weights"
	"github.com/wcache/wcache/weights/index"
)

const explainHelp = `Without an argument: why the last request of an engine was not answered from
memory, from the daemon's record of it: which fields differ from what was held and
from what the directory's files say, and which option of the engine makes them.

With a model directory or id: its key, field by field, and what a field is made of.

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
			key, isKey, err := keyArgument(args[0])
			switch {
			case err != nil:
				return err
			case !isKey && len(args) == 2:
				//diag usage TEXT
				// With two arguments, the first is an engine's key: JSON text, or a file that holds
				// it. Take it from `fingerprint` in `wcache status --json`.
				return usage("explain: %q is no key in JSON", args[0])
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
	f.IntVar(&o.TPSize, "tp", 1, "tensor-parallel `SIZE`")
	f.IntVar(&o.TPRank, "rank", 0, "tensor-parallel `RANK`, from 0")
	f.IntVar(&o.PPSize, "pp", 1, "pipeline-parallel `SIZE`")
	f.IntVar(&o.PPRank, "pp-rank", 0, "pipeline-parallel `RANK`, from 0")
	f.StringVar(&o.DType, "dtype", "", "element `TYPE`, such as bfloat16 (default: as the model says)")
	f.StringVar(&o.Release, "vllm-version", release.Newest().Version, "`VERSION` of the engine")
	f.StringVar(&file, "config", "", "configuration `FILE`, instead of the system's and the user's")
	f.StringArrayVar(&roots, "root", nil, "a model `DIRECTORY`, or a folder of them (may repeat)")
	return c
}

// keyArgument reads a key that is given as JSON text or as a file of it.
func keyArgument(arg string) (fingerprint.Key, bool, error) {
	text := []byte(arg)
	if !strings.HasPrefix(strings.TrimSpace(arg), "{") {
		st, err := os.Stat(arg)
		if err != nil || !st.Mode().IsRegular() {
			return fingerprint.Key{}, false, nil // a directory or a model id
		}
		if st.Size() > 1<<20 {
			//diag usage TEXT
			// The file is larger than any key, so it is another file. Name the file that holds the
			// key.
			return fingerprint.Key{}, false, usage("explain: %q is too large for a key", arg)
		}
		if text, err = os.ReadFile(arg); err != nil {
			return fingerprint.Key{}, false, err
		}
	}
	var key fingerprint.Key
	if err := json.Unmarshal(text, &key); err != nil {
		//diag usage REASON
		// The JSON of the key is not an object with strings, numbers, booleans or null as values.
		// Copy the whole key from `fingerprint` in `wcache status --json`.
		return fingerprint.Key{}, false, usage("explain: the key: %w", err)
	}
	return key, true, nil
}

// explained is the directory to compare a key with.
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

// openModel opens a directory, or that of a model id. A configuration that is broken,
// which is told elsewhere, names no roots, unless it was asked for.
func (a *app) openModel(name, file string, roots []string) (*weights.Dir, error) {
	c, err := configuration(a.env, file, a.gpu)
	if err != nil && file != "" {
		return nil, err
	}
	path, _, err := weights.Locate(modelArgument(name), "", a.env, append(c.Roots, absolute(roots)...))
	if err != nil {
		return nil, err
	}
	return weights.Open(path)
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
	loader, refusal := plan(key, dir)
	if a.json {
		return a.printJSON(map[string]any{"schema": outputSchema, "directory": dir.Path, "key": key.ID(), "fingerprint": key, "loader": loader, "refusal": refusal})
	}
	say(a.out, "directory   %s\nkey         %s\n\n", dir.Path, key.ID())
	printKey(a.out, key, dir)
	if refusal != "" {
		say(a.out, "\nnot loaded by wcache: %s\n", refusal)
		return nil
	}
	say(a.out, "\nloaded by %s\n", loader)
	return nil
}

// plan tells how a key would be loaded, or why not.
func plan(key fingerprint.Key, dir *weights.Dir) (loader, refusal string) {
	target, err := resolve.PlanDir(resolve.Options{Assume: []string{config.AssumeRope}}, key, dir)
	var no *resolve.Refusal
	switch {
	case errors.As(err, &no):
		return "", fmt.Sprintf("%s: %s", no.Field, no.Reason)
	case err != nil:
		return "", err.Error()
	}
	return fmt.Sprintf("%s: %s, %s", target.Loader, target.Reason, size(target.Plan.Table.Bytes())), ""
}

// printKey lists the fields and, for the hashes, what they are made of.
func printKey(out io.Writer, key fingerprint.Key, dir *weights.Dir) {
	var table strings.Builder
	w := tabwriter.NewWriter(&table, 0, 0, 3, ' ', 0)
	say(w, "FIELD\tVALUE\tOF\n")
	for _, f := range key.Fields() {
		say(w, "%s\t%s\t%s\n", f.Name, word(f.Value), ingredient(f.Name, dir))
	}
	_ = w.Flush() // to memory
	for line := range strings.Lines(table.String()) {
		say(out, "%s\n", strings.TrimRight(line, " \n")) // a last cell may be empty
	}
}

func ingredient(field string, dir *weights.Dir) string {
	switch field {
	case "checkpoint":
		var names []string
		for _, f := range dir.Hashed {
			names = append(names, f.Base)
		}
		if len(names) > 3 {
			return fmt.Sprintf("the headers of %s, … (%d files)", strings.Join(names[:2], ", "), len(names))
		}
		return "the headers of " + strings.Join(names, ", ")
	case "rope_parameters_hash":
		text, err := fingerprint.RopePayload(dir.Config)
		if err == nil {
			return text
		}
	case "quant_config_hash":
		text, err := fingerprint.QuantPayload(dir.Config)
		if err == nil {
			return text
		}
	}
	return ""
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
	if loader, refusal := plan(key, dir); refusal != "" {
		say(a.out, "\nnot loaded by wcache: %s\n", refusal)
	} else {
		say(a.out, "\nloaded by %s\n", loader)
	}
	return nil
}

// word writes a value as Python would, which is how an engine's options read.
func word(v any) string {
	switch v := v.(type) {
	case nil:
		return "None"
	case bool:
		if v {
			return "True"
		}
		return "False"
	case fingerprint.Tuple:
		var list []string
		for _, x := range v {
			list = append(list, word(x))
		}
		return "(" + strings.Join(list, ", ") + ")"
	}
	return fmt.Sprint(v)
}
