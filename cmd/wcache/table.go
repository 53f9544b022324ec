// SPDX-FileCopyrightText: The wcache authors
// SPDX-License-Identifier: MIT

package main

import (
	"fmt"
	"io"
	"strings"
	"unicode/utf8"

	"golang.org/x/sys/unix"
)

// style is how a word looks on a terminal, as the parameters of ECMA-48's SGR.
type style string

const (
	plain  style = ""
	strong style = "1"
	faint  style = "2"
	bad    style = "31"
	good   style = "32"
	uneasy style = "33"
)

// palette is whether styles are shown.
type palette bool

func (p palette) paint(s style, text string) string {
	if !p || s == plain || text == "" {
		return text
	}
	return "\x1b[" + string(s) + "m" + text + "\x1b[0m"
}

// palette of what is written to a stream: styles are for terminals, and only for
// those who want them (no-color.org) and can see them.
func (a *app) palette(out io.Writer) palette {
	return palette(a.env("NO_COLOR") == "" && a.env("TERM") != "dumb" && terminal(out))
}

// cell is a text in a table.
type cell struct {
	text  string
	style style
}

// table is rows whose columns stand below each other. The last cell of a row may
// be as long as it likes.
type table struct{ rows [][]cell }

const gap = "   "

func (t *table) add(row ...cell) { t.rows = append(t.rows, row) }

// texts adds a row of one style.
func (t *table) texts(s style, texts ...string) {
	var row []cell
	for _, text := range texts {
		row = append(row, cell{text, s})
	}
	t.add(row...)
}

func (t *table) write(w io.Writer, p palette) {
	var widths []int
	for _, row := range t.rows {
		for i, c := range row[:len(row)-1] {
			if i == len(widths) {
				widths = append(widths, 0)
			}
			widths[i] = max(widths[i], utf8.RuneCountInString(c.text))
		}
	}
	for _, row := range t.rows {
		var line strings.Builder
		for i, c := range row {
			line.WriteString(p.paint(c.style, c.text))
			if i < len(row)-1 {
				line.WriteString(strings.Repeat(" ", widths[i]-utf8.RuneCountInString(c.text)) + gap)
			}
		}
		fmt.Fprintln(w, strings.TrimRight(line.String(), " "))
	}
}

// terminal reports whether a stream is one.
func terminal(w any) bool {
	f, ok := w.(interface{ Fd() uintptr })
	if !ok {
		return false
	}
	_, err := unix.IoctlGetTermios(int(f.Fd()), unix.TCGETS)
	return err == nil
}
