// SPDX-FileCopyrightText: The wcache authors
// SPDX-License-Identifier: MIT

package main

import (
	"encoding/json"
	"fmt"
	"io"

	"github.com/wcache/wcache/internal/visible"
)

// styled is text that is safe to print as it is: foreign text in it is already escaped.
// say escapes all other text.
type styled string

// say writes one line or more for people. Other users can choose names of files, processes
// and keys, so say escapes the control characters of strings and errors among args, but not
// those of the format.
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
	b, _ := json.Marshal(v) // only for values that encode
	return string(visible.JSON(b)) + "\n"
}

// outputSchema is the schema number of the commands' JSON output, except for status, which
// has its own: fields are only added.
const outputSchema = 1
