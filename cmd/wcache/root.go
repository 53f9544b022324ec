// SPDX-FileCopyrightText: The wcache authors
// SPDX-License-Identifier: MIT

package main

import (
	"fmt"
	"regexp"
	"strings"
	"unicode"

	"github.com/spf13/cobra"
)

// root is the command line: the options that every command has, and the commands.
func (a *app) root() *cobra.Command {
	root := &cobra.Command{
		Use:           "wcache",
		Short:         "keep a model's weights in memory between runs of an inference engine",
		Version:       ownVersion(),
		SilenceErrors: true,
		SilenceUsage:  true,
		Args:          a.noCommand,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return cmd.Help()
		},
		PersistentPreRunE: func(cmd *cobra.Command, _ []string) error {
			if a.socket != "" || cmd.Hidden || cmd.Name() == "serve" { // which ask no instance
				return nil
			}
			return checkInstance("--gpu", a.gpu)
		},
		SuggestionsMinimumDistance: 2,
	}
	root.SetOut(a.out)
	root.SetErr(a.err)
	root.SetVersionTemplate("wcache {{.Version}}\n")
	root.CompletionOptions.DisableDefaultCmd = true
	root.SetFlagErrorFunc(func(_ *cobra.Command, err error) error {
		text, _, _ := strings.Cut(err.Error(), ": strconv.") // what Go calls it helps nobody
		return usage("%s", text)
	})
	f := root.PersistentFlags()
	f.BoolVar(&a.json, "json", false, "answer in JSON, errors too")
	f.BoolVarP(&a.quiet, "quiet", "q", false, "no progress, hints or advice")
	f.StringVar(&a.gpu, "gpu", a.envOr("WCACHE_GPU", "0"), "the `INSTANCE`: nvidia-smi's number of a GPU, its uuid, or host ($WCACHE_GPU)")
	f.StringVar(&a.socket, "socket", a.env("WCACHE_SOCKET"), "`PATH` of an engine's socket of the instance, instead of --gpu ($WCACHE_SOCKET)")
	f.BoolP("help", "h", false, "show this") // or cobra makes one for each command
	root.Flags().Bool("version", false, "show the version of this program")
	// Only a flag of that name could not be found, and it is there.
	_ = root.RegisterFlagCompletionFunc("gpu", a.completeInstances)
	root.AddCommand(a.serve(), a.load(), a.health(), a.probe(), a.status(), a.warm(), a.evict(), a.verify(), a.explain(), a.doctor(), a.versionCommand(), a.completion())
	root.InitDefaultHelpCmd()
	for _, c := range root.Commands() {
		if c.Name() == "help" {
			c.Short = "show the usage of a command"
		}
	}
	return root
}

// describeFlags takes the quotes away by which usages name a value: completions
// show them as they are.
func describeFlags(c *cobra.Command) {
	flags := c.LocalFlags()
	for _, m := range regexp.MustCompile(`--([a-z-]+)`).FindAllStringSubmatch(flags.FlagUsages(), -1) {
		if f := flags.Lookup(m[1]); f != nil {
			f.Usage = strings.ReplaceAll(f.Usage, "`", "")
		}
	}
	for _, sub := range c.Commands() {
		describeFlags(sub)
	}
}

// checkRanks refuses what no engine can be.
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

// noCommand refuses a word that is no command.
func (a *app) noCommand(root *cobra.Command, args []string) error {
	if len(args) == 0 {
		return nil
	}
	//diag usage NAME
	// The first word of the command line is not a subcommand. `wcache help` lists them.
	err := &hinted{err: fmt.Errorf("there is no command %q", args[0]), exit: exitUsage}
	if like := root.SuggestionsFor(args[0]); len(like) > 0 {
		err.hint = fmt.Sprintf("wcache %s? wcache --help lists all", strings.Join(like, ", or wcache "))
	}
	return err
}

// arguments refuses fewer or more than a command takes; most is -1 for any number.
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

// checkInstance refuses what can't be the name of an instance, which is a part of
// the names of units and files.
func checkInstance(option, name string) error {
	strange := func(r rune) bool { return r == '/' || unicode.IsSpace(r) || unicode.IsControl(r) }
	if strings.Trim(name, ".") == "" || strings.ContainsFunc(name, strange) {
		//diag usage OPTION NAME
		// An instance is named by the number or the uuid of a GPU, or `host`; the name becomes part
		// of file names. `nvidia-smi -L` lists the GPUs.
		return usage("%s: %q is no name of an instance, such as 0, GPU-3f8a1c2d or host", option, name)
	}
	return nil
}
