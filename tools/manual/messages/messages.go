// SPDX-FileCopyrightText: The wcache authors
// SPDX-License-Identifier: MIT

// Package messages makes the DIAGNOSTICS of the manual from the comments that stand
// beside the messages in the sources:
//
//	//diag reaching NAME SOCKET
//	// Neither a daemon nor the service manager has that socket. Enable the socket unit
//	// of the instance, or start a daemon with `--listen` on it.
//	return fmt.Errorf("cannot reach %s: no process listens on %s", name, socket)
//
// The first line names a section of the manual and gives a word in capitals for each
// verb of the message, in their order; a word may also be a text in quotation marks,
// where a verb stands for one that is always the same. What follows, up to the end of
// the comment or its next //diag, says what the message means and what to do. It
// is of the first message behind the comment, of several in one line of the one that
// people are told. Above a declaration a free line follows, as gofmt has its own form
// for what is right above one.
//
// A comment //diag - says why nobody can see the message.
//
// Codes for programs, constants of a type whose name ends with Code, are listed by their
// doc comments, in sections codes-PACKAGE.
package messages

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
)

// Entry is a message of the manual.
type Entry struct {
	At      string // its comment: file:line, the file below the root
	Section string // the name in a mark of a page
	Head    string // the message, with words in capitals for what differs each time
	Text    string // what it means and what to do; `code`, and pages as wcache.toml(5)
}

// Read collects the entries of the Go sources below root, tests and tools aside, and
// what is wrong with them, as sentences with a place.
func Read(root string) (entries []Entry, faults []string, err error) {
	var r reader
	err = filepath.WalkDir(root, func(path string, e fs.DirEntry, err error) error {
		name := e.Name()
		switch {
		case err != nil:
			return err
		case e.IsDir() && path != root && (strings.HasPrefix(name, ".") || slices.Contains(aside, name)):
			return filepath.SkipDir
		case e.IsDir() || !strings.HasSuffix(name, ".go") || strings.HasSuffix(name, "_test.go"):
			return nil
		}
		r.set = token.NewFileSet()
		f, err := parser.ParseFile(r.set, path, nil, parser.ParseComments|parser.SkipObjectResolution)
		if err != nil {
			return err
		}
		r.name, err = filepath.Rel(root, path)
		if err != nil {
			return err
		}
		r.file(f)
		return nil
	})
	if err != nil {
		return nil, nil, err
	}
	for _, m := range r.bare {
		if !r.explained[m.format] {
			r.fault("%s: no //diag comment for: %s", m.at, m.format)
		}
	}
	return r.entries, append(r.faults, twice(r.entries)...), nil
}

// aside are folders of programs that operators don't have.
var aside = []string{"testdata", "tools", "bench", "churn", "demo", "devicetest", "schematest", "hungfs"}

// reader is what was read so far, and the file that is being read.
type reader struct {
	set       *token.FileSet
	name      string
	entries   []Entry
	explained map[string]bool // formats that have a comment, somewhere
	bare      []bareMessage
	faults    []string
}

// bareMessage is what people are told without a comment of its own.
type bareMessage struct{ at, format string }

func (r *reader) fault(format string, a ...any) {
	r.faults = append(r.faults, fmt.Sprintf(format, a...))
}

func (r *reader) at(p token.Pos) string {
	return fmt.Sprintf("%s:%d", r.name, r.set.Position(p).Line)
}

func (r *reader) file(f *ast.File) {
	if r.explained == nil {
		r.explained = make(map[string]bool)
	}
	r.codes(f)
	list := messagesOf(f)
	of := make(map[token.Pos]bool) // messages that have a comment
	for _, group := range f.Comments {
		for _, line := range group.List {
			if strings.HasPrefix(line.Text, "// diag ") {
				r.fault("%s: a space before diag, as gofmt writes it in a comment right above a declaration: leave a line free there", r.at(line.Pos()))
			}
		}
		comments := parse(group)
		if len(comments) == 0 {
			continue
		}
		m, ok := r.behind(list, group.End())
		switch {
		case !ok:
			r.fault("%s: no message is behind //diag", r.at(group.Pos()))
			continue
		case of[m.at]:
			r.fault("%s: the message of //diag has another one: %s", r.at(group.Pos()), m.format)
			continue
		}
		of[m.at] = true
		r.explained[m.format] = true
		for _, c := range comments {
			r.comment(c, m)
		}
	}
	for _, m := range list {
		if m.told && !of[m.at] {
			r.bare = append(r.bare, bareMessage{r.at(m.at), m.format})
		}
	}
}

// codes are constants of a type whose name ends with Code: their values, and their doc
// comments as what they mean, in the section codes-PACKAGE.
func (r *reader) codes(f *ast.File) {
	for _, d := range f.Decls {
		group, ok := d.(*ast.GenDecl)
		if !ok || group.Tok != token.CONST {
			continue
		}
		for _, s := range group.Specs {
			c := s.(*ast.ValueSpec) // what a group of constants has
			of, ok := c.Type.(*ast.Ident)
			if !ok || !strings.HasSuffix(of.Name, "Code") || len(c.Values) != 1 {
				continue
			}
			value, _ := constant(c.Values[0])
			text := strings.Join(strings.Fields(c.Doc.Text()), " ")
			if !strings.HasSuffix(text, ".") {
				r.fault("%s: no sentence that says what the code means: %s", r.at(c.Pos()), value)
				continue
			}
			r.entries = append(r.entries, Entry{r.at(c.Pos()), "codes-" + f.Name.Name, value, text})
		}
	}
}

// behind is the first message behind a place, in its line the first one that people
// are told.
func (r *reader) behind(list []message, place token.Pos) (message, bool) {
	i := slices.IndexFunc(list, func(m message) bool { return m.at >= place })
	if i < 0 {
		return message{}, false
	}
	line := r.set.Position(list[i].at).Line
	for _, m := range list[i:] {
		if m.told && r.set.Position(m.at).Line == line {
			return m, true
		}
	}
	return list[i], true
}

func (r *reader) comment(c comment, m message) {
	at := r.at(c.at)
	text, ok := head(m.format, c.words)
	switch {
	case c.bad != "":
		r.fault("%s: %q is no word in capitals", at, c.bad)
	case c.section == "-" && c.text == "":
		r.fault("%s: //diag - says nothing of why nobody sees: %s", at, m.format)
	case c.section == "-":
	case !ok:
		r.fault("%s: %d words for the verbs of: %s", at, len(c.words), m.format)
	case !strings.HasSuffix(c.text, "."):
		r.fault("%s: no sentences that say what it means: %s", at, text)
	case !stands(c.text):
		r.fault("%s: code that is not between spaces: %s", at, c.text)
	default:
		r.entries = append(r.entries, Entry{at, c.section, text, c.text})
	}
}

// comment is a //diag comment.
type comment struct {
	at      token.Pos
	section string
	words   []string // for the verbs
	bad     string   // what is neither a word nor a text
	text    string
}

var word = regexp.MustCompile(`"[^"]*"|\S+`)

// parse is what a comment's lines say, from their first //diag on.
func parse(group *ast.CommentGroup) (list []comment) {
	for _, line := range group.List {
		if first, ok := strings.CutPrefix(line.Text, "//diag "); ok {
			section, rest, _ := strings.Cut(first, " ")
			c := comment{at: line.Pos(), section: section}
			if section == "-" {
				c.text, rest = rest, ""
			}
			for _, w := range word.FindAllString(rest, -1) {
				text, quoted := strings.CutPrefix(w, `"`)
				if !quoted && strings.ToUpper(w) != w {
					c.bad = w
				}
				c.words = append(c.words, strings.TrimSuffix(text, `"`))
			}
			list = append(list, c)
		} else if len(list) > 0 {
			last := &list[len(list)-1]
			last.text = strings.TrimSpace(last.text + " " + strings.TrimSpace(strings.TrimPrefix(line.Text, "//")))
		}
	}
	return list
}

// twice names the entries whose head another one has already.
func twice(entries []Entry) (faults []string) {
	first := make(map[string]string)
	for _, e := range entries {
		if strings.HasPrefix(e.Section, "codes-") {
			continue // one package's have nothing to do with another's
		}
		if at, ok := first[e.Head]; ok {
			faults = append(faults, fmt.Sprintf("%s: %s has the same head: %s", e.At, at, e.Head))
		} else {
			first[e.Head] = e.At
		}
	}
	return faults
}
