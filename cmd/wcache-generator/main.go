// SPDX-FileCopyrightText: The wcache authors
// SPDX-License-Identifier: MIT

// Command wcache-generator is a systemd user generator: it makes the sockets of
// wcache listen where vLLM looks by default, see package generator. Without
// arguments it prints what it would write.
package main

import (
	"fmt"
	"os"

	"github.com/wcache/wcache/systemd/generator"
)

// main always ends with status 0: a user's session must not start degraded because of a
// cache.
func main() {
	root := os.Getenv("WCACHE_ROOT") // holds another machine's proc, for tests
	if root == "" {
		root = "/"
	}
	m := generator.Read(root, os.Getuid(), os.Getenv)
	for _, note := range m.Notes {
		fmt.Fprintln(os.Stderr, "wcache-generator:", note)
	}
	list := generator.DropIns(m)
	if len(os.Args) < 2 {
		for _, d := range list {
			fmt.Printf("# %s\n%s\n", d.Path, d.Text)
		}
		return
	}
	if err := generator.Write(os.Args[1], list); err != nil {
		fmt.Fprintln(os.Stderr, "wcache-generator:", err)
	}
}
