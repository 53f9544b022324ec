// SPDX-FileCopyrightText: The wcache authors
// SPDX-License-Identifier: MIT

package evidence

import (
	"bufio"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// recorded is a line of testdata/commands/recorded.jsonl: the result of vLLM's own parser
// for a command line.
type recorded struct {
	Program string
	Argv    []string
	Got     []got
}

// got is the result of some releases: they end, or have these values.
type got struct {
	Releases    []string
	Ends        string
	Model       string
	Revision    string
	DownloadDir string          `json:"download_dir"`
	Speculative json.RawMessage `json:"speculative_config"`
	Method      string          `json:"spec_method"`
	SpecModel   string          `json:"spec_model"`
}

// programOf is a program of options.txt, as classify gives it.
func programOf(t testing.TB, table string, argv []string) program {
	t.Helper()
	words := strings.SplitN(table, "-", 2)
	var p program
	switch {
	case table == "run-batch":
		p = commandLine("vllm", append([]string{table}, argv...))
	case !strings.Contains(table, "_"):
		p = commandLine("vllm", append(words, argv...))
	default:
		p = program{shown: "python -m " + table, table: table, args: argv}
	}
	if p.table != table || p.none != "" {
		t.Fatalf("%s: got %+v", table, p)
	}
	return p
}

// defaultModel is what vLLM serves without a model on its command line.
const defaultModel = "Qwen/Qwen3-0.6B"

// newer are words that only later releases of Python's argparse take (3.12.8, 3.14):
// the recordings are of 3.11.
var newer = regexp.MustCompile(`unrecognized arguments: (-as=1|-1e5)$`)

// classified matches errors of argparse itself; other errors are about values, which aren't checked.
var classified = regexp.MustCompile(`unrecognized arguments|ambiguous option|expected (one|at least one) argument|ignored explicit argument|No model specified|should be provided as the first|config file|IndexError`)

// This parser gives the same results for command lines as vLLM's own parsers of four
// releases, unless it says that it isn't certain.
func TestRecorded(t *testing.T) {
	f, err := os.Open("testdata/commands/recorded.jsonl")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	lines, certain := 0, 0
	for scanner := bufio.NewScanner(f); scanner.Scan(); lines++ {
		var r recorded
		if err := json.Unmarshal(scanner.Bytes(), &r); err != nil {
			t.Fatal(err)
		}
		p := programOf(t, r.Program, r.Argv)
		opts, err := programOptions(p.table)
		if err != nil {
			t.Fatal(err)
		}
		args, prepareErr := p.prepare(opts, testConfig)
		for _, g := range r.Got {
			for _, release := range g.Releases {
				one, err := parsed{}, prepareErr
				if err == nil {
					in := releases(1) << slices.Index(opts.releases, release)
					one, err = parser{opts: opts, in: in, takes: p.positional()}.parse(args[p.words:])
				}
				line := strings.Join(append([]string{release, r.Program}, r.Argv...), " ")
				switch {
				case g.Ends != "" && err == nil && classified.MatchString(g.Ends) && !newer.MatchString(g.Ends):
					t.Errorf("%s: vLLM ends: %s", line, g.Ends)
				case g.Ends == "" && err != nil:
					t.Errorf("%s: got %v", line, err)
				case g.Ends == "" && g.compare(t, line, p, one):
					certain++
				}
			}
		}
	}
	if lines == 0 || certain < 2*lines {
		t.Errorf("of %d lines for four releases only %d are certain", lines, certain)
	}
}

// compare reports whether the model is certain.
func (g got) compare(t *testing.T, line string, p program, one parsed) bool {
	t.Helper()
	is, none := p.understand(one)
	want := said{model: g.Model, revision: g.Revision, downloadDir: g.DownloadDir}
	switch {
	case g.Model == "" || g.Model == defaultModel:
		if none == "" {
			t.Errorf("%s: got %+v, vLLM serves its default", line, is)
		}
		return false
	case none != "" && !strings.Contains(none, "can't be told"):
		t.Errorf("%s: got %s", line, none)
		return false
	case none != "":
		return false
	}
	is.speculative = draft{}
	if diff := cmp.Diff(want, is, cmp.AllowUnexported(said{}, draft{})); diff != "" {
		t.Errorf("%s: %s", line, diff)
	}
	for option, want := range map[string]string{"--spec-method": g.Method, "--spec-model": g.SpecModel} {
		if text := one.values[option].text; text != want && text != "None" {
			t.Errorf("%s: %s is %q, want %q", line, option, text, want)
		}
	}
	compareJSON(t, line, one.values["--speculative-config"].text, g.Speculative)
	return true
}

// compareJSON compares values of --speculative-config, except for numbers: this parser
// only knows that they are numbers.
func compareJSON(t *testing.T, line, got string, want json.RawMessage) {
	t.Helper()
	if got == "" || got == "None" {
		got = "null"
	}
	if want == nil {
		want = json.RawMessage("null")
	}
	var one, two any
	if err := errors.Join(json.Unmarshal([]byte(got), &one), json.Unmarshal(want, &two)); err != nil {
		t.Errorf("%s: %v", line, err)
		return
	}
	if diff := cmp.Diff(numberless(two), numberless(one)); diff != "" {
		t.Errorf("%s: --speculative-config: %s", line, diff)
	}
}

func numberless(v any) any {
	switch v := v.(type) {
	case map[string]any:
		for k, inner := range v {
			v[k] = numberless(inner)
		}
	case float64, bool:
		return 0
	}
	return v
}

func testConfig(file string) ([]byte, error) {
	return os.ReadFile(filepath.Join("testdata/commands", file))
}

// For each program in the table, each release that has it can be told apart.
func TestOptions(t *testing.T) {
	all, err := parseOptions("program a x\nprogram b y\nrelease 0 1.0\nrelease 1 1.1\n# text\n\noption 1 a01,b0 --model -m\noption 0 b1 --model\n")
	if err != nil {
		t.Fatal(err)
	}
	model := option{name: "--model", arity: '1'}
	at := func(o option, in releases) option { o.releases = in; return o }
	want := map[string]options{
		"x": {releases: []string{"1.0", "1.1"}, byName: map[string][]option{"--model": {at(model, 3)}, "-m": {at(model, 3)}}},
		"y": {releases: []string{"1.0", "1.1"}, byName: map[string][]option{
			"--model": {at(model, 1), {name: "--model", arity: '0', releases: 2}}, "-m": {at(model, 1)},
		}},
	}
	if diff := cmp.Diff(want, all, cmp.AllowUnexported(options{}, option{})); diff != "" {
		t.Error(diff)
	}
	if opt, ok := all["y"].exact("--model", all["y"].all()); ok {
		t.Errorf("got %+v of releases that differ", opt)
	}
	for _, text := range []string{"option 1 a0 --x\n", "option 12 a0 --x\n", "program ab x\n", "x\n"} {
		if got, err := parseOptions(text); err == nil {
			t.Errorf("%q: got %v", text, got)
		}
	}
	if got, err := programOptions("none"); err == nil {
		t.Errorf("got %v", got)
	}
}
