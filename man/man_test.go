// SPDX-FileCopyrightText: The wcache authors
// SPDX-License-Identifier: MIT

// Package man holds the manual pages, written in mdoc(7), to the program: a key that
// isn't in both is an error here, and a message without a meaning. cmd/wcache does the
// same for commands and options.
package man

import (
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"regexp"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/wcache/wcache/config"
	"github.com/wcache/wcache/tools/manual/messages"
)

var pages = []string{"wcache.1", "wcache.toml.5", "wcache@.service.8"}

func read(t *testing.T, path string) string {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// TestLint is mandoc's, where it is installed.
func TestLint(t *testing.T) {
	mandoc, err := exec.LookPath("mandoc")
	if err != nil {
		t.Skip("mandoc is not installed")
	}
	out, err := exec.Command(mandoc, append([]string{"-T", "lint", "-W", "warning"}, pages...)...).CombinedOutput()
	if err != nil || len(out) > 0 {
		t.Errorf("%v\n%s", err, out)
	}
}

// TestKeys compares the items of wcache.toml(5) with the keys of a configuration,
// and their values with the defaults.
func TestKeys(t *testing.T) {
	item := regexp.MustCompile(`(?m)^\.It Ic (\w+) No = (.+)$`)
	documented := make(map[string]string)
	file := ""
	for _, m := range item.FindAllStringSubmatch(read(t, "wcache.toml.5"), -1) {
		documented[m[1]] = m[2]
		file += m[1] + " = " + plain(m[2]) + "\n"
	}
	defaults := config.Default()
	for f := range reflect.ValueOf(defaults).Fields() {
		key := f.Tag.Get("toml")
		if _, ok := documented[key]; !ok {
			t.Errorf("%s is not in the page, as: .It Ic %s No = ITS DEFAULT", key, key)
		}
	}
	got, err := load(t, file)
	if err != nil {
		t.Fatalf("%v in\n%s", err, file)
	}
	if diff := cmp.Diff(defaults, got, cmpopts.EquateEmpty()); diff != "" {
		t.Errorf("defaults (-code +page):\n%s", diff)
	}
}

func load(t *testing.T, text string) (config.Config, error) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "wcache.toml")
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return config.Load([]string{path}, "0", func(string) string { return "/home/user" })
}

// plain is a line of mdoc as it is shown.
func plain(line string) string {
	return strings.NewReplacer(`\(dq`, `"`, `\&`, "", `\e`, `\`).Replace(strings.TrimSpace(line))
}

// TestKeysExamples has the page's examples read.
func TestKeysExamples(t *testing.T) {
	_, examples, _ := strings.Cut(read(t, "wcache.toml.5"), "\n.Sh EXAMPLES\n")
	examples, _, _ = strings.Cut(examples, "\n.Sh ")
	blocks := strings.Split(examples, "\n.Bd -literal")
	for _, block := range blocks[1:] {
		_, text, _ := strings.Cut(block, "\n")
		text, _, _ = strings.Cut(text, "\n.Ed")
		if _, err := load(t, text); err != nil {
			t.Errorf("%v in\n%s", err, text)
		}
	}
	if len(blocks) < 2 {
		t.Error("the page has no examples")
	}
}

// TestMessages is for a page whose DIAGNOSTICS are not what the sources say, and for a
// message that people are told without a word of what it means.
func TestMessages(t *testing.T) {
	var paths []string
	for _, page := range pages {
		paths = append(paths, "man/"+page)
	}
	filled, err := messages.Manual("..", paths)
	if err != nil {
		t.Fatalf("%v\n(see the package tools/manual/messages)", err)
	}
	for _, page := range pages {
		if diff := cmp.Diff(filled["man/"+page], read(t, page)); diff != "" {
			t.Errorf("%s is not current, run make manual (-sources +page):\n%s", page, diff)
		}
	}
}
