// SPDX-FileCopyrightText: The wcache authors
// SPDX-License-Identifier: MIT

package wcache

import (
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// markdown are the pages that people read.
func markdown(t *testing.T) []string {
	t.Helper()
	var pages []string
	for _, pattern := range []string{"*.md", "docs/*.md"} {
		found, err := filepath.Glob(pattern)
		if err != nil {
			t.Fatal(err)
		}
		pages = append(pages, found...)
	}
	return pages
}

func page(t *testing.T, path string) string {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

var (
	link    = regexp.MustCompile(`\]\(([^)#\s]*)(?:#([^)\s]*))?\)`)
	heading = regexp.MustCompile(`(?m)^#+ (.*)$`)
	// quoted is a file or folder of this repository that a text names.
	quoted = regexp.MustCompile("`((?:\\.ci|[a-z]+)/[\\w@./-]*\\w)`")
)

// anchors are the names that a page's headings have on GitHub.
func anchors(text string) []string {
	var names []string
	for _, m := range heading.FindAllStringSubmatch(text, -1) {
		name := regexp.MustCompile(`[^\w\- ]`).ReplaceAllString(strings.ToLower(m[1]), "")
		names = append(names, strings.ReplaceAll(name, " ", "-"))
	}
	return names
}

// What a page leads to is there: files, headings of other pages, and what is named
// as a path whose first folder is one of this repository.
func TestLinks(t *testing.T) {
	for _, from := range markdown(t) {
		text := page(t, from)
		for _, m := range link.FindAllStringSubmatch(text, -1) {
			if strings.Contains(m[1], "://") {
				continue
			}
			to := from
			if m[1] != "" {
				to = filepath.Join(filepath.Dir(from), m[1])
			}
			if _, err := os.Stat(to); err != nil {
				t.Errorf("%s: %s leads nowhere", from, m[0])
			} else if m[2] != "" && !slices.Contains(anchors(page(t, to)), m[2]) {
				t.Errorf("%s: %s has no such heading", from, m[0])
			}
		}
		for _, m := range quoted.FindAllStringSubmatch(text, -1) {
			first, _, _ := strings.Cut(m[1], "/")
			if first == "bin" || first == "dist" { // made by make
				continue
			}
			if _, err := os.Stat(first); err != nil {
				continue // no folder of this repository
			}
			if _, err := os.Stat(m[1]); err != nil {
				t.Errorf("%s: there is no %s", from, m[1])
			}
		}
	}
}

// The table of docs/design.md has every package that imports are held to.
func TestTableOfPackages(t *testing.T) {
	_, table, _ := strings.Cut(page(t, "docs/design.md"), "\n| --- | --- | --- |\n")
	table, _, _ = strings.Cut(table, "\n\n")
	var rows []string
	for line := range strings.Lines(table) {
		rows = append(rows, strings.Split(strings.Trim(strings.Split(line, "|")[1], " "), ", ")...)
	}
	for _, folder := range slices.Sorted(maps.Keys(allowed)) {
		if !slices.Contains(rows, folder) && !strings.HasPrefix(folder, "cmd/") {
			t.Errorf("docs/design.md has no row for %s", folder)
		}
	}
	for _, row := range rows {
		if _, err := os.Stat(row); err != nil {
			t.Errorf("docs/design.md has a row for %s, which isn't there", row)
		}
	}
}

// step is a function in HACKING's map, in a file of daemon unless the path says else.
var step = regexp.MustCompile("`([a-z/]+\\.go): (\\w+)`((?:, `\\w+`)*)")

// Each function that the map names is in the file that it names: people follow it.
func TestMap(t *testing.T) {
	_, text, _ := strings.Cut(page(t, "HACKING.md"), "## Where a request goes\n")
	text, _, _ = strings.Cut(text, "\n## ")
	steps := step.FindAllStringSubmatch(strings.ReplaceAll(text, "\n   ", " "), -1)
	if len(steps) < 20 {
		t.Fatalf("%d steps", len(steps))
	}
	for _, m := range steps {
		path := m[1]
		if !strings.Contains(path, "/") {
			path = "daemon/" + path
		}
		source := page(t, path)
		for _, name := range append([]string{m[2]}, strings.FieldsFunc(m[3], func(r rune) bool { return strings.ContainsRune("`, ", r) })...) {
			if !regexp.MustCompile(`(?m)^func (\([^)]*\) )?` + name + `\b`).MatchString(source) {
				t.Errorf("%s has no %s", path, name)
			}
		}
	}
}
