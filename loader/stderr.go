// SPDX-FileCopyrightText: The wcache authors
// SPDX-License-Identifier: MIT

package loader

import (
	"bytes"
	"io"
	"os"
)

// maxErrorLine is the longest line of a child's standard error, in bytes. Longer lines are
// cut.
const maxErrorLine = 8 << 10

// lines writes whole lines, one per Write, because several children and the daemon write to
// the same log.
type lines struct {
	to   io.Writer
	rest []byte // the beginning of a line
}

// errorsTo gives the standard error for a child, and a function to call after the child's
// end. A file becomes the child's standard error itself.
func errorsTo(to io.Writer) (stderr io.Writer, end func()) {
	if _, ok := to.(*os.File); ok || to == nil {
		return to, func() {}
	}
	l := &lines{to: to}
	return l, l.end
}

func (l *lines) Write(p []byte) (int, error) {
	n := len(p)
	for len(p) > 0 {
		line, rest, whole := bytes.Cut(p, []byte{'\n'})
		if room := maxErrorLine - len(l.rest); len(line) > room {
			line, rest, whole = p[:room], p[room:], true
		}
		l.rest = append(l.rest, line...)
		p = rest
		if whole {
			l.end()
		}
	}
	return n, nil
}

// end writes the rest of an unfinished line.
func (l *lines) end() {
	if len(l.rest) > 0 {
		_, _ = l.to.Write(append(l.rest, '\n')) // the log counts its own errors
	}
	l.rest = l.rest[:0]
}
