// SPDX-FileCopyrightText: The wcache authors
// SPDX-License-Identifier: MIT

package main

import (
	"io"
	"strings"
	"unicode/utf8"

	"golang.org/x/sys/unix"

	"github.com/wcache/wcache/internal/visible"
)

// style is how a text looks on a terminal, as the parameters of ECMA-48's SGR.
type style string

const (
	plain  style = ""
	strong style = "1"
	faint  style = "2"
	bad    style = "31"
	good   style = "32"
	uneasy style = "33"
)

// palette says whether styles are shown.
type palette bool

// paint shows text in a style.
func (p palette) paint(s style, text string) styled {
	text = visible.Text(text)
	if p && s != plain && text != "" {
		text = "\x1b[" + string(s) + "m" + text + "\x1b[0m"
	}
	return styled(text)
}

// palette gives the palette for a stream: styles are for terminals that can show them, unless
// the user doesn't want them (no-color.org).
func (a *app) palette(out io.Writer) palette {
	return palette(a.env("NO_COLOR") == "" && a.env("TERM") != "dumb" && terminal(out))
}

// span is a text in one style.
type span struct {
	text  string
	style style
}

// cell is the content of one column of a table.
type cell []span

func (s style) cell(text string) cell { return cell{{text, s}} }

// width is the width of a cell in columns of a terminal, with one column per character.
func (c cell) width() (n int) {
	for _, s := range c {
		n += utf8.RuneCountInString(visible.Text(s.text))
	}
	return n
}

// table is rows with aligned columns. The last cell of a row may have any length.
type table struct{ rows [][]cell }

const gap = "   "

func (t *table) add(row ...cell) { t.rows = append(t.rows, row) }

// texts adds a row in one style.
func (t *table) texts(s style, texts ...string) {
	var row []cell
	for _, text := range texts {
		row = append(row, s.cell(text))
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
			widths[i] = max(widths[i], c.width())
		}
	}
	for _, row := range t.rows {
		var line strings.Builder
		for i, c := range row {
			for _, s := range c {
				line.WriteString(string(p.paint(s.style, s.text)))
			}
			if i < len(row)-1 {
				line.WriteString(strings.Repeat(" ", widths[i]-c.width()) + gap)
			}
		}
		say(w, "%s\n", styled(strings.TrimRight(line.String(), " ")))
	}
}

// terminal reports whether a stream is a terminal.
func terminal(w any) bool {
	f, ok := w.(interface{ Fd() uintptr })
	if !ok {
		return false
	}
	_, err := unix.IoctlGetTermios(int(f.Fd()), unix.TCGETS)
	return err == nil
}
