# SPDX-FileCopyrightText: The wcache authors
# SPDX-License-Identifier: MIT
"""Records what vLLM's own command line parsers know, for package evidence.

    vllm-options.py dump >RELEASE.json           the options of the installed vLLM
    vllm-options.py merge RELEASE.json... >../evidence/options.txt
    vllm-options.py record CASES.jsonl >RELEASE.jsonl   what that vLLM makes of command lines
    vllm-options.py join RELEASE.jsonl... >../evidence/testdata/commands/recorded.jsonl

dump and record run vLLM's own programs up to the point where they would parse
their arguments; they need no GPU. PYTHONPATH may name an unpacked wheel of another
release: only its Python files are used. merge and join need no vLLM.
A case has a program, by its name below, and argv, the words after it; recorded.jsonl
itself can serve as CASES.jsonl.
"""
import argparse
import contextlib
import io
import json
import os
import re
import sys

# The programs that start an engine, by their names in package evidence: the function
# that parses sys.argv, and the subcommands that come first there.
MAIN = "vllm.entrypoints.cli.main:main"
PROGRAMS = {
    "serve": (MAIN, ["serve"]),
    "run-batch": (MAIN, ["run-batch"]),
    "bench-latency": (MAIN, ["bench", "latency"]),
    "bench-throughput": (MAIN, ["bench", "throughput"]),
    "bench-startup": (MAIN, ["bench", "startup"]),
    "bench-mm-processor": (MAIN, ["bench", "mm-processor"]),
    "bench-forward": (MAIN, ["bench", "forward"]),
    "api_server": ("vllm.entrypoints.launchers.api_server.entry:main", []),
    "run_batch": ("vllm.entrypoints.launchers.run_batch:parse_args", []),
}

# The values that package evidence reads. Only the option of the same name sets each.
WANTED = ["model", "revision", "download_dir", "speculative_config", "spec_method", "spec_model", "spec_tokens"]


class Parser(BaseException):
    """Carries the parser, and its arguments, out of vLLM's own program."""


def pretend():
    """Makes vLLM see a CPU, which needs no driver and no compiled modules: vLLM asks for
    the machine's platform before it knows its options."""
    import vllm.platforms
    from vllm.platforms.cpu import CpuPlatform

    vllm.platforms._current_platform = CpuPlatform()


def parser_of(function, argv):
    """Returns the parser with which function parses sys.argv, and that parser's method."""
    import importlib
    from vllm.utils.argparse_utils import FlexibleArgumentParser

    own = FlexibleArgumentParser.parse_args

    def stop(self, args=None, namespace=None):
        raise Parser(self)

    module, name = function.split(":")
    f = getattr(importlib.import_module(module), name)
    sys.argv = ["vllm", *argv]
    FlexibleArgumentParser.parse_args = stop
    try:
        f()
    except Parser as p:
        return p.args[0], own
    finally:
        FlexibleArgumentParser.parse_args = own
    raise SystemExit(f"{function} parsed nothing")


def subparser(parser, words):
    for word in words:
        actions = [a for a in parser._actions if isinstance(a, argparse._SubParsersAction)]
        if len(actions) != 1 or word not in actions[0].choices:
            return None
        parser = actions[0].choices[word]
    return parser


def describe(parser):
    options, positional = {}, []
    for action in parser._actions:
        nargs = 1 if action.nargs is None else action.nargs
        if not action.option_strings:
            positional.append([action.dest, nargs])
    for string, action in parser._option_string_actions.items():
        options.setdefault(id(action), (action, []))[1].append(string)
    rows = []
    for action, strings in options.values():
        nargs = 1 if action.nargs is None else action.nargs
        if nargs == argparse.REMAINDER or nargs == argparse.PARSER:
            raise SystemExit(f"{strings}: nargs {nargs} is not known")
        name = "--" + action.dest.replace("_", "-")
        if action.dest in WANTED and (name not in strings or not isinstance(action, argparse._StoreAction) or nargs != 1):
            raise SystemExit(f"{strings}: sets {action.dest} in a way that package evidence doesn't know")
        rows.append([sorted(strings, key=lambda s: (not s.startswith("--"), s)), str(nargs)])
    if parser._has_negative_number_optionals:
        raise SystemExit("options that look like negative numbers")
    return {"options": rows, "positional": positional}


def quiet():
    """Returns the file for results, and sends standard output, vLLM's log, to standard error."""
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    return out


def dump():
    import importlib.metadata
    out = quiet()
    pretend()
    programs = {}
    for name, (function, words) in PROGRAMS.items():
        parser = subparser(parser_of(function, words)[0], words)
        if parser is not None:
            programs[name] = describe(parser)
    json.dump({"release": importlib.metadata.version("vllm"), "programs": programs}, out, indent=1)


def merge(paths):
    releases = {}
    for path in paths:
        with open(path) as f:
            one = json.load(f)
        releases[one["release"]] = one["programs"]
    order = sorted(releases, key=lambda r: [int(n) for n in r.split(".")])
    rows = {}
    for release in order:
        for program, p in releases[release].items():
            want = [["model_tag", "?"]] if program in ("serve", "api_server") else []
            if p["positional"] != want:
                raise SystemExit(f"{release} {program}: positionals are {p['positional']}")
            for strings, nargs in p["options"]:
                rows.setdefault((tuple(strings), nargs), {}).setdefault(program, []).append(release)
    print("# SPDX-FileCopyrightText: The wcache authors")
    print("# SPDX-License-Identifier: MIT")
    print("#")
    print("# Options of vLLM's programs that start an engine, written by tools/vllm-options.py.")
    print("# A line: how many words follow (as argparse counts: a number, ?, * or +), in which")
    print("# programs and releases (by the letters and digits below), and what it is called.")
    letters = {}
    for i, program in enumerate(PROGRAMS):
        letters[program] = chr(ord("a") + i)
        print("program", letters[program], program)
    digits = {r: str(i) for i, r in enumerate(order)}
    for r in order:
        print("release", digits[r], r)
    for (strings, nargs), where in sorted(rows.items(), key=lambda r: r[0]):
        by = {}  # the programs that have the option in the same releases
        for program, has in where.items():
            by.setdefault("".join(digits[r] for r in has), []).append(letters[program])
        places = ",".join("".join(sorted(programs)) + releases for releases, programs in sorted(by.items()))
        print("option", nargs, places, *strings)


def result(program, parser, parse, argv):
    """Returns what vLLM makes of a command line: the values, or why it ends."""
    said = io.StringIO()
    try:
        with contextlib.redirect_stderr(said), contextlib.redirect_stdout(said):
            args = parse(parser, list(argv))
    except SystemExit as e:
        text = (said.getvalue().strip().splitlines() or [str(e)])[-1]
        return {"ends": re.sub(r" at 0x[0-9a-f]+", "", text)}
    except Exception as e:
        return {"ends": f"{type(e).__name__}: {e}"}
    # ServeSubcommand.cmd does this, and the other programs don't.
    if program == "serve" and args.model_tag is not None:
        args.model = args.model_tag
    return {name: getattr(args, name) for name in WANTED if getattr(args, name, None) is not None}


def record(path):
    import importlib.metadata
    import logging
    out = quiet()
    pretend()
    logging.disable(logging.CRITICAL)
    release = importlib.metadata.version("vllm")
    with open(path) as f:
        cases = [json.loads(line) for line in f]
    parsers = {}
    os.chdir(os.path.dirname(os.path.abspath(path)))  # configuration files lie there
    for case in cases:
        program, argv = case["program"], case["argv"]
        if program not in PROGRAMS:
            raise SystemExit(f"no program {program}")
        function, words = PROGRAMS[program]
        if program not in parsers:
            parsers[program] = parser_of(function, words)
        if subparser(parsers[program][0], words) is None:
            continue
        sys.argv = ["vllm", *words, *argv]
        got = result(program, *parsers[program], words + argv)
        print(json.dumps({"release": release, "program": program, "argv": argv, "got": got}, allow_nan=False), file=out)


def join(paths):
    """Writes one line per case, with the results, each with the releases that agree on it."""
    cases = {}
    for path in paths:
        with open(path) as f:
            for line in map(json.loads, f):
                results = cases.setdefault(json.dumps([line["program"], line["argv"]]), {})
                results.setdefault(json.dumps(line["got"]), []).append(line["release"])
    for case, results in cases.items():
        program, argv = json.loads(case)
        got = [{"releases": sorted(releases), **json.loads(result)} for result, releases in results.items()]
        print(json.dumps({"program": program, "argv": argv, "got": got}))


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["dump"]:
            dump()
        case ["merge", *paths] if paths:
            merge(paths)
        case ["record", path]:
            record(path)
        case ["join", *paths] if paths:
            join(paths)
        case _:
            raise SystemExit(__doc__)
