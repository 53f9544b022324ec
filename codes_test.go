// SPDX-FileCopyrightText: The wcache authors
// SPDX-License-Identifier: MIT

package wcache

import (
	"go/ast"
	"go/parser"
	"go/token"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// Codes are what programs act on: one that was ever released keeps its name, and each is of
// something that is found. If this fails, a script that waits for a code waits in vain. The
// lists of what was ever released are in testdata.
func TestCodes(t *testing.T) {
	word := regexp.MustCompile(`^[a-z0-9]+(-[a-z0-9]+)*$`)
	for _, c := range []struct {
		source, constants, promised string
		users                       []string // sources that find things
	}{
		{"doctor/codes.go", "Code", "doctor/testdata/codes.txt", []string{"doctor/*.go", "cmd/wcache/doctor.go"}},
		{"control/problem.go", "ProblemCode", "control/testdata/codes.txt", []string{"daemon/*.go"}},
	} {
		used := usedNames(t, c.source, c.users)
		var codes []string
		for name, code := range constants(t, c.source, c.constants) {
			switch {
			case !word.MatchString(code):
				t.Errorf("%s: %q is no lower-case words with hyphens", c.source, code)
			case slices.Contains(codes, code):
				t.Errorf("%s: two constants are %s", c.source, code)
			case !used[name]:
				t.Errorf("%s: nothing has the code %s", c.source, code)
			}
			codes = append(codes, code)
		}
		promised := strings.Fields(page(t, c.promised))
		for _, code := range promised {
			if !slices.Contains(codes, code) {
				t.Errorf("%s: the code %s is gone, and programs may wait for it", c.source, code)
			}
		}
		for _, code := range codes {
			if !slices.Contains(promised, code) {
				t.Errorf("%s lacks %s: add it", c.promised, code)
			}
		}
		if len(codes) == 0 {
			t.Errorf("%s has no codes", c.source)
		}
	}
}

// What doctor finds has a code, also where no test brings it about.
func TestFindingsHaveCodes(t *testing.T) {
	coded := make(map[ast.Expr]bool)
	found := 0
	for _, path := range sources(t, "doctor/*.go") {
		set, f := parsed(t, path)
		ast.Inspect(f, func(n ast.Node) bool {
			call, ok := n.(*ast.CallExpr)
			if !ok {
				return true
			}
			if s, ok := call.Fun.(*ast.SelectorExpr); ok && s.Sel.Name == "as" {
				coded[s.X] = true // a call is met before what it is made of
			}
			if name, ok := call.Fun.(*ast.Ident); !ok || name.Name != "result" || len(call.Args) < 2 {
				return true
			}
			if state, ok := call.Args[1].(*ast.Ident); !ok || state.Name == "OK" {
				return true
			}
			found++
			if !coded[call] {
				t.Errorf("%s: it has no code: result(…).as(CODE)", set.Position(call.Pos()))
			}
			return true
		})
	}
	if found == 0 {
		t.Error("no call of result with Warn or Fail")
	}
}

// constants are the typed string constants of a source, by name.
func constants(t *testing.T, path, of string) map[string]string {
	t.Helper()
	values := make(map[string]string)
	_, f := parsed(t, path)
	ast.Inspect(f, func(n ast.Node) bool {
		spec, ok := n.(*ast.ValueSpec)
		if !ok || len(spec.Values) != 1 {
			return true
		}
		name, _ := spec.Type.(*ast.Ident)
		text, _ := spec.Values[0].(*ast.BasicLit)
		if name == nil || name.Name != of || text == nil {
			return true
		}
		value, err := strconv.Unquote(text.Value)
		if err != nil {
			t.Fatal(err)
		}
		values[spec.Names[0].Name] = value
		return true
	})
	return values
}

// usedNames are the identifiers of sources, but for that in which they are declared.
func usedNames(t *testing.T, declared string, patterns []string) map[string]bool {
	t.Helper()
	names := make(map[string]bool)
	for _, pattern := range patterns {
		for _, path := range sources(t, pattern) {
			if path == declared {
				continue
			}
			_, f := parsed(t, path)
			ast.Inspect(f, func(n ast.Node) bool {
				if x, ok := n.(*ast.Ident); ok {
					names[x.Name] = true
				}
				return true
			})
		}
	}
	return names
}

// sources are the files of a pattern that are no tests.
func sources(t *testing.T, pattern string) []string {
	t.Helper()
	files, err := filepath.Glob(pattern)
	if err != nil {
		t.Fatal(err)
	}
	return slices.DeleteFunc(files, func(path string) bool { return strings.HasSuffix(path, "_test.go") })
}

func parsed(t *testing.T, path string) (*token.FileSet, *ast.File) {
	t.Helper()
	set := token.NewFileSet()
	f, err := parser.ParseFile(set, path, nil, parser.SkipObjectResolution)
	if err != nil {
		t.Fatal(err)
	}
	return set, f
}
