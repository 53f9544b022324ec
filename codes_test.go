// SPDX-FileCopyrightText: The wcache authors
// SPDX-License-Identifier: MIT

package wcache

import (
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// code is a constant that programs may act on.
var code = regexp.MustCompile(`(?m)^\t(\w+) (?:Problem)?Code = "([a-z0-9-]+)"$`)

// Codes are promised: one that was ever there stays, and each is used. The lists of what
// was ever there are in testdata.
func TestCodes(t *testing.T) {
	for _, c := range []struct {
		source, promised string
		users            string // where a constant is used
		prefix           string
	}{
		{"doctor/codes.go", "doctor/testdata/codes.txt", "doctor/*.go", ".as("},
		{"control/problem.go", "control/testdata/codes.txt", "daemon/*.go", "control."},
	} {
		var users string
		files, err := filepath.Glob(c.users)
		if err != nil {
			t.Fatal(err)
		}
		for _, path := range files {
			if !strings.HasSuffix(path, "_test.go") {
				users += page(t, path)
			}
		}
		var codes []string
		for _, m := range code.FindAllStringSubmatch(page(t, c.source), -1) {
			codes = append(codes, m[2])
			if !regexp.MustCompile(regexp.QuoteMeta(c.prefix) + m[1] + `\b`).MatchString(users) {
				t.Errorf("%s: nothing has the code %s", c.source, m[2])
			}
		}
		promised := strings.Fields(page(t, c.promised))
		for _, name := range promised {
			if !slices.Contains(codes, name) {
				t.Errorf("%s: the code %s is gone, and programs may wait for it", c.source, name)
			}
		}
		for _, name := range codes {
			if !slices.Contains(promised, name) {
				t.Errorf("%s lacks %s: add it", c.promised, name)
			}
		}
		if len(codes) == 0 {
			t.Errorf("%s has no codes", c.source)
		}
	}
}
