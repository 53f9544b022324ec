// SPDX-FileCopyrightText: The wcache authors
// SPDX-License-Identifier: MIT

package messages

import (
	"cmp"
	"fmt"
	"regexp"
	"slices"
	"strings"
)

// A page has two marks for each of its sections, and what is between them is made:
//
//	.\" messages: reaching
//	.\" end of messages
const (
	markBegin = `.\" messages: `
	markEnd   = `.\" end of messages`
)

// Sections are the sections of a page, in their order.
func Sections(page string) (list []string) {
	for line := range strings.Lines(page) {
		if name, ok := strings.CutPrefix(line, markBegin); ok {
			list = append(list, strings.TrimSpace(name))
		}
	}
	return list
}

// Fill is the page with the entries between its marks, each section in the order of
// the words that its messages have in common each time. A section without entries is
// an error.
func Fill(page string, entries []Entry) (string, error) {
	var out strings.Builder
	section := "" // that is being replaced
	for line := range strings.Lines(page) {
		name, begins := strings.CutPrefix(line, markBegin)
		ends := strings.TrimSpace(line) == markEnd
		switch {
		case begins && section != "":
			return "", fmt.Errorf("section %q has no end", section)
		case begins:
			section = strings.TrimSpace(name)
			list := slices.DeleteFunc(slices.Clone(entries), func(e Entry) bool { return e.Section != section })
			if len(list) == 0 {
				return "", fmt.Errorf("section %q has no messages", section)
			}
			out.WriteString(line + mdocList(list))
		case ends && section == "":
			return "", fmt.Errorf("an end without a section")
		case ends:
			section = ""
			out.WriteString(line)
		case section == "":
			out.WriteString(line)
		}
	}
	if section != "" {
		return "", fmt.Errorf("section %q has no end", section)
	}
	return out.String(), nil
}

func mdocList(entries []Entry) string {
	slices.SortFunc(entries, func(a, b Entry) int {
		return cmp.Or(strings.Compare(sortKey(a.Head), sortKey(b.Head)), strings.Compare(a.Head, b.Head))
	})
	var out strings.Builder
	out.WriteString(".Bl -diag\n")
	for _, e := range entries {
		out.WriteString(".It " + escape(e.Head) + "\n" + mdoc(e.Text))
	}
	out.WriteString(".El\n")
	return out.String()
}

var capitals = regexp.MustCompile(`\b[A-Z][A-Z_]+\b`)

// sortKey is a head without the words in capitals and what isn't letters.
func sortKey(head string) string {
	key := strings.ToLower(capitals.ReplaceAllString(head, ""))
	return strings.TrimLeft(strings.Join(strings.Fields(key), " "), " -/:,.(\"")
}

// escape is a text with what roff would read as its own.
func escape(text string) string {
	text = strings.NewReplacer(`\`, `\e`, `"`, `\(dq`).Replace(text)
	if strings.HasPrefix(text, ".") || strings.HasPrefix(text, "'") {
		text = `\&` + text
	}
	return text
}

// marked is `code`, or a page of the manual.
var marked = regexp.MustCompile("`([^`]+)`|([\\w.@-]+)\\(([1-8])\\)")

// punctuation is what may stand right before or behind a macro's text.
const (
	opening = "(["
	closing = ".,:;)]?!"
)

// stands reports whether what is marked in a text is between spaces and punctuation,
// as mdoc's macros want it.
func stands(text string) bool {
	for _, at := range marked.FindAllStringIndex(text, -1) {
		before := strings.TrimRight(text[:at[0]], opening)
		behind := strings.TrimLeft(text[at[1]:], closing)
		if before != "" && !strings.HasSuffix(before, " ") || behind != "" && !strings.HasPrefix(behind, " ") {
			return false
		}
	}
	return !strings.Contains(marked.ReplaceAllString(text, ""), "`")
}

// mdoc is a text in mdoc(7), a line for each sentence.
func mdoc(text string) string {
	var l lines
	for text != "" {
		at := marked.FindStringSubmatchIndex(text)
		if at == nil {
			l.text(text)
			break
		}
		before, m := text[:at[0]], marked.FindStringSubmatch(text)
		text = text[at[1]:]
		open := before[len(strings.TrimRight(before, opening)):]
		l.text(strings.TrimSuffix(before, open))
		macro := ".Ql " + delimiters(open) + `"` + escape(m[1]) + `"`
		if m[2] != "" {
			macro = ".Xr " + delimiters(open) + m[2] + " " + m[3]
		}
		rest := strings.TrimLeft(text, closing)
		closed := text[:len(text)-len(rest)]
		macro += strings.TrimRight(" "+delimiters(closed), " ")
		l.line(macro)
		text = rest
	}
	return l.String()
}

// delimiters are characters as arguments of a macro.
func delimiters(s string) (list string) {
	for _, c := range s {
		list += string(c) + " "
	}
	return list
}

// lines are lines of mdoc.
type lines struct{ strings.Builder }

const width = 80

func (l *lines) line(s string) { l.WriteString(s + "\n") }

// text adds words, in lines that end with a sentence or are full.
func (l *lines) text(s string) {
	line := ""
	for _, w := range strings.Fields(s) {
		switch {
		case line == "":
			line = escape(w)
			continue
		case strings.HasSuffix(line, ".") || strings.HasSuffix(line, ":") && len(line) > width/2, len(line)+1+len(w) > width:
			l.line(line)
			line = escape(w)
		default:
			line += " " + strings.TrimPrefix(escape(w), `\&`)
		}
	}
	if line != "" {
		l.line(line)
	}
}
