// SPDX-FileCopyrightText: The wcache authors
// SPDX-License-Identifier: MIT

package main

import (
	"strings"
	"unicode"

	"github.com/spf13/cobra"
)

// rankFlags are the options that say which rank of a model is meant.
func rankFlags(c *cobra.Command, tp, rank, pp, ppRank *int) {
	f := c.Flags()
	f.IntVar(tp, "tp", 1, "tensor-parallel `SIZE`")
	f.IntVar(rank, "rank", 0, "tensor-parallel `RANK`, from 0")
	f.IntVar(pp, "pp", 1, "pipeline-parallel `SIZE`")
	f.IntVar(ppRank, "pp-rank", 0, "pipeline-parallel `RANK`, from 0")
}

// checkRanks refuses impossible ranks.
func checkRanks(tp, rank, pp, ppRank int) error {
	for _, x := range []struct {
		size, rank         int
		sizeFlag, rankFlag string
	}{{tp, rank, "--tp", "--rank"}, {pp, ppRank, "--pp", "--pp-rank"}} {
		switch {
		case x.size < 1:
			//diag usage OPTION NUMBER
			// The option is a number of ranks. Give the tensor-parallel or pipeline-parallel size
			// that the engine is started with.
			return usage("%s is %d, and has to be at least 1", x.sizeFlag, x.size)
		case x.rank < 0 || x.rank >= x.size:
			//diag usage OPTION NUMBER OPTION NUMBER
			// Ranks count from 0 to the size less one. Correct the rank or the size.
			return usage("%s is %d, and with %s %d has to be less, from 0", x.rankFlag, x.rank, x.sizeFlag, x.size)
		}
	}
	return nil
}

// arguments refuses fewer or more arguments than a command takes; most is -1 for no limit.
func arguments(least, most int) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		switch n := len(args); {
		case most == 0 && n > 0:
			//diag usage COMMAND TEXT
			// The subcommand works with options only. Remove the extra words from the command line.
			return usage("%s takes no argument: %q", cmd.Name(), args[0])
		case n < least:
			//diag usage COMMAND USAGE
			// The argument that the subcommand needs is missing. Give it in the form that the
			// message shows; in a script, look for a variable that is not set.
			return usage("%s takes an argument: %s", cmd.Name(), cmd.Use)
		case most >= 0 && n > most:
			//diag usage COMMAND TEXT
			// The subcommand takes one argument; only `wcache warm` takes several models. Remove
			// the extra words, or put a name with spaces in quotation marks.
			return usage("%s takes no further argument: %q", cmd.Name(), args[most])
		}
		return nil
	}
}

// checkInstance refuses a text that can't be the name of an instance, which becomes part
// of the names of units and files.
func checkInstance(option, name string) error {
	strange := func(r rune) bool { return r == '/' || unicode.IsSpace(r) || unicode.IsControl(r) }
	if strings.Trim(name, ".") == "" || strings.ContainsFunc(name, strange) {
		//diag usage OPTION NAME
		// An instance is named by the number or the uuid of a GPU, or `host`; the name becomes part
		// of file names. `nvidia-smi -L` lists the GPUs.
		return usage("%s: %q is not the name of an instance, such as 0, GPU-3f8a1c2d or host", option, name)
	}
	return nil
}
