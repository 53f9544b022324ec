// SPDX-FileCopyrightText: The wcache authors
// SPDX-License-Identifier: MIT

package generator

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// fileName sorts before the names that users choose, so that users can override it, and is
// the same for each unit, so that it can be masked.
const fileName = "10-engine-paths.conf"

// DropIn is a file for the generator's output directory.
type DropIn struct {
	Path string // "wcache@0.socket.d/10-engine-paths.conf"
	Text string
}

// DropIns are the drop-ins for the target's and the draft's socket unit of each
// GPU, for the instance named by its number and the one named by its uuid.
func DropIns(m Machine) []DropIn {
	var list []DropIn
	for _, gpu := range m.GPUs {
		if gpu.UUID == "" {
			continue
		}
		paths := m.EnginePaths(gpu.UUID)
		for _, instance := range []string{strconv.Itoa(gpu.Index), gpu.UUID} {
			list = append(list, dropIn("wcache", instance, gpu, paths, false), dropIn("wcache-draft", instance, gpu, paths, true))
		}
	}
	return list
}

func dropIn(unit, instance string, gpu GPU, paths []Path, draft bool) DropIn {
	d := DropIn{Path: filepath.Join(unit+"@"+instance+".socket.d", fileName)}
	var b strings.Builder
	fmt.Fprintf(&b, "# Written by wcache-generator for GPU %d at %s, %s:\n", gpu.Index, gpu.Bus, gpu.UUID)
	fmt.Fprintf(&b, "# where vLLM looks by default. To listen on none of these, make\n")
	fmt.Fprintf(&b, "# ~/.config/systemd/user/%s a link to /dev/null.\n", d.Path)
	if instance == gpu.UUID {
		// Both units would listen on the same paths, and the later one would take them from the
		// earlier without an error.
		other := fmt.Sprintf("%s@%d.socket", unit, gpu.Index)
		fmt.Fprintf(&b, "[Unit]\n# The same GPU by its number: one of the two.\nConflicts=%s\nAfter=%s\n", other, other)
	}
	b.WriteString("[Socket]\n")
	for _, p := range paths {
		switch {
		case p.Draft != draft:
		case p.Problem != "":
			fmt.Fprintf(&b, "# vLLM %s; left out: %s\n# %s\n", p.Release, quote(p.Problem), quote(p.Path))
		default:
			// Only "%" has a special meaning here.
			fmt.Fprintf(&b, "# vLLM %s\nListenStream=%s\n", p.Release, strings.ReplaceAll(p.Path, "%", "%%"))
		}
	}
	d.Text = b.String()
	return d
}

// quote keeps a comment on its line.
func quote(s string) string {
	q := strconv.Quote(s)
	return q[1 : len(q)-1]
}

// Write writes the drop-ins below dir, the first of the three directories that a generator
// is called with. If one can't be written, it still writes the others.
func Write(dir string, list []DropIn) error {
	var errs []error
	for _, d := range list {
		path := filepath.Join(dir, d.Path)
		err := os.MkdirAll(filepath.Dir(path), 0o755)
		if err == nil {
			err = os.WriteFile(path, []byte(d.Text), 0o644)
		}
		if err != nil {
			errs = append(errs, fmt.Errorf("write drop-in: %w", err))
		}
	}
	return errors.Join(errs...)
}
