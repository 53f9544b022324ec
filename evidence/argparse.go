// SPDX-FileCopyrightText: The wcache authors
// SPDX-License-Identifier: MIT

package evidence

import (
	"fmt"
	"regexp"
	"slices"
	"strings"
)

// parser is Python's argparse.ArgumentParser for one of vLLM's programs, as far as it
// decides which word belongs to what. Releases of Python differ only in cases where one of
// them ends with an error, so that an engine can't run with that release.
type parser struct {
	opts  options
	in    releases // whose options are known
	takes bool     // one positional word
	// lenient is for engines of other releases: unknown options are skipped.
	lenient bool
}

// parsed is what a command line sets.
type parsed struct {
	values map[string]word // by option, such as "--model"
	tag    *word           // the positional word
	// unknown is the first unknown option. If maybe is set, words follow it that may be
	// its values, or the positional one.
	unknown string
	maybe   bool
}

// wanted are the options that are read.
func wanted(option string) bool {
	switch option {
	case "--model", "--revision", "--download-dir", "--speculative-config", "--spec-method", "--spec-model", "--spec-tokens":
		return true
	}
	return false
}

// class is how argparse classifies a word, before it looks at the words before it.
type class struct {
	option   bool // an option, known or not
	known    option
	explicit *string // of "--option=value"
	reason   string  // why an option isn't known
}

var negative = regexp.MustCompile(`^-\.?\d`)

// classify is argparse's _parse_optional and _get_option_tuples.
func (p parser) classify(text string) class {
	if !strings.HasPrefix(text, "-") || text == "-" {
		return class{}
	}
	if opt, ok := p.opts.exact(text, p.in); ok {
		return class{option: true, known: opt}
	}
	name, value, assigned := strings.Cut(text, "=")
	var explicit *string
	if assigned {
		explicit = &value
		if opt, ok := p.opts.exact(name, p.in); ok {
			return class{option: true, known: opt, explicit: explicit}
		}
	}
	matches := p.opts.beginning(name, p.in)
	if short := text[:2]; short != "--" && short != text {
		if opt, ok := p.opts.exact(short, p.in); ok && len(matches) == 0 {
			rest := text[2:] // "-n2"
			return class{option: true, known: opt, explicit: &rest}
		} else if ok {
			matches = append(matches, short)
		}
	}
	switch {
	case p.lenient && len(matches) > 0:
		// Another release may have another option with this name or beginning.
		c := class{option: true, reason: "may stand for " + matches[0]}
		for _, m := range matches {
			if name := p.opts.byName[m][0].name; wanted(name) {
				c.known.name = name
			}
		}
		return c
	case len(matches) > 1:
		return class{option: true, reason: fmt.Sprintf("may stand for %s or %s", matches[0], matches[1])}
	case len(matches) == 1:
		opt, _ := p.opts.exact(matches[0], p.in)
		return class{option: true, known: opt, explicit: explicit}
	case negative.MatchString(text) || strings.Contains(text, " "):
		return class{}
	}
	return class{option: true, reason: "is not known"}
}

// parse is argparse's _parse_known_args, for the words after the subcommand. Its errors
// are reasons why vLLM ends, or why the result is uncertain.
func (p parser) parse(args []word) (parsed, error) {
	s := parsed{values: make(map[string]word)}
	end := slices.IndexFunc(args, func(w word) bool { return w.text == "--" }) // of options
	if end < 0 {
		end = len(args)
	}
	classes := make([]class, len(args))
	for i, w := range args[:end] {
		classes[i] = p.classify(w.text)
	}
	bare := func(i int) bool { return i < len(args) && i != end && !classes[i].option }
	for i := 0; i < len(args); {
		switch {
		case classes[i].option:
			n, err := p.take(&s, args[i:], classes[i], func(n int) bool { return bare(i + n) })
			if err != nil {
				return s, err
			}
			i += n
		case p.takes && s.tag == nil:
			if i == end {
				i++
			}
			if !bare(i) {
				continue
			}
			s.tag = &args[i]
			if i++; i == end { // "--" goes with the positional word on either side
				i++
			}
		default:
			return s, fmt.Errorf("vLLM takes no word %q there", args[i].text)
		}
	}
	return s, nil
}

// take is argparse's consume_optional for the option at the start of args: it returns how
// many words it consumed. bare tells which words can be values.
func (p parser) take(s *parsed, args []word, c class, bare func(int) bool) (int, error) {
	following := 0
	for bare(1 + following) {
		following++
	}
	name := c.known.name
	switch {
	case c.reason != "" && (!p.lenient || wanted(name)):
		return 0, fmt.Errorf("the option %q %s", args[0].text, c.reason)
	case c.reason != "":
		if s.unknown == "" {
			s.unknown = args[0].text
		}
		if strings.Contains(args[0].text, "=") {
			return 1, nil
		}
		s.maybe = s.maybe || following > 0 && p.takes && s.tag == nil
		return 1 + following, nil
	case name == "--help":
		return 0, fmt.Errorf("vLLM only prints help")
	case c.explicit != nil && c.known.arity == '0':
		return 0, fmt.Errorf("vLLM takes no value for the option %q", args[0].text)
	case c.explicit != nil:
		// Python before 3.13 removes the "--" from "--option=--".
		s.values[name] = word{text: *c.explicit, made: args[0].made || *c.explicit == "--"}
		return 1, nil
	}
	least, most := 0, following
	switch a := c.known.arity; a {
	case '?':
		most = min(most, 1)
	case '+':
		least = 1
	case '*':
	default:
		least, most = int(a-'0'), min(most, int(a-'0'))
	}
	if most < least {
		return 0, fmt.Errorf("vLLM takes no %q with %d values", args[0].text, most)
	}
	if most == 1 {
		s.values[name] = args[1]
	}
	return 1 + most, nil
}
