// SPDX-FileCopyrightText: The wcache authors
// SPDX-License-Identifier: MIT

package evidence

import (
	"fmt"
	"path"
	"regexp"
	"strings"
)

// program is a program of vLLM that starts engines.
type program struct {
	shown string   // as people type it
	table string   // its name in options.txt
	words int      // how many of args belong to its subcommand
	args  []string // sys.argv[1:]
	none  string   // why its command line says nothing, "" if it may
}

type kind int

const (
	isOther  kind = iota
	isOwn         // a process that vLLM started for itself
	isVLLM        // a program of vLLM's command line
	mainName = "vllm.entrypoints.cli.main"
)

// modules are the programs that "python -m" starts, by their tables in options.txt.
func modules() map[string]string {
	return map[string]string{
		"vllm.entrypoints.openai.api_server":          "api_server",
		"vllm.entrypoints.launchers.api_server.entry": "api_server",
		"vllm.entrypoints.openai.run_batch":           "run_batch",
		"vllm.entrypoints.launchers.run_batch":        "run_batch",
	}
}

var (
	// renamed matches vLLM's names for the processes of an engine (set_process_title of its
	// system_utils.py); VLLM_PROCESS_NAME_PREFIX may replace the beginning.
	renamed = regexp.MustCompile(`^[^/]*::(EngineCore|Worker|APIServer)`)
	// spawned matches a process that Python's multiprocessing has started, before it is renamed.
	spawned = regexp.MustCompile(`^from multiprocessing\.(spawn|forkserver) import `)
	python  = regexp.MustCompile(`^python[0-9.]*[a-z]*$`)
)

// classify tells which program a command line starts.
func classify(argv []string) (program, kind) {
	if len(argv) == 0 {
		return program{}, isOther
	}
	if len(argv) == 1 && renamed.MatchString(argv[0]) {
		return program{}, isOwn
	}
	name := path.Base(argv[0])
	if name == "vllm" {
		return commandLine("vllm", argv[1:]), isVLLM
	}
	if !python.MatchString(name) {
		return program{}, isOther
	}
	run := runs(argv[1:])
	switch {
	case spawned.MatchString(run.code):
		return program{}, isOwn
	case run.module == mainName:
		return commandLine("python -m "+mainName, run.args), isVLLM
	case run.module != "":
		table, ok := modules()[run.module]
		if ok {
			return program{shown: "python -m " + run.module, table: table, args: run.args}, isVLLM
		}
	case path.Base(run.script) == "vllm":
		return commandLine("vllm", run.args), isVLLM
	}
	return program{}, isOther
}

// commandLine is the program of vLLM's own command line, by its subcommand.
func commandLine(shown string, args []string) program {
	p := program{shown: shown, args: args}
	if len(args) == 0 || strings.HasPrefix(args[0], "-") {
		p.none = fmt.Sprintf("%q names no subcommand", shown)
		return p
	}
	p.words = 1
	switch p.shown += " " + args[0]; args[0] {
	case "serve", "run-batch":
		p.table = args[0]
	case "bench":
		p.words = 2
		switch {
		case len(args) == 1:
		case args[1] == "latency" || args[1] == "throughput" || args[1] == "startup" || args[1] == "mm-processor" || args[1] == "forward":
			p.table = "bench-" + args[1]
			fallthrough
		default:
			p.shown += " " + args[1]
		}
	}
	if p.table == "" {
		p.none = fmt.Sprintf("%q is not known to start an engine with a model of its own", p.shown)
	}
	return p
}

// interpreted is what a Python interpreter was told to run: one of the three.
type interpreted struct {
	code, module, script string
	args                 []string // sys.argv[1:]
}

// runs reads Python's own options ("Command line and environment" of its manual): -c and -m
// end them and take the next word, -W and -X have a value, the others don't.
func runs(args []string) interpreted {
	const flags = "bBdEhiIOPqRsStuvVx?"
	for i := 0; i < len(args); i++ {
		arg := args[i]
		switch {
		case arg == "--check-hash-based-pycs":
			i++
			continue
		case arg == "--" || strings.HasPrefix(arg, "--"):
			return interpreted{}
		case arg == "-" || !strings.HasPrefix(arg, "-"):
			return interpreted{script: arg, args: args[i+1:]}
		}
		at := strings.IndexFunc(arg[1:], func(r rune) bool { return !strings.ContainsRune(flags, r) }) + 1
		if at == 0 {
			continue
		}
		option, value := arg[at], arg[at+1:]
		if value == "" {
			if i++; i == len(args) {
				return interpreted{}
			}
			value = args[i]
		}
		switch option {
		case 'W', 'X':
		case 'c':
			return interpreted{code: value, args: args[i+1:]}
		case 'm':
			return interpreted{module: value, args: args[i+1:]}
		default:
			return interpreted{}
		}
	}
	return interpreted{}
}

// describe names a program for people, without its options, which may be secrets.
func describe(argv []string) string {
	if len(argv) == 0 || argv[0] == "" {
		return "a program without a command line"
	}
	name := path.Base(argv[0])
	if python.MatchString(name) {
		switch run := runs(argv[1:]); {
		case run.script != "":
			name += " " + path.Base(run.script)
		case run.module != "":
			name += " -m " + run.module
		case run.code != "":
			name += " -c"
		}
	}
	const most = 100
	if len(name) > most {
		name = name[:most] + "…"
	}
	return fmt.Sprintf("%q", name)
}
