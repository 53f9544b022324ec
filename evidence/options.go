// SPDX-FileCopyrightText: The wcache authors
// SPDX-License-Identifier: MIT

package evidence

import (
	_ "embed"
	"fmt"
	"slices"
	"strings"
	"sync"
)

// optionsText is written by tools/vllm-options.py, and describes itself.
//
//go:embed options.txt
var optionsText string

// releases is a set of releases of vLLM, one bit per release in the order of options.txt.
type releases uint8

// option is an option of a program, as far as argparse needs it to assign words.
type option struct {
	name     string // the first of its names
	arity    byte   // how many words follow: a digit, '?', '*' or '+'
	releases releases
}

// options are the options of one program, by each of their names. A name has several
// entries if releases differ.
type options struct {
	byName   map[string][]option
	releases []string
}

// tables are the options of all programs, by program. Like a compiled regular expression
// they never change; they are parsed on first use.
var tables = sync.OnceValues(func() (map[string]options, error) { return parseOptions(optionsText) })

func programOptions(program string) (options, error) {
	all, err := tables()
	if err != nil {
		return options{}, err
	}
	o, ok := all[program]
	if !ok {
		return options{}, fmt.Errorf("options.txt has no program %q", program)
	}
	return o, nil
}

func parseOptions(text string) (map[string]options, error) {
	programs := make(map[rune]string) // by letter
	all := make(map[string]options)
	var known []string
	number := 0
	for line := range strings.Lines(text) {
		number++
		fields := strings.Fields(line)
		switch {
		case len(fields) == 0 || strings.HasPrefix(line, "#"):
		case fields[0] == "program" && len(fields) == 3 && len(fields[1]) == 1:
			programs[rune(fields[1][0])] = fields[2]
			all[fields[2]] = options{byName: make(map[string][]option)}
		case fields[0] == "release" && len(fields) == 3:
			known = append(known, fields[2])
		case fields[0] == "option" && len(fields) >= 4 && len(fields[1]) == 1:
			for letter, in := range places(fields[2]) {
				byName := all[programs[letter]].byName
				if byName == nil {
					return nil, fmt.Errorf("line %d of options.txt: no program %q", number, letter)
				}
				for _, name := range fields[3:] {
					byName[name] = append(byName[name], option{name: fields[3], arity: fields[1][0], releases: in})
				}
			}
		default:
			return nil, fmt.Errorf("line %d of options.txt: %q", number, line)
		}
	}
	for program, o := range all {
		o.releases = known
		all[program] = o
	}
	return all, nil
}

// places gives, by program letter, the releases in which the programs have an option: text
// has groups of letters and digits, such as "abc0123,g3".
func places(text string) map[rune]releases {
	in := make(map[rune]releases)
	for group := range strings.SplitSeq(text, ",") {
		var bits releases
		for _, r := range group {
			if r >= '0' && r <= '7' {
				bits |= 1 << (r - '0')
			}
		}
		for _, r := range group {
			if r >= 'a' && r <= 'z' {
				in[r] |= bits
			}
		}
	}
	return in
}

func (o options) all() releases { return 1<<len(o.releases) - 1 }

// exact is the option with a name in some releases. ok is false if the releases differ in
// how they assign words to it.
func (o options) exact(name string, in releases) (found option, ok bool) {
	for _, opt := range o.byName[name] {
		switch {
		case opt.releases&in == 0:
		case found.name == "":
			found, ok = opt, true
		case found.name != opt.name || found.arity != opt.arity:
			return option{}, false
		}
	}
	return found, ok
}

// beginning lists the option names with a prefix, in order.
func (o options) beginning(prefix string, in releases) (names []string) {
	for name, opts := range o.byName {
		if strings.HasPrefix(name, prefix) && slices.ContainsFunc(opts, func(opt option) bool { return opt.releases&in != 0 }) {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return names
}
