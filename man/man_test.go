// SPDX-FileCopyrightText: The wcache authors
// SPDX-License-Identifier: MIT

// Package man holds the manual pages, written in mdoc(7), to the program: a key,
// a command, an option or a message that isn't in both is an error here.
// cmd/wcache does the same for commands and options.
package man

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/wcache/wcache/config"
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

// TestDiagnostics looks for each message of the DIAGNOSTICS in the sources, and
// for a test that expects it.
func TestDiagnostics(t *testing.T) {
	said, expected := literals(t)
	for _, page := range pages {
		list := diagnostics(read(t, page))
		if len(list) == 0 {
			t.Errorf("%s has no diagnostics", page)
		}
		for i, d := range list {
			if slices.Contains(list[:i], d) {
				t.Errorf("%s has twice: %s", page, d)
			}
			from := slices.DeleteFunc(slices.Clone(said), func(m message) bool { return !m.is(d) })
			switch {
			case len(from) == 0:
				t.Errorf("%s: no source says: %s", page, d)
			case slices.Contains(unreached, d):
			case !slices.ContainsFunc(from, func(m message) bool { return m.in(expected) }):
				t.Errorf("%s: no test expects: %s", page, d)
			}
		}
	}
}

// TestComplete looks for what people are told in the pages: refusals, warnings of
// the log, faults that doctor finds, and mistakes of the command line.
func TestComplete(t *testing.T) {
	var heads []string
	for _, page := range pages {
		heads = append(heads, diagnostics(read(t, page))...)
	}
	for _, place := range told(t) {
		m := newMessage(place.format)
		if m != nil && !slices.ContainsFunc(heads, m.is) && !slices.Contains(unsaid, place.format) {
			t.Errorf("%s: not in the pages: %s", place.at, place.format)
		}
	}
}

// unsaid are formats of texts that nobody is told, as something before them tells
// them better.
var unsaid = []string{
	"%d is not a number of ranks", // keys are looked at before
	"a frequency of %v",
}

// unreached are messages that no test brings about: the first needs an eviction in
// the moment between a load and its answer, the second an engine of a version that
// isn't known and whose layouts are, the third 4096 watches, the fourth a
// machine where nobody can write to /tmp, and the last a device that root can't
// open.
var unreached = []string{
	"warm MODEL: it was evicted as soon as it was loaded",
	"which form of handle does vLLM VERSION read? REASON",
	"watch is dropped",
	"no directory for temporary files can be written: set TMPDIR",
	"/dev/NODE can't be opened: REASON",
}

// diagnostics are the heads of a page's diagnostics, as they are shown.
func diagnostics(page string) []string {
	_, text, _ := strings.Cut(page, "\n.Sh DIAGNOSTICS\n")
	text, _, _ = strings.Cut(text, "\n.Sh ")
	var list []string
	for line := range strings.Lines(text) {
		if head, ok := strings.CutPrefix(line, ".It "); ok {
			list = append(list, plain(head))
		}
	}
	return list
}

// message is a string of a source that may be a message, by its fixed parts: what
// is between two of them differs each time.
type message []string

var verb = regexp.MustCompile(`%[-+# 0-9.]*[a-zA-Z]`)

// How many bytes of fixed text make a message, and how many in a row tell it from
// others.
const (
	enough  = 6
	telling = 13
)

// newMessage is nil for a text that would match nearly everything.
func newMessage(format string) message {
	if !strings.Contains(format, " ") {
		return nil
	}
	var m message
	fixed := 0
	for _, part := range verb.Split(strings.ReplaceAll(format, "%%", "\x00"), -1) {
		part = strings.ReplaceAll(part, "\x00", "%")
		fixed += len(strings.TrimSpace(part))
		m = append(m, part)
	}
	if fixed < enough {
		return nil
	}
	return m
}

// is reports whether a text is the message.
func (m message) is(text string) bool {
	last := len(m) - 1
	rest, ok := strings.CutPrefix(text, m[0])
	if !ok || last == 0 {
		return text == m[0]
	}
	for _, part := range m[1:last] {
		if rest == "" {
			return false
		}
		i := strings.Index(rest[1:], part) // something is before it
		if i < 0 {
			return false
		}
		rest = rest[1+i+len(part):]
	}
	return len(rest) > len(m[last]) && strings.HasSuffix(rest, m[last])
}

// in reports whether one of the texts, which are those of tests, has the message
// or a telling part of it.
func (m message) in(texts []string) bool {
	var quoted []string
	for _, part := range m {
		quoted = append(quoted, regexp.QuoteMeta(part))
	}
	inside := regexp.MustCompile(strings.Join(quoted, `(?s:.+?)`))
	return slices.ContainsFunc(texts, func(text string) bool {
		return slices.ContainsFunc(m, func(part string) bool {
			return len(strings.TrimSpace(part)) >= telling && strings.Contains(text, part) ||
				len(text) >= telling && strings.Contains(text, " ") && strings.Contains(part, text)
		})
	}) || inside.MatchString(strings.Join(texts, "\n"))
}

// literals are the strings of the program's sources that may be messages, and
// those of its tests and scripts.
func literals(t *testing.T) (said []message, expected []string) {
	t.Helper()
	err := filepath.WalkDir("..", func(path string, e fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		name := e.Name()
		switch {
		case e.IsDir() && (name == ".git" || name == "man" || name == "tools" || name == "bin" || name == "dist" || path == "../testdata"):
			return filepath.SkipDir
		case filepath.Ext(name) == ".txtar" || filepath.Dir(path) == "../docs/screens":
			if b, err := os.ReadFile(path); err == nil && e.Type().IsRegular() {
				expected = append(expected, strings.ReplaceAll(string(b), "''", "'")) // as scripts quote
			}
		case strings.HasSuffix(name, "_test.go"):
			list, err := literalsOf(path)
			if err != nil {
				return err
			}
			expected = append(expected, list...)
		case strings.HasSuffix(name, ".go"):
			list, err := literalsOf(path)
			if err != nil {
				return err
			}
			for _, s := range list {
				if m := newMessage(s); m != nil {
					said = append(said, m)
				}
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return said, expected
}

// literalsOf are the strings of a source, those that are added up as one.
func literalsOf(path string) (list []string, err error) {
	f, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.SkipObjectResolution)
	if err != nil {
		return nil, err
	}
	ast.Inspect(f, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.ImportSpec:
			return false
		case ast.Expr:
			if s, ok := text(n); ok {
				list = append(list, s)
				_, sum := n.(*ast.BinaryExpr)
				return sum // its parts, too
			}
		}
		return true
	})
	return list, nil
}

// text is the value of a string, in which what isn't constant is a verb.
func text(e ast.Expr) (string, bool) {
	switch e := e.(type) {
	case *ast.BasicLit:
		if e.Kind == token.STRING {
			s, err := strconv.Unquote(e.Value)
			return s, err == nil
		}
	case *ast.BinaryExpr:
		if e.Op == token.ADD {
			x, isX := text(e.X)
			y, isY := text(e.Y)
			switch {
			case isX && isY:
				return x + y, true
			case isX:
				return x + "%v", true
			case isY:
				return "%v" + y, true
			}
		}
	}
	return "", false
}

// place is where a format is, in the sources.
type place struct{ at, format string }

// told are the formats of what people are told.
func told(t *testing.T) (list []place) {
	t.Helper()
	for _, dir := range []string{"cmd/wcache", "daemon", "daemon/sockets", "device/place", "doctor", "explain", "layout", "resolve", "weights"} {
		files, err := filepath.Glob(filepath.Join("..", dir, "*.go"))
		if err != nil {
			t.Fatal(err)
		}
		for _, path := range files {
			if strings.HasSuffix(path, "_test.go") {
				continue
			}
			set := token.NewFileSet()
			f, err := parser.ParseFile(set, path, nil, parser.SkipObjectResolution)
			if err != nil {
				t.Fatal(err)
			}
			ast.Inspect(f, func(n ast.Node) bool {
				if e := words(n); e != nil {
					if s, ok := text(e); ok {
						list = append(list, place{set.Position(e.Pos()).String(), s})
					}
				}
				return true
			})
		}
	}
	return list
}

// words is the format that a node tells people, nil if it tells none.
func words(n ast.Node) ast.Expr {
	argument := func(c *ast.CallExpr, i int) ast.Expr {
		if i < len(c.Args) {
			return c.Args[i]
		}
		return nil
	}
	switch n := n.(type) {
	case *ast.CallExpr:
		switch name := lastName(n.Fun); {
		case name == "refuse":
			return argument(n, 1)
		case name == "usage":
			return argument(n, 0)
		case name == "result" && slices.Contains([]string{"Fail", "Warn"}, lastName(argument(n, 1))):
			return argument(n, 3)
		case name == "Warn" || name == "Error":
			if s, ok := n.Fun.(*ast.SelectorExpr); ok && lastName(s.X) == "log" {
				return argument(n, 0)
			}
		}
	case *ast.CompositeLit:
		if !slices.Contains([]string{"Refusal", "Unusable", "Unreadable", "Unfinished", "NotFound"}, lastName(n.Type)) {
			return nil
		}
		for _, e := range n.Elts {
			if f, ok := e.(*ast.KeyValueExpr); ok && lastName(f.Key) == "Reason" {
				if c, ok := f.Value.(*ast.CallExpr); ok && lastName(c.Fun) == "Sprintf" {
					return argument(c, 0)
				}
				return f.Value
			}
		}
	}
	return nil
}

// lastName is the name of a function, a type or a field, without its package.
func lastName(e ast.Expr) string {
	switch e := e.(type) {
	case *ast.Ident:
		return e.Name
	case *ast.SelectorExpr:
		return e.Sel.Name
	}
	return ""
}
