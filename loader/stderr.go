// SPDX-FileCopyrightText: The wcache authors
// SPDX-License-Identifier: MIT

package loader

import (
	"bytes"
	"io"
	"os"
)

// maxErrorLine is the longest line of a child's standard error that is kept whole, in
// bytes. A longer one is cut.
const maxErrorLine = 8 << 10

// lines passes on whole lines, one a Write: those of several children and of the
// daemon meet in one log.
type lines struct {
	to   io.Writer
	rest []byte // the beginning of a line
}

// errorsTo is what a child's standard error is to be, and what ends it when the child
// has. A file is given to the child itself.
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

// end passes on the line that there is, with its end.
func (l *lines) end() {
	if len(l.rest) > 0 {
		_, _ = l.to.Write(append(l.rest, '\n')) // what a log can't take is the log's affair
	}
	l.rest = l.rest[:0]
}
