// SPDX-FileCopyrightText: The wcache authors
// SPDX-License-Identifier: MIT

package messages

import (
	"go/ast"
	"go/token"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// message is a string of a source that may be a message. told says that people
// see it, by the place that it is in: a refusal, a warning of the log, a fault that
// doctor finds, a mistake of the command line.
type message struct {
	format string
	at     token.Pos
	told   bool
}

// messagesOf lists the messages of a file in the order of its text.
func messagesOf(f *ast.File) []message {
	told := make(map[ast.Expr]bool)
	parts := make(map[ast.Expr]bool) // of a sum
	var list []message
	ast.Inspect(f, func(n ast.Node) bool {
		if n == nil {
			return false
		}
		for _, e := range words(n) {
			told[e] = true
		}
		switch n := n.(type) {
		case *ast.ImportSpec:
			return false
		case *ast.Field:
			return n.Tag == nil // whose words are not for people
		case ast.Expr:
			if s, ok := constant(n); ok && isMessage(s) && !parts[n] {
				list = append(list, message{s, n.Pos(), told[n]})
			}
			if sum, ok := n.(*ast.BinaryExpr); ok {
				parts[sum.X], parts[sum.Y] = true, true
			}
		}
		return true
	})
	slices.SortStableFunc(list, func(a, b message) int { return int(a.at - b.at) })
	return list
}

var verb = regexp.MustCompile(`%[-+# 0-9.]*[a-zA-Z]`)

// minFixed is how many bytes of fixed text make a message. What has fewer, such as
// "%s is %s", is the frame of messages that are elsewhere.
const minFixed = 6

func isMessage(format string) bool {
	fixed := 0
	for _, part := range split(format) {
		fixed += len(strings.TrimSpace(part))
	}
	return fixed >= minFixed && strings.Contains(format, " ")
}

// head is a format as the manual shows it, with words in place of its verbs; ok is
// false for another number of words.
func head(format string, words []string) (text string, ok bool) {
	parts := split(format)
	if len(words) != len(parts)-1 {
		return "", false
	}
	text = parts[0]
	for i, part := range parts[1:] {
		text += words[i] + part
	}
	return text, true
}

// split gives the fixed parts of a format, between its verbs.
func split(format string) []string {
	const percent = "\x00"
	parts := verb.Split(strings.ReplaceAll(format, "%%", percent), -1)
	for i, part := range parts {
		parts[i] = strings.ReplaceAll(part, percent, "%")
	}
	return parts
}

// constant is the value of a string, in which what isn't constant is a verb.
func constant(e ast.Expr) (string, bool) {
	switch e := e.(type) {
	case *ast.BasicLit:
		if e.Kind == token.STRING {
			s, err := strconv.Unquote(e.Value)
			return s, err == nil
		}
	case *ast.BinaryExpr:
		if e.Op == token.ADD {
			x, isX := constant(e.X)
			y, isY := constant(e.Y)
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

// words are the strings that a node tells people.
func words(n ast.Node) []ast.Expr {
	switch n := n.(type) {
	case *ast.CallExpr:
		return said(n)
	case *ast.CompositeLit:
		return reason(n)
	case *ast.FuncDecl:
		return errorOf(n)
	}
	return nil
}

// said is what a call tells people.
func said(c *ast.CallExpr) []ast.Expr {
	switch name := lastName(c.Fun); {
	case name == "refuse":
		return argument(c, 1)
	case name == "usage" || name == "uncertain":
		return argument(c, 0)
	case name == "result" && len(c.Args) > 1 && slices.Contains([]string{"Fail", "Warn"}, lastName(c.Args[1])):
		return argument(c, 3)
	case name == "Warn" || name == "Error":
		if s, ok := c.Fun.(*ast.SelectorExpr); ok && lastName(s.X) == "log" {
			return argument(c, 0)
		}
	}
	return nil
}

// argument is one of a call's, in a list that is empty if there is none.
func argument(c *ast.CallExpr, i int) []ast.Expr {
	if i >= len(c.Args) {
		return nil
	}
	return []ast.Expr{format(c.Args[i])}
}

// reason is that of an error which has one.
func reason(l *ast.CompositeLit) []ast.Expr {
	if !slices.Contains([]string{"Refusal", "Uncertain", "Unusable", "Unreadable", "Unfinished", "NotFound"}, lastName(l.Type)) {
		return nil
	}
	for _, e := range l.Elts {
		if f, ok := e.(*ast.KeyValueExpr); ok && lastName(f.Key) == "Reason" {
			return []ast.Expr{format(f.Value)}
		}
	}
	return nil
}

// errorOf is what the method Error of a type returns.
func errorOf(f *ast.FuncDecl) (list []ast.Expr) {
	if f.Recv == nil || f.Name.Name != "Error" || f.Type.Params.NumFields() > 0 {
		return nil
	}
	ast.Inspect(f.Body, func(n ast.Node) bool {
		if r, ok := n.(*ast.ReturnStmt); ok && len(r.Results) == 1 {
			list = append(list, format(r.Results[0]))
		}
		return true
	})
	return list
}

// format is the format of a call of Sprintf, and else what it is given.
func format(e ast.Expr) ast.Expr {
	if c, ok := e.(*ast.CallExpr); ok && lastName(c.Fun) == "Sprintf" && len(c.Args) > 0 {
		return c.Args[0]
	}
	return e
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
