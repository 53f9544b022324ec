// SPDX-FileCopyrightText: The wcache authors
// SPDX-License-Identifier: MIT

package config

import (
	"slices"
	"strings"

	"github.com/BurntSushi/toml"
)

// lineOf finds the line of a key in a file that parses, 0 if it isn't found. The parser
// gives positions only for faults in syntax. lineOf writes out each key as "table.key"
// and compares it; a value over several lines that looks like a key could mislead it,
// which only makes the line number wrong.
func lineOf(text string, key toml.Key) int {
	var table toml.Key
	for i, line := range strings.Split(text, "\n") {
		line = strings.TrimSpace(line)
		switch {
		case strings.HasPrefix(line, "["):
			header, _, _ := strings.Cut(strings.Trim(line, "["), "]")
			table = split(header)
			if slices.Equal(table, key) {
				return i + 1
			}
		case strings.Contains(line, "="):
			name, _, _ := strings.Cut(line, "=")
			if slices.Equal(slices.Concat(table, split(name)), key) {
				return i + 1
			}
		}
	}
	return 0
}

// split cuts a dotted key into its parts, without their quotes.
func split(name string) toml.Key {
	var key toml.Key
	quote := rune(0)
	part := ""
	for _, r := range strings.TrimSpace(name) {
		switch {
		case quote == 0 && (r == '"' || r == '\''):
			quote = r
		case r == quote:
			quote = 0
		case r == '.' && quote == 0:
			key = append(key, strings.TrimSpace(part))
			part = ""
		default:
			part += string(r)
		}
	}
	return append(key, strings.TrimSpace(part))
}
