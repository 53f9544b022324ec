// SPDX-FileCopyrightText: The wcache authors
// SPDX-License-Identifier: MIT

package evidence

import (
	"errors"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// What command lines say, of any release: words are divided at spaces, and _ is one.
func TestSays(t *testing.T) {
	const noDraft = "the command line has no --speculative-config"
	is := func(model, revision, downloadDir string) said {
		return said{model: model, revision: revision, downloadDir: downloadDir, speculative: draft{none: noDraft}}
	}
	for _, c := range []struct {
		line string
		want said
		none string
	}{
		{line: "vllm serve /m", want: is("/m", "", "")},
		{line: "/usr/bin/python3.12 -u /venv/bin/vllm serve -tp 2 /m --revision v1 --download_dir=/d", want: is("/m", "v1", "/d")},
		{line: "python -m vllm.entrypoints.cli.main serve m", want: is("m", "", "")},
		{line: "python -m vllm.entrypoints.openai.api_server --model m --rev=v2", want: is("m", "v2", "")},
		{line: "python -Xfrozen_modules=off -um vllm.entrypoints.openai.api_server --model=m", want: is("m", "", "")},
		{line: "python -m vllm.entrypoints.openai.api_server m", none: `"python -m vllm.entrypoints.openai.api_server" names no model`},
		{line: "vllm run-batch -i in -o out --model m", want: is("m", "", "")},
		{line: "vllm bench throughput --model m --num-prompts 10", want: is("m", "", "")},
		{line: "vllm serve", none: `"vllm serve" names no model`},
		{line: "vllm serve --port 1", none: `"vllm serve" names no model`},
		{line: "vllm serve --model", none: "vLLM takes no --model without a model"},
		{line: "vllm serve a b", none: `vLLM takes no word "b" there`},
		{line: "vllm serve a --model b", none: `vLLM takes no word "a" there`},
		{line: "vllm serve m --help", none: "vLLM only prints help"},
		{line: "vllm serve --config model.yaml", want: is("org/from-file", "of-file", "")},
		{line: "vllm serve m --config model.yaml --revision mine", want: is("m", "mine", "")},
		{line: "vllm serve --config plain.yaml", none: `neither the command line nor --config "plain.yaml" names a model`},
		{line: "vllm serve m --config=model.yaml", want: is("m", "", "")},
		{line: "vllm serve m --config none.yaml", none: "open testdata/commands/none.yaml: no such file or directory"},
		{line: "vllm serve --config numbers.yaml", none: "the value of --model can't be told for certain"},
		{line: "vllm serve m --config numbers.yaml", none: "the value of --revision can't be told for certain"},
		{line: "vllm serve --config merge.yaml", none: `--config "merge.yaml": line 2: the key "<<" isn't plain text`},
		{line: "vllm serve --model.x 1", none: "the value of --model can't be told for certain"},
		{line: "vllm serve --enforce-eager.x 1", none: "the model's name can't be told for certain"},

		// An unknown release: only what is certain whatever the option means.
		{line: "vllm serve m --new-flag", want: is("m", "", "")},
		{line: "vllm serve m --new-option 1 --revision v1", want: is("m", "v1", "")},
		{line: "vllm serve --new-option=1 m --revision v1", want: is("m", "v1", "")},
		{line: "vllm serve --new-option m", none: `the option "--new-option" is not known: a word behind it may be its value or the model`},
		{line: "vllm serve --new-option 1 m", none: `the option "--new-option" is not known: a word behind it may be its value or the model`},
		{line: "vllm serve --new-option --port 1 m", want: is("m", "", "")},
		{line: "vllm serve --new-option --model m", want: is("m", "", "")},
		{line: "vllm serve --new-option m --model m", want: is("m", "", "")},
		{line: "vllm serve --new-option x --model=m", want: is("m", "", "")},
		{line: "vllm serve m --new-option 1 --revis v1", none: `the option "--revis" may stand for --revision`},
		{line: "vllm serve m --new-option 1 --gpu-memory-util 1", want: is("m", "", "")},
		{line: "python -m vllm.entrypoints.openai.api_server --new x --model m", want: is("m", "", "")},
		{line: "vllm bench latency --new x --model m", want: is("m", "", "")},
		{line: "vllm bench latency --new x", none: `"vllm bench latency" names no model`},
		{line: "vllm serve m -x 1 -y", want: is("m", "", "")},
		{line: "vllm serve m --enforce-eager 1 --new", none: `vLLM takes no word "1" there`},
	} {
		argv := strings.Split(c.line, " ")
		for i, arg := range argv {
			argv[i] = strings.ReplaceAll(arg, "·", " ")
		}
		p, kind := classify(argv)
		if kind != isVLLM || p.none != "" {
			t.Errorf("%s: got %+v", c.line, p)
			continue
		}
		got, none := p.read(testConfig)
		if c.none != "" {
			c.want = said{}
			got = said{}
		}
		if diff := cmp.Diff(c.want, got, cmp.AllowUnexported(said{}, draft{})); diff != "" || none != c.none {
			t.Errorf("%s: none %q, want %q: %s", c.line, none, c.none, diff)
		}
	}
}

func TestDraft(t *testing.T) {
	for _, c := range []struct {
		args []string
		want draft
	}{
		{[]string{"-sc", `{"model":"d","revision":"r","num_speculative_tokens":1}`}, draft{model: "d", revision: "r"}},
		{[]string{"--speculative-config.model", "d", "--speculative-config.num-speculative-tokens", "1"}, draft{model: "d"}},
		{[]string{"--speculative-config", `{"model":"d"}`, "--speculative-config.revision", "r"}, draft{none: `--speculative-config names no model for method ""`}},
		{[]string{"--spec-model", "d", "--spec-method", "eagle3", "--spec-tokens", "2"}, draft{model: "d"}},
		{[]string{"--spec-model", "d", "-sc", `{"revision":"r"}`}, draft{model: "d", revision: "r"}},
		{[]string{"--spec-model", "d", "-sc", `{"model":"d"}`}, draft{none: `vLLM takes no --spec-model beside "model" in --speculative-config`}},
		{[]string{"-sc", `{"method":"mtp","num_speculative_tokens":1}`}, draft{shared: true}},
		{[]string{"-sc", `{"method":"deepseek_mtp","num_speculative_tokens":1,"revision":"r"}`}, draft{shared: true, revision: "r"}},
		{[]string{"-sc", `{"method":"mtp","num_speculative_tokens":1,"model":"d"}`}, draft{model: "d"}},
		{[]string{"-sc", `{"method":"mtp"}`}, draft{none: `--speculative-config names no model for method "mtp"`}},
		{[]string{"-sc", `{"method":"ngram","model":"x"}`}, draft{none: `speculative method "ngram" has no model of its own`}},
		{[]string{"-sc", `{"method":"suffix"}`}, draft{none: `speculative method "suffix" has no model of its own`}},
		{[]string{"-sc", `{"model":"[ngram]"}`}, draft{none: `speculative model "[ngram]" is a method, not a model`}},
		{[]string{"-sc", `{"model":"pkg.Proposer"}`}, draft{none: `speculative model "pkg.Proposer" is a method, not a model`}},
		{[]string{"-sc", `{"model":"Qwen2.5-0.5B"}`}, draft{model: "Qwen2.5-0.5B"}},
		{[]string{"-sc", `{"model":7}`}, draft{none: `"model" in --speculative-config isn't plain text`}},
		{[]string{"-sc", `{"model":"\ud800"}`}, draft{none: `"model" in --speculative-config isn't plain text`}},
		{[]string{"-sc", "{\"model\":\"\xff\"}"}, draft{none: "--speculative-config can't be read as a JSON object"}},
		{[]string{"--speculative-config.model", "7k"}, draft{none: `"model" in --speculative-config isn't plain text`}},
		{[]string{"--speculative-config.model", "NaN"}, draft{none: `"model" in --speculative-config isn't plain text`}},
		{[]string{"-sc", `{"draft-model":1,"draft_model":2}`}, draft{none: `--speculative-config has "draft_model" twice`}},
		{[]string{"-sc", `{"model":"d","draft_load_config":{"download_dir":"/x"}}`}, draft{none: "--speculative-config has a draft_load_config, which may lead to another directory"}},
		{[]string{"-sc", `[]`}, draft{none: "--speculative-config can't be read as a JSON object"}},
		{[]string{"-sc", "None"}, draft{none: "the command line has no --speculative-config"}},
		{[]string{"--config", "nested.yaml"}, draft{model: "org/draft", revision: "1.0"}},
	} {
		p := commandLine("vllm", append([]string{"serve", "m"}, c.args...))
		got, none := p.read(testConfig)
		if got.model != "m" || none != "" || got.speculative != c.want {
			t.Errorf("%q: got %+v and %q, want %+v", c.args, got, none, c.want)
		}
	}
}

// Values of a YAML file are read as PyYAML reads them, or are uncertain.
func TestConfigWords(t *testing.T) {
	known := func(name string) bool { return name == "--no-b" }
	exact := func(texts ...string) (list []word) {
		for _, text := range texts {
			list = append(list, word{text: text})
		}
		return list
	}
	for _, c := range []struct {
		text string
		want []word
		err  string
	}{
		{"a: x\nb: false\nc: no\nd: yes\n", exact("--a", "x", "--no-b", "--d"), ""},
		{"a: 'yes'\nb: \"7\"\nc: 12\nd: |\n  two\n  lines\n", exact("--a", "yes", "--b", "7", "--c", "12", "--d", "two\nlines\n"), ""},
		{"a:\nb: ~\n", exact("--a", "None", "--b", "None"), ""},
		{"a: [x, 1]\nb: []\n", exact("--a", "x", "1"), ""},
		{"a: x\na: z\nb: w\n", exact("--a", "z", "--b", "w"), ""},
		{"a: &n x\nb: *n\n", exact("--a", "x", "--b", "x"), ""},
		{"a: 1.5\n", []word{{text: "--a"}, {text: "1.5", made: true}}, ""},
		{"a: 12:30\n", []word{{text: "--a"}, {text: "12:30", made: true}}, ""},
		{"a: 2024-01-02\n", []word{{text: "--a"}, {text: "2024-01-02", made: true}}, ""},
		{"a: !!str 1.5\n", []word{{text: "--a"}, {text: "1.5", made: true}}, ""},
		{"a: [{x: y}, true]\n", []word{{text: "--a"}, {text: "{}", made: true}, {text: "{}", made: true}}, ""},
		{"a: {x: y, n: 3, z: null, l: [1]}\n", []word{{text: "--a"}, {text: `{"l":0,"n":0,"x":"y","z":null}`, made: true}}, ""},
		{"a: 0123abcd\nb: ./m\nc: v1.5\nd: 1e5\n", []word{{text: "--a"}, {text: "0123abcd"}, {text: "--b"}, {text: "./m"}, {text: "--c"}, {text: "v1.5"}, {text: "--d"}, {text: "1e5", made: true}}, ""},
		{"- a\n", nil, "holds no mapping"},
		{"", nil, "isn't YAML: EOF"},
		{"a: x\n---\nb: y\n", nil, "holds more than one document"},
		{"yes: x\n", nil, `line 1: the key "yes" isn't plain text`},
		{"1.5: x\n", nil, `line 1: the key "1.5" isn't plain text`},
		{"a: {? {b: c} : d}\n", nil, `line 1: the key "" isn't plain text`},
		{"a: " + strings.Repeat("{a: ", 100) + "x" + strings.Repeat("}", 100), nil, "line 1: is nested too deep"},
	} {
		got, err := configWords([]byte(c.text), known)
		if err == nil {
			err = errors.New("")
		}
		if diff := cmp.Diff(c.want, got, cmp.AllowUnexported(word{})); diff != "" || err.Error() != c.err {
			t.Errorf("%q: %v, want %s: %s", c.text, err, c.err, diff)
		}
	}
}

func TestClassify(t *testing.T) {
	for _, c := range []struct {
		argv []string
		kind kind
		none string
	}{
		{[]string{"VLLM::EngineCore"}, isOwn, ""},
		{[]string{"VLLM::EngineCore_DP0"}, isOwn, ""},
		{[]string{"VLLM::Worker_TP0"}, isOwn, ""},
		{[]string{"mine::Worker"}, isOwn, ""},
		{[]string{"VLLM::APIServer_0"}, isOwn, ""},
		{[]string{"VLLM::EngineCore", "x"}, isOther, ""},
		{[]string{"ray::RayWorkerWrapper"}, isOther, ""},
		{[]string{"python", "-c", "from multiprocessing.spawn import spawn_main; spawn_main(tracker_fd=5, pipe_handle=7)", "--multiprocessing-fork"}, isOwn, ""},
		{[]string{"python", "-c", "import vllm"}, isOther, ""},
		{[]string{"python", "program.py", "serve", "m"}, isOther, ""},
		{[]string{"python", "-m", "program"}, isOther, ""},
		{[]string{"bash", "/venv/bin/vllm", "serve", "m"}, isOther, ""},
		{[]string{"python", "-W", "vllm", "serve"}, isOther, ""},
		{[]string{"python", "-W", "ignore", "-Xdev", "-bb", "vllm", "serve", "m"}, isVLLM, ""},
		{[]string{"python", "-mvllm.entrypoints.cli.main", "serve", "m"}, isVLLM, ""},
		{[]string{"python", "--check-hash-based-pycs", "never", "vllm", "serve", "m"}, isVLLM, ""},
		{[]string{"python", "-m"}, isOther, ""},
		{[]string{"python", "-Z", "vllm"}, isOther, ""},
		{[]string{"python", "--help"}, isOther, ""},
		{[]string{"python"}, isOther, ""},
		{[]string{""}, isOther, ""},
		{nil, isOther, ""},
		{[]string{"vllm"}, isVLLM, `"vllm" names no subcommand`},
		{[]string{"vllm", "--omni", "serve"}, isVLLM, `"vllm" names no subcommand`},
		{[]string{"vllm", "bench", "serve", "--model", "m"}, isVLLM, `"vllm bench serve" is not known to start an engine with a model of its own`},
		{[]string{"vllm", "bench"}, isVLLM, `"vllm bench" is not known to start an engine with a model of its own`},
		{[]string{"vllm", "bench", "latency"}, isVLLM, ""},
		{[]string{"vllm", "preload", "--model", "m"}, isVLLM, `"vllm preload" is not known to start an engine with a model of its own`},
	} {
		if got, kind := classify(c.argv); kind != c.kind || got.none != c.none {
			t.Errorf("%q: got %+v, kind %d", c.argv, got, kind)
		}
	}
}

// Descriptions leave out options, which may be secrets.
func TestDescribe(t *testing.T) {
	for want, argv := range map[string][]string{
		`"python3 prog.py"`:                   {"/usr/bin/python3", "-u", "/home/me/prog.py", "--api-key", "secret"},
		`"python -m mod"`:                     {"python", "-m", "mod", "secret"},
		`"python -c"`:                         {"python", "-c", "secret"},
		`"bash"`:                              {"/bin/bash", "-c", "secret"},
		"a program without a command line":    {""},
		`"` + strings.Repeat("a", 100) + `…"`: {strings.Repeat("a", 200)},
	} {
		if got := describe(argv); got != want {
			t.Errorf("%q: got %s", argv, got)
		}
	}
}

func TestParseStat(t *testing.T) {
	const rest = " 1 2 3 0 -1 4194304 2060 0 0 0 3 1 0 0 20 0 1 0 170603 17076224"
	for text, want := range map[string]process{
		"12 (vllm) S" + rest:           {pid: 12, start: 170603, state: 'S', parent: 1, session: 3},
		"12 (a) b) S 9 9 (x) S" + rest: {pid: 12, start: 170603, state: 'S', parent: 1, session: 3},
		"12 ()\n(\n) R" + rest + "\n":  {pid: 12, start: 170603, state: 'R', parent: 1, session: 3},
	} {
		if got, err := parseStat([]byte(text)); err != nil || got != want {
			t.Errorf("%q: got %+v, %v", text, got, err)
		}
	}
	for _, text := range []string{"", "12 vllm S" + rest, ")12 (", "12 (vllm) S 1 2 3", "x (vllm) S" + rest, "12 (vllm) SS" + rest, "12 (vllm) S 1 2 3 0 -1 4194304 2060 0 0 0 3 1 0 0 20 0 1 0 -5 0"} {
		if got, err := parseStat([]byte(text)); err == nil {
			t.Errorf("%q: got %+v, want an error", text, got)
		}
	}
}

func TestHub(t *testing.T) {
	const empty = " is set and empty, which Python's libraries treat differently"
	for _, c := range []struct {
		vars      environ
		dir, none string
	}{
		{environ{"HOME": "/h"}, "/h/.cache/huggingface/hub", ""},
		{environ{"HOME": "/h", "HF_HOME": "/hf", "XDG_CACHE_HOME": ""}, "/hf/hub", ""},
		{environ{"HF_HUB_CACHE": "/hub"}, "/hub", ""},
		{environ{"HF_HUB_CACHE": "rel"}, "rel", ""},
		{environ{"HF_HUB_CACHE": "/hub", "TRANSFORMERS_CACHE": "/t"}, "/hub", ""},
		{environ{"HF_HUB_CACHE": "$BIG/hub", "BIG": "/big"}, "/big/hub", ""},
		{environ{"HF_HUB_CACHE": "$BIG/hub", "BIG": ""}, "", "BIG" + empty},
		{environ{"HF_HUB_CACHE": "", "HOME": "/h"}, "", "HF_HUB_CACHE" + empty},
		{environ{"HF_HOME": "~bob/hf"}, "", `HF_HOME is "~bob/hf", below another user's home directory`},
		{environ{}, "", "HOME is not set, and only the engine's own system knows its home directory"},
	} {
		if dir, none := c.vars.hub(); dir != c.dir || none != c.none {
			t.Errorf("%v: got %q, %q", c.vars, dir, none)
		}
	}
}

func TestBelow(t *testing.T) {
	for _, c := range [][3]string{{"/", "/a", "/a"}, {"/jail", "/jail/a/b", "/a/b"}, {"/jail", "/jail", "/"}, {"/jail", "/jailed", ""}, {"/jail", "/", ""}} {
		if got := below(c[0], c[1]); got != c[2] {
			t.Errorf("%q seen from %q: got %q, want %q", c[1], c[0], got, c[2])
		}
	}
}
