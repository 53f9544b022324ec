// SPDX-FileCopyrightText: The wcache authors
// SPDX-License-Identifier: MIT

// Command diagnostics writes the DIAGNOSTICS of the manual's pages from the //diag
// comments of the sources. It is run in the root of the repository, with the pages as
// arguments.
package main

import (
	"fmt"
	"os"

	"github.com/wcache/wcache/tools/manual/messages"
)

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "diagnostics:", err)
		os.Exit(1)
	}
}

func run(pages []string) error {
	filled, err := messages.Manual(".", pages)
	if err != nil {
		return err
	}
	for path, text := range filled {
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			return err
		}
	}
	return nil
}
