// SPDX-FileCopyrightText: The wcache authors
// SPDX-License-Identifier: MIT

package evidence

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"regexp"

	"go.yaml.in/yaml/v3"
)

const (
	// maxConfig is the most that is read of a file of options, in bytes. Real ones have 1 KiB.
	maxConfig = 256 << 10
	// maxDepth is how deep its values may be nested.
	maxDepth = 64
)

// configWords is load_config_file of vLLM's argparse_utils.py: it turns the entries of a
// YAML file into the words of a command line. known tells whether the parser that vLLM
// asks has an option.
func configWords(text []byte, known func(option string) bool) ([]word, error) {
	var document, more yaml.Node
	decoder := yaml.NewDecoder(bytes.NewReader(text))
	if err := decoder.Decode(&document); err != nil {
		return nil, fmt.Errorf("isn't YAML: %w", err)
	}
	if err := decoder.Decode(&more); !errors.Is(err, io.EOF) {
		return nil, errors.New("holds more than one document")
	}
	if len(document.Content) != 1 || document.Content[0].Kind != yaml.MappingNode {
		return nil, errors.New("holds no mapping")
	}
	entries := document.Content[0].Content
	values := make(map[string]*yaml.Node) // of two equal keys the later value counts
	var keys []string
	for i := 0; i < len(entries); i += 2 {
		key := entries[i]
		if key.Kind != yaml.ScalarNode || scalar(key).made || boolean(key) != "" || null(key) {
			return nil, fmt.Errorf("line %d: the key %q isn't plain text", key.Line, key.Value)
		}
		if values[key.Value] == nil {
			keys = append(keys, key.Value)
		}
		values[key.Value] = resolve(entries[i+1])
	}
	var list []word
	for _, key := range keys {
		more, err := optionWords(key, values[key], known)
		if err != nil {
			return nil, err
		}
		list = append(list, more...)
	}
	return list, nil
}

func optionWords(key string, v *yaml.Node, known func(string) bool) ([]word, error) {
	option := word{text: "--" + key}
	switch v.Kind {
	case yaml.ScalarNode:
		switch boolean(v) {
		case "true":
			return []word{option}, nil
		case "false":
			if no := "--no-" + key; known(no) {
				return []word{{text: no}}, nil
			}
			return nil, nil
		}
		return []word{option, scalar(v)}, nil
	case yaml.SequenceNode:
		if len(v.Content) == 0 {
			return nil, nil
		}
		list := []word{option}
		for _, item := range v.Content {
			if item = resolve(item); item.Kind == yaml.ScalarNode && boolean(item) == "" {
				list = append(list, scalar(item))
			} else {
				list = append(list, word{text: "{}", made: true}) // as argparse sees it
			}
		}
		return list, nil
	case yaml.MappingNode:
		object, err := plain(v, maxDepth)
		if err != nil {
			return nil, err
		}
		b, err := json.Marshal(object)
		if err != nil {
			return nil, fmt.Errorf("line %d: %w", v.Line, err)
		}
		return []word{option, {text: string(b), made: true}}, nil
	}
	return nil, fmt.Errorf("line %d: %q has a value of an unknown kind", v.Line, key)
}

// resolve follows an alias to its anchor, which is never an alias itself.
func resolve(n *yaml.Node) *yaml.Node {
	if n.Kind == yaml.AliasNode && n.Alias != nil {
		return n.Alias
	}
	return n
}

// plain converts a value to JSON. Strings and nulls are exact; for other scalars only the
// fact that they are neither is kept.
func plain(n *yaml.Node, depth int) (any, error) {
	if depth == 0 {
		return nil, fmt.Errorf("line %d: is nested too deep", n.Line)
	}
	switch n.Kind {
	case yaml.MappingNode:
		object := make(map[string]any)
		for i := 0; i < len(n.Content); i += 2 {
			key := n.Content[i]
			if key.Kind != yaml.ScalarNode || scalar(key).made {
				return nil, fmt.Errorf("line %d: the key %q isn't plain text", key.Line, key.Value)
			}
			v, err := plain(n.Content[i+1], depth-1)
			if err != nil {
				return nil, err
			}
			object[key.Value] = v
		}
		return object, nil
	case yaml.ScalarNode:
		switch w := scalar(n); {
		case null(n):
			return nil, nil
		case w.made || boolean(n) != "" || integer.MatchString(w.text) && !quoted(n):
			return 0, nil
		default:
			return w.text, nil
		}
	}
	return 0, nil // lists, and aliases of anything
}

// PyYAML reads YAML 1.1: these are the plain scalars that it doesn't take for strings, from
// its resolver.py. The parser used here only gives their text.
var (
	trueWord  = regexp.MustCompile(`^(yes|Yes|YES|true|True|TRUE|on|On|ON)$`)
	falseWord = regexp.MustCompile(`^(no|No|NO|false|False|FALSE|off|Off|OFF)$`)
	nullWord  = regexp.MustCompile(`^(~|null|Null|NULL|)$`)
	// integer matches integers that Python writes as they stand in the file.
	integer = regexp.MustCompile(`^(0|[1-9][0-9]*)$`)
	// special matches texts that may be a number, a time, a merge key or a value key.
	special = regexp.MustCompile(`^([-+]?[0-9][0-9_.:eE+-]*|[-+]?\.[0-9_]+([eE][-+][0-9]+)?|[-+]?0[xb][0-9a-fA-F_]+|[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)|[0-9]{4}-[0-9][0-9]?-[0-9][0-9]?.*|<<|=)$`)
)

func quoted(n *yaml.Node) bool {
	return n.Style&(yaml.SingleQuotedStyle|yaml.DoubleQuotedStyle|yaml.LiteralStyle|yaml.FoldedStyle) != 0
}

// boolean is "true" or "false", or "" if the value isn't a boolean.
func boolean(n *yaml.Node) string {
	switch {
	case quoted(n) || n.Style&yaml.TaggedStyle != 0:
		return ""
	case trueWord.MatchString(n.Value):
		return "true"
	case falseWord.MatchString(n.Value):
		return "false"
	}
	return ""
}

func null(n *yaml.Node) bool {
	return !quoted(n) && n.Style&yaml.TaggedStyle == 0 && nullWord.MatchString(n.Value)
}

// scalar is Python's str() of a value.
func scalar(n *yaml.Node) word {
	switch {
	case n.Style&yaml.TaggedStyle != 0:
		return word{text: n.Value, made: true}
	case null(n):
		return word{text: "None"}
	case quoted(n) || integer.MatchString(n.Value):
		return word{text: n.Value}
	}
	return word{text: n.Value, made: special.MatchString(n.Value)}
}
