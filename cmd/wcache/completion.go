// SPDX-FileCopyrightText: The wcache authors
// SPDX-License-Identifier: MIT

package main

import (
	"slices"
	"strings"

	"github.com/spf13/cobra"
)

// completion writes a shell's completions, which packages install. While the user types,
// they call this program, which asks the control socket and so starts nothing.
func (a *app) completion() *cobra.Command {
	shells := []string{"bash", "zsh", "fish"}
	return &cobra.Command{
		Use:       "completion bash | zsh | fish",
		Short:     "write a shell's completions",
		Long:      "Write the completions of a shell to standard output. Packages install them; else:\n\n  source <(wcache completion bash)",
		ValidArgs: shells,
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) != 1 || !slices.Contains(shells, args[0]) {
				//diag usage LIST
				// `wcache completion` writes the completion of one shell. Give one of the names
				// that the message lists.
				return usage("completion: name one shell: %s", strings.Join(shells, ", "))
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			root := cmd.Root()
			switch args[0] {
			case "bash":
				return root.GenBashCompletionV2(a.out, true)
			case "zsh":
				return root.GenZshCompletion(a.out)
			default:
				return root.GenFishCompletion(a.out, true)
			}
		},
	}
}
