// SPDX-FileCopyrightText: The wcache authors
// SPDX-License-Identifier: MIT

package main

import (
	"fmt"
	"regexp"
	"strings"

	"github.com/spf13/cobra"
)

// root is the command line: the commands, and the options that all of them have.
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
			if a.socket != "" || cmd.Hidden || cmd.Name() == "serve" { // these don't ask an instance
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
		text, _, _ := strings.Cut(err.Error(), ": strconv.") // the names of Go's functions don't help users
		return usage("%s", text)
	})
	f := root.PersistentFlags()
	f.BoolVar(&a.json, "json", false, "answer in JSON, errors too")
	f.BoolVarP(&a.quiet, "quiet", "q", false, "no progress, hints or advice")
	f.StringVar(&a.gpu, "gpu", a.envOr("WCACHE_GPU", "0"), "the `INSTANCE`: nvidia-smi's number of a GPU, its uuid, or host ($WCACHE_GPU)")
	f.StringVar(&a.socket, "socket", a.env("WCACHE_SOCKET"), "`PATH` of an engine's socket of the instance, instead of --gpu ($WCACHE_SOCKET)")
	f.BoolP("help", "h", false, "show this") // else cobra makes one for each command
	root.Flags().Bool("version", false, "show the version of this program")
	// The only possible error is an unknown flag, and this flag exists.
	_ = root.RegisterFlagCompletionFunc("gpu", a.completeInstances)
	root.AddCommand(a.serve(), a.load(), a.probe(), a.status(), a.warm(), a.evict(), a.verify(), a.explain(), a.doctor(), a.versionCommand(), a.completion())
	root.InitDefaultHelpCmd()
	for _, c := range root.Commands() {
		if c.Name() == "help" {
			c.Short = "show the usage of a command"
		}
	}
	return root
}

// describeFlags removes the quotes around the names of values in usages, because
// completions would show them.
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

// noCommand refuses a word that isn't a command.
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
