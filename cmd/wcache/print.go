// SPDX-FileCopyrightText: The wcache authors
// SPDX-License-Identifier: MIT

package main

import (
	"encoding/json"
	"fmt"
	"io"

	"github.com/wcache/wcache/internal/visible"
)

// styled is text that may be written as it is: what is not this program's own is
// escaped in it. All other text that is printed is escaped by say.
type styled string

// say writes a line or more for people. Names of files, processes and keys are
// anybody's, so strings and errors among args are shown with their control characters
// escaped; those of the format count.
func say(w io.Writer, format string, args ...any) {
	safe := make([]any, len(args))
	for i, arg := range args {
		switch arg := arg.(type) {
		case styled:
			safe[i] = string(arg)
		case string:
			safe[i] = visible.Text(arg)
		case error:
			safe[i] = visible.Line(arg.Error())
		case fmt.Stringer:
			safe[i] = visible.Text(arg.String())
		default:
			safe[i] = arg
		}
	}
	fmt.Fprintf(w, format, safe...)
}

// printJSON writes a value as indented JSON.
func (a *app) printJSON(v any) error {
	b, err := json.MarshalIndent(v, "", "  ")
	if err != nil {
		return err
	}
	_, err = a.out.Write(append(visible.JSON(b), '\n'))
	return err
}

// jsonLine is a value as one line of JSON.
func jsonLine(v any) string {
	b, _ := json.Marshal(v) // of what encodes
	return string(visible.JSON(b)) + "\n"
}

// outputSchema is the number of what commands print in JSON, other than status,
// which has one of its own: fields are only added.
const outputSchema = 1
