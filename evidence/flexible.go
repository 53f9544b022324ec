// SPDX-FileCopyrightText: The wcache authors
// SPDX-License-Identifier: MIT

package evidence

import (
	"encoding/json"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"
)

// This file does what vLLM does before Python's argparse sees a command line: the
// FlexibleArgumentParser of its argparse_utils.py, which is equal in 0.30 to 0.33.

const (
	// maxWords limits the words of a command line. Real ones have tens.
	maxWords = 4096
	// maxKeys limits how deep a dotted option may reach into a JSON object.
	maxKeys = 64
)

// word is an argument. made says that vLLM has another text in its place with the same
// meaning for argparse: a JSON object or a value from a YAML file.
type word struct {
	text string
	made bool
}

func words(args []string) []word {
	list := make([]word, len(args))
	for i, arg := range args {
		list[i] = word{text: arg}
	}
	return list
}

// prepare gives the words that argparse gets. config reads a file of options.
// The errors are reasons for people.
func (p program) prepare(opts options, config func(file string) ([]byte, error)) ([]word, error) {
	if len(p.args) > maxWords {
		return nil, fmt.Errorf("its command line has %d words", len(p.args))
	}
	args, err := modelFirst(words(p.args))
	if err != nil {
		return nil, err
	}
	if args, err = p.pullConfig(args, opts, config); err != nil {
		return nil, err
	}
	if len(args) > maxWords {
		return nil, fmt.Errorf("its command line and its configuration file have %d words", len(args))
	}
	return dotted(dashes(args))
}

var (
	modelOption  = regexp.MustCompile(`^--model(=.+|$)`)
	configOption = regexp.MustCompile(`^--config(=.+|$)`)
	servedName   = regexp.MustCompile(`^--served[-_]model[-_]name(=.+|$)`)
)

func anyWord(args []word, pattern *regexp.Regexp) int {
	return slices.IndexFunc(args, func(w word) bool { return pattern.MatchString(w.text) })
}

// modelFirst moves the model of "serve … --model M …" to the place of the positional one.
func modelFirst(args []word) ([]word, error) {
	if len(args) == 0 || args[0].text != "serve" {
		return args, nil
	}
	if i := anyWord(args, modelOption); i >= 0 {
		model, rest := word{text: strings.TrimPrefix(args[i].text, "--model=")}, i+1
		if args[i].text == "--model" {
			if rest == len(args) {
				return nil, errors.New("vLLM takes no --model without a model")
			}
			model, rest = args[rest], rest+1
		}
		args = slices.Concat(args[:1], []word{model}, args[1:i], args[rest:])
	}
	if len(args) > 1 && strings.HasPrefix(args[1].text, "-") && anyWord(args, configOption) < 0 && anyWord(args, servedName) >= 0 {
		return nil, errors.New("vLLM takes no --served-model-name without the model as the first word")
	}
	return args, nil
}

// pullConfig inserts the options of --config FILE before the command line's own options.
// vLLM ignores "--config=FILE".
func (p program) pullConfig(args []word, opts options, config func(string) ([]byte, error)) ([]word, error) {
	is := func(w word) bool { return w.text == "--config" }
	i := slices.IndexFunc(args, is)
	if i < 0 {
		return args, nil
	}
	if i+1 == len(args) || slices.ContainsFunc(args[i+1:], is) {
		return nil, errors.New("vLLM takes one --config, with a file")
	}
	if p.words > 1 {
		return nil, fmt.Errorf("vLLM takes no --config for %q", p.shown)
	}
	file := args[i+1].text
	if ext := file[strings.LastIndex(file, ".")+1:]; ext != "yaml" && ext != "yml" {
		return nil, fmt.Errorf("vLLM takes no --config %q, which isn't named .yaml or .yml", file)
	}
	text, err := config(file)
	if err != nil {
		return nil, err
	}
	known := func(name string) bool { return p.words == 0 && len(opts.byName[name]) > 0 }
	more, err := configWords(text, known)
	if err != nil {
		return nil, fmt.Errorf("--config %q: %w", file, err)
	}
	at := 1 // after the subcommand, or what stands in its place
	switch {
	case strings.HasPrefix(args[0].text, "-"):
		at = 0
	case args[0].text != "serve":
	case len(args) > 1 && !strings.HasPrefix(args[1].text, "-"):
		at = 2
	case !slices.Contains(more, word{text: "--model"}):
		return nil, fmt.Errorf("neither the command line nor --config %q names a model", file)
	}
	return slices.Concat(args[:at], more, args[at:i], args[i+2:]), nil
}

// dashes writes names of options with dashes, and -O as its long form.
func dashes(args []word) []word {
	var list []word
	for i, w := range args {
		name, value, assigned := strings.Cut(w.text, "=")
		switch {
		case strings.HasPrefix(w.text, "--help="):
			w.text = "--help"
		case strings.HasPrefix(w.text, "--"):
			first, keys, inside := strings.Cut(name, ".")
			w.text = strings.ReplaceAll(first, "_", "-")
			if inside {
				w.text += "." + keys
			}
			if assigned {
				w.text += "=" + value
			}
		case strings.HasPrefix(w.text, "-O") && w.text != "-O":
			list = append(list, word{text: "--optimization-level"})
			w.text = strings.TrimPrefix(w.text[2:], "=")
		case w.text == "-O" && i+1 < len(args) && slices.Contains([]string{"0", "1", "2", "3"}, args[i+1].text):
			w.text = "--optimization-level"
		}
		list = append(list, w)
	}
	return list
}

// dotted collects options such as "--hf-overrides.rope.factor 2" into JSON objects, one
// per option, at the end.
func dotted(args []word) ([]word, error) {
	var list []word
	var names []string
	objects := make(map[string]map[string]any)
	for i := 0; i < len(args); i++ {
		w := args[i]
		name, value, assigned := strings.Cut(w.text, "=")
		if !strings.HasPrefix(w.text, "-") || !strings.Contains(name, ".") {
			list = append(list, w)
			continue
		}
		if !assigned {
			if i++; i == len(args) {
				return nil, fmt.Errorf("vLLM takes no %q without a value", w.text)
			}
			value = args[i].text
			w.made = args[i].made
		}
		name, appends := strings.CutSuffix(name, "+")
		if appends {
			b, _ := json.Marshal(strings.Split(value, ",")) // strings always can be
			value = string(b)
		}
		name, keys, _ := strings.Cut(name, ".")
		steps := strings.Split(keys, ".")
		if len(steps) > maxKeys {
			return nil, fmt.Errorf("an option has %d keys", len(steps))
		}
		if objects[name] == nil {
			objects[name] = make(map[string]any)
			names = append(names, name)
		}
		set(objects[name], steps, jsonValue(value, w.made))
	}
	for _, name := range names {
		b, err := json.Marshal(objects[name])
		if err != nil {
			return nil, fmt.Errorf("option %q: %w", name, err)
		}
		list = append(list, word{text: name}, word{text: string(b), made: true})
	}
	return list, nil
}

// number matches what Python's int or vLLM's human_readable_int accepts and JSON doesn't.
var number = regexp.MustCompile(`^\s*([+-]?[\p{Nd}_]+|\d+(\.\d+)?[kKmMgGtT])\s*$`)

// jsonValue is the value of a dotted option: JSON, a number in a form for people, or a
// string. Of numbers it only keeps that they are numbers.
func jsonValue(text string, made bool) any {
	switch strings.TrimSpace(text) {
	case "NaN", "Infinity", "-Infinity": // are JSON for Python
		return 0
	}
	var v any
	if err := json.Unmarshal([]byte(text), &v); err == nil {
		return v
	}
	if number.MatchString(text) || made {
		return 0
	}
	return text
}

// set stores a value at a path of keys, and merges objects and lists with existing ones.
func set(object map[string]any, keys []string, v any) {
	for _, key := range keys[:len(keys)-1] {
		inner, ok := object[key].(map[string]any)
		if !ok {
			inner = make(map[string]any)
			object[key] = inner
		}
		object = inner
	}
	join(object, keys[len(keys)-1], v)
}

func join(object map[string]any, key string, v any) {
	switch there := object[key].(type) {
	case map[string]any:
		if more, ok := v.(map[string]any); ok {
			for k, inner := range more {
				join(there, k, inner)
			}
			return
		}
	case []any:
		if more, ok := v.([]any); ok {
			object[key] = append(there, more...)
			return
		}
	}
	object[key] = v
}
