// SPDX-FileCopyrightText: The wcache authors
// SPDX-License-Identifier: MIT

package evidence

import (
	"encoding/json"
	"fmt"
	"regexp"
	"strings"
	"unicode/utf8"
)

// said is what a command line says, in every release of vLLM.
type said struct {
	model       string
	revision    string
	downloadDir string
	speculative draft
}

// draft is what --speculative-config and similar options say.
type draft struct {
	model, revision string
	shared          bool   // its weights are in the model's files
	none            string // why there is no separate model, or why it isn't certain
}

// read reads a program's command line. none says why the result isn't certain. config
// reads a file of options.
func (p program) read(config func(file string) ([]byte, error)) (s said, none string) {
	opts, err := programOptions(p.table)
	if err != nil {
		return s, err.Error()
	}
	args, err := p.prepare(opts, config)
	if err != nil {
		return s, err.Error()
	}
	if len(args) < p.words {
		return s, fmt.Sprintf("%q names no model", p.shown)
	}
	for i, w := range args[:p.words] {
		if w.text != p.args[i] {
			return s, fmt.Sprintf("vLLM takes no %q before its subcommand", w.text)
		}
	}
	args = args[p.words:]

	// The engine is of one of these releases, or of none of them.
	var reasons []string
	agreed := false
	for r := range opts.releases {
		one, err := parser{opts: opts, in: 1 << r, takes: p.positional()}.parse(args)
		if err != nil {
			reasons = append(reasons, err.Error())
			continue
		}
		now, why := p.understand(one)
		if why != "" {
			return s, why
		}
		if agreed && now != s {
			return s, fmt.Sprintf("releases of vLLM read the command line of %q differently", p.shown)
		}
		s, agreed = now, true
	}
	if agreed {
		return s, ""
	}
	one, err := parser{opts: opts, in: opts.all(), takes: p.positional(), lenient: true}.parse(args)
	if err != nil {
		return s, err.Error()
	}
	if one.unknown == "" {
		return s, reasons[len(reasons)-1]
	}
	return p.understand(one)
}

// positional reports whether argparse accepts a word that isn't an option.
func (p program) positional() bool { return p.table == "serve" || p.table == "api_server" }

// understand interprets one parse of a command line.
func (p program) understand(one parsed) (s said, none string) {
	value := func(option string) (word, bool) {
		w, ok := one.values[option]
		if w.made && option != "--speculative-config" {
			none = fmt.Sprintf("the value of %s can't be told for certain", option)
		}
		if ok && option != "--model" && (w.text == "" || w.text == "None") { // optional_type of arg_utils.py
			return word{}, false
		}
		return w, ok
	}
	// Only "vllm serve" looks at the positional word.
	model, given := value("--model")
	switch {
	case p.table != "serve":
	case one.maybe:
		return s, fmt.Sprintf("the option %q is not known: a word behind it may be its value or the model", one.unknown)
	case one.tag != nil:
		model, given, none = *one.tag, true, ""
	}
	switch {
	case none != "":
		return s, none
	case !given || model.text == "":
		return s, fmt.Sprintf("%q names no model", p.shown)
	case model.made:
		return s, "the model's name can't be told for certain"
	}
	s.model = model.text
	revision, _ := value("--revision")
	folder, _ := value("--download-dir")
	s.revision, s.downloadDir = revision.text, folder.text
	if none != "" {
		return said{}, none
	}
	if s.speculative = speculation(value); none != "" {
		s.speculative, none = draft{none: none}, ""
	}
	return s, ""
}

// speculation is create_speculative_config of arg_utils.py and SpeculativeConfig of
// config/speculative.py, as far as they choose a model.
func speculation(value func(option string) (word, bool)) draft {
	config := make(map[string]any)
	text, given := value("--speculative-config")
	if given {
		// A character that isn't UTF-8, or half of a surrogate pair in JSON, would become
		// another one here.
		var object map[string]any
		if err := json.Unmarshal([]byte(text.text), &object); err != nil || object == nil || !utf8.ValidString(text.text) {
			return draft{none: "--speculative-config can't be read as a JSON object"}
		}
		for k, v := range object {
			k = strings.ReplaceAll(k, "-", "_")
			if _, twice := config[k]; twice {
				return draft{none: fmt.Sprintf("--speculative-config has %q twice", k)}
			}
			config[k] = v
		}
	}
	for _, o := range [...][2]string{{"--spec-method", "method"}, {"--spec-model", "model"}, {"--spec-tokens", "num_speculative_tokens"}} {
		v, ok := value(o[0])
		if !ok {
			continue
		}
		if _, twice := config[o[1]]; twice {
			return draft{none: fmt.Sprintf("vLLM takes no %s beside %q in --speculative-config", o[0], o[1])}
		}
		config[o[1]], given = v.text, true
	}
	if !given {
		return draft{none: "the command line has no --speculative-config"}
	}
	var d draft
	var method string
	for _, field := range []struct {
		key string
		to  *string
	}{{"method", &method}, {"model", &d.model}, {"revision", &d.revision}} {
		v, ok := config[field.key].(string)
		if config[field.key] != nil && !ok || strings.ContainsRune(v, utf8.RuneError) {
			return draft{none: fmt.Sprintf("%q in --speculative-config isn't plain text", field.key)}
		}
		*field.to = v
	}
	switch {
	case config["draft_load_config"] != nil:
		return draft{none: "--speculative-config has a draft_load_config, which may lead to another directory"}
	case method == "ngram", method == "[ngram]", method == "ngram_gpu", method == "suffix", method == "extract_hidden_states", method == "custom_class":
		return draft{none: fmt.Sprintf("speculative method %q has no model of its own", method)}
	case method == "" && (d.model == "ngram" || d.model == "[ngram]" || className.MatchString(d.model)):
		return draft{none: fmt.Sprintf("speculative model %q is a method, not a model", d.model)}
	case d.model != "":
		return d
	case (strings.HasSuffix(method, "mtp") || method == "dspark") && config["num_speculative_tokens"] != nil:
		d.shared = true
		return d
	}
	return draft{none: fmt.Sprintf("--speculative-config names no model for method %q", method)}
}

// className matches texts that vLLM takes for the name of a Python class instead of a
// model (_is_custom_proposer_path).
var className = regexp.MustCompile(`^[\p{L}_][\p{L}\p{Nd}_]*(\.[\p{L}_][\p{L}\p{Nd}_]*)+$`)

// claims are the claims of a command line about both models.
func (s said) claims() (model, proposer Claim) {
	model = Claim{Name: s.model, Revision: s.revision}
	switch d := s.speculative; {
	case d.none != "":
		proposer.None = d.none
	case d.shared:
		proposer = Claim{Name: s.model, Revision: d.revision, shared: true}
	default:
		proposer = Claim{Name: d.model, Revision: d.revision}
	}
	return model, proposer
}
