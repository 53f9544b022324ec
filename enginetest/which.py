#!/usr/bin/env python3
# SPDX-FileCopyrightText: The wcache authors
# SPDX-License-Identifier: MIT
"""which.py WCACHE CHECKPOINT FOLDER - test which weights the unmodified vLLM gets if several
directories have equal headers, and if a directory changes between two engines.

An engine has to get what its own disk loader makes of its model, or an error, and never
another directory's or an older file's weights. Each request comes from a process of its
own that looks like vLLM's: below a process with the command line, the environment and the
working directory of `vllm serve`, or of a Python program that names no model.

The Python of the engine's test bed runs this, and imports vLLM once: the processes are
forks, which tell the kernel where their command line is. HF_HOME has to be set before.
WCACHE is the program, CHECKPOINT a model, FOLDER an empty folder. Prints one line per
request; the exit status is 0 only if all are right.
"""
import ctypes
import json
import os
import shutil
import struct
import subprocess
import sys
import time
import traceback
from pathlib import Path

import bed
import engine
import hub
import huggingface_hub
import numpy

PR_SET_NAME, PR_SET_MM, PR_SET_MM_MAP = 15, 35, 14  # prctl(2)
OWN, OWN_OR_ERROR = "its own", "its own, or an error"
libc = ctypes.CDLL(None, use_errno=True)
libc.sbrk.restype = ctypes.c_void_p
kept = []  # what the kernel reads command lines from


# ------------------------------------------------------------------ how a process looks
def be_seen_as(name, argv, env):
    """Makes argv and env what /proc shows of this process, as execve would."""
    args = b"".join(os.fsencode(a) + b"\0" for a in argv)
    envs = b"".join(os.fsencode(f"{k}={v}") + b"\0" for k, v in env.items())
    kept.append(ctypes.create_string_buffer(args + envs))
    at = ctypes.addressof(kept[-1])
    field = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
    code, code_end, stack, data, data_end, brk = (int(field[n - 3]) for n in (26, 27, 28, 45, 46, 47))  # proc_pid_stat(5)
    # struct prctl_mm_map of the kernel's prctl.h; no auxiliary vector and no new program.
    table = struct.pack("=12QIi", code, code_end, data, data_end, brk, libc.sbrk(0), stack,
                        at, at + len(args), at + len(args), at + len(args) + len(envs), 0, 0, -1)
    if libc.prctl(PR_SET_MM, PR_SET_MM_MAP, table, len(table), 0) != 0:
        raise OSError(ctypes.get_errno(), "show another command line (a kernel without CONFIG_CHECKPOINT_RESTORE?)")
    libc.prctl(PR_SET_NAME, name.encode())
    if Path("/proc/self/cmdline").read_bytes() != args:
        raise RuntimeError("the kernel shows another command line than it was told")


def serve(*args, cwd="/", model=None, revision=None, worker=None, module=False, hub_url=None):
    """Describes `vllm serve ARGS`. model is the one that vLLM then loads; by default the first argument.
    Without hub_url vLLM is offline, and its key has the path of a snapshot for a model's id."""
    python = os.path.join(sys.prefix, "bin/python")
    start = ["-m", "vllm.entrypoints.openai.api_server"] if module else [os.path.join(sys.prefix, "bin/vllm"), "serve"]
    shown = {k: os.environ[k] for k in ("PATH", "HOME", "HF_HOME") if k in os.environ}
    shown |= dict(HF_ENDPOINT=hub_url) if hub_url else dict(HF_HUB_OFFLINE="1")
    return dict(argv=[python, *start, *map(str, args), "--load-format", "ipc_cache"], cwd=cwd, env=shown,
                model=str(model or args[0]), revision=revision, worker=worker, hub_url=hub_url)


def program(model, revision=None, hub_url=None):
    """Describes a Python program with LLM(model=...)."""
    return dict(argv=None, cwd="/", env={}, model=str(model), revision=revision, worker=None, hub_url=hub_url)


def go_online(url):
    """Does what HF_HUB_OFFLINE=0 and HF_ENDPOINT do if they are set when huggingface_hub is imported."""
    constants = huggingface_hub.constants
    constants.HUGGINGFACE_CO_URL_TEMPLATE = constants.HUGGINGFACE_CO_URL_TEMPLATE.replace(constants.ENDPOINT, url)
    constants.HF_HUB_OFFLINE, constants.ENDPOINT = False, url
    huggingface_hub.hf_api.api.endpoint = url
    os.environ.update(HF_HUB_OFFLINE="0", HF_ENDPOINT=url)


def ask(how, socket):
    """Runs one engine, and returns the test bed's report."""
    options = dict(model=how["model"], socket=socket, timeout=8.0)
    if how["worker"] is not None:
        options.update(tp=2, rank=how["worker"])
    if how["revision"]:
        options["extra_engine_args"] = dict(revision=how["revision"])
    r, w = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(r)
        launch(how, engine.options(options), w)
    os.close(w)
    with os.fdopen(r) as f:
        text = f.read()
    os.waitpid(pid, 0)
    bed.preload()  # import what an engine needs
    return json.loads(text) if text else dict(ok=False, loader=None, error="the engine's process died")


def launch(how, options, w):
    """Becomes the started process, with vLLM's own processes below it; the last is the engine. Doesn't return."""
    try:
        engine.die_with_parent()
        os.chdir(how["cwd"])
        if how["hub_url"]:
            go_online(how["hub_url"])
        if how["argv"]:
            be_seen_as("vllm", how["argv"], how["env"])
            titles = ["VLLM::EngineCore"]
            if how["worker"] is not None:
                titles.append(f"VLLM::Worker_TP{how['worker']}")
            for title in titles:
                pid = os.fork()
                if pid:
                    os.close(w)
                    os.waitpid(pid, 0)
                    os._exit(0)
                engine.die_with_parent()
                be_seen_as(title[:15], [title], {})  # setproctitle writes over the environment
        before = set(sys.modules)
        result = engine.run(options)
        bed.learn(before)
        with os.fdopen(w, "w") as f:
            json.dump(result, f)
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(0)


# ------------------------------------------------------------------ models
def variant(source, target, n):
    """Makes a copy of a model with equal headers, sizes and times, and other weights for each n."""
    shutil.copytree(source, target)
    for path in target.glob("*.safetensors"):
        was = path.stat()
        data = numpy.fromfile(path, dtype=numpy.uint8)
        begin = 8 + int.from_bytes(data[:8].tobytes(), "little")
        data[begin::2] ^= n  # the low bytes of bfloat16
        data.tofile(path)
        os.utime(path, ns=(was.st_atime_ns, was.st_mtime_ns))
    return target


def hub_model(cache, name, source, revisions):
    """Makes a model in a Hugging Face cache: one snapshot per revision; the first is main."""
    folder = cache / ("models--" + name.replace("/", "--"))
    (folder / "refs").mkdir(parents=True)
    (folder / "blobs").mkdir()
    for commit, n in revisions.items():
        snapshot = variant(source, folder / "snapshots" / commit, n)
        for path in list(snapshot.iterdir()):
            blob = folder / "blobs" / hub.etag(path)
            path.rename(blob)
            path.symlink_to(os.path.relpath(blob, snapshot))
    (folder / "refs/main").write_text(next(iter(revisions)))
    return folder


# ------------------------------------------------------------------ asking
class Service:
    """Runs a wcache serve with some roots, and checks what engines get from it."""

    def __init__(self, name, roots, hf_home=None, config=""):
        self.name, self.dir = name, Service.folder / ("service-" + name.replace(",", "").replace(" ", "-"))
        self.dir.mkdir(mode=0o700)
        (self.dir / "wcache.toml").write_text(config)
        self.socket = self.dir / "host.sock"
        env = {k: v for k, v in os.environ.items() if not k.startswith(("HF_", "TRANSFORMERS_", "LD_", "PYTHON"))}
        env["HF_HOME"] = str(hf_home or self.dir)
        args = [Service.wcache, "serve", "--listen", self.socket, "--state", self.dir / "state", "--config", self.dir / "wcache.toml"]
        for root in roots:
            args += ["--root", root]
        self.log = open(self.dir / "log", "w")
        self.process = subprocess.Popen(args, env=env, cwd="/", stderr=self.log, stdin=subprocess.DEVNULL)

    def __enter__(self):
        for _ in range(200):
            if self.socket.exists():
                return self
            time.sleep(0.05)
        raise RuntimeError(f"{self.name}: the service doesn't listen: {(self.dir / 'log').read_text()}")

    def __exit__(self, *_):
        self.process.terminate()
        self.process.wait()
        self.log.close()

    def check(self, what, how, want):
        """Runs and checks one engine. want is OWN if the service can be sure of the directory."""
        result = ask(how, str(self.socket))
        got, text = judge(result)
        good = got == "its own" or want == OWN_OR_ERROR and got == "an error"
        Service.count[good] += 1
        kind = "program" if how["argv"] is None else "serve"
        text = f"\n      {text}" if text and not (good and got == "its own") else ""
        print(f"{'ok  ' if good else 'FAIL'}  {self.name}: {what}, {kind}: {got}" + ("" if good else f", want {want}") + text,
              file=Service.out, flush=True)
        if not good:
            lines = (self.dir / "log").read_text().splitlines()[-5:]
            print(*lines, sep="\n", file=sys.stderr, flush=True)


def judge(r):
    """Returns whose weights an engine got, and the evidence."""
    error = r.get("error") or ""
    if r.get("loader") is None and (error.startswith("CacheConfigMismatchError: ") or "Weight cache daemon error: " in error):
        return "an error", error
    if r.get("loader") == "ipc" and r.get("difference_count") and not error:
        return "ANOTHER'S", f"{r['difference_count']} tensors differ: {r['differences'][0]}"
    if r.get("loader") == "ipc" and r.get("ok") and r.get("mapped", {}).get("tensors"):
        return "its own", ""
    return "broken", error or json.dumps(r)


# ------------------------------------------------------------------ cases
def nested(source, folder):
    """A fine-tune's last state, with an earlier one inside its folder."""
    first = variant(source, folder / "exp1", 1)
    second = variant(source, first / "checkpoint-500", 2)
    config = folder / "serve.yaml"
    config.write_text(f"model: {second}\n")
    with Service("nested", [folder]) as s:
        s.check("exp1", serve(first), OWN)
        s.check("exp1/checkpoint-500", serve(second), OWN)
        s.check("checkpoint-500 in exp1", serve("checkpoint-500", cwd=first), OWN)
        s.check("../exp1/ in exp1", serve("../exp1/", cwd=first), OWN)
        s.check("exp1/checkpoint-500 of rank 1", serve(second, "--tensor-parallel-size", "2", worker=1), OWN)
        s.check("python -m vllm, exp1/checkpoint-500", serve("--model", second, module=True, model=second), OWN)
        s.check("exp1/checkpoint-500 called exp1", serve("--served-model-name", first, "--model", second, model=second), OWN_OR_ERROR)
        s.check("the model in --config", serve("--config", config, model=second), OWN_OR_ERROR)
        s.check("exp1", program(first), OWN_OR_ERROR)
        s.check("exp1/checkpoint-500", program(second), OWN_OR_ERROR)


def unseen(source, folder):
    """Twins in places that a search leaves out."""
    first = variant(source, folder / "a", 1)
    hidden = variant(source, folder / ".old" / "b", 2)
    deep = variant(source, folder / "1/2/3/4/c", 3)
    with Service("unseen", [folder]) as s:
        s.check("a", serve(first), OWN)
        s.check("a hidden folder", program(hidden), OWN_OR_ERROR)
        s.check("a deep folder", program(deep), OWN_OR_ERROR)
        s.check("a hidden folder", serve(hidden), OWN)
        s.check("a deep folder", serve(deep), OWN)


def outside(source, folder):
    """A twin outside the roots. A program that names no model is refused only with identify = "strict"."""
    inside = variant(source, folder / "root" / "a", 1)
    other = variant(source, folder / "elsewhere" / "b", 2)
    with Service("outside", [folder / "root"]) as s:
        s.check("below the root", serve(inside), OWN)
        s.check("below no root", serve(other), OWN_OR_ERROR)
    with Service("outside strict", [folder / "root"], config='identify = "strict"\n') as s:
        s.check("below the root", serve(inside), OWN)
        s.check("below no root", program(other), OWN_OR_ERROR)


def switched(source, folder):
    """A link that changes to another version between two engines."""
    variant(source, folder / "releases" / "v1", 1)
    variant(source, folder / "releases" / "v2", 2)
    link = folder / "current"
    link.symlink_to("releases/v1")
    with Service("switched link", [folder]) as s:
        s.check("current is v1", serve(link), OWN)
        (folder / "next").symlink_to("releases/v2")
        (folder / "next").rename(link)
        s.check("current is v2", serve(link), OWN)
        s.check("current is v2", serve("current", cwd=folder), OWN)
        s.check("current is v2", program(link), OWN_OR_ERROR)


ONE, TWO, THREE = ("1" * 40, "2" * 40, "3" * 40)  # commits


def offline(source, folder):
    """Two snapshots of one repository, without the hub; main moves. Then the daemon has another cache."""
    home, other, name = Path(os.environ["HF_HOME"]), folder / "other", "owner/offline"
    main = hub_model(home / "hub", name, source, {ONE: 1, TWO: 2}) / "refs/main"
    with Service("offline", [home / "hub"], hf_home=home) as s:
        s.check("main", serve(name), OWN)
        s.check("a revision", serve(name, "--revision", TWO, revision=TWO), OWN)
        s.check("main", program(name), OWN_OR_ERROR)
        s.check("a revision", program(name, revision=TWO), OWN_OR_ERROR)
        main.write_text(TWO)
        s.check("main has moved", serve(name), OWN)
        s.check("main has moved", program(name), OWN_OR_ERROR)
    hub_model(other / "hub", name, source, {THREE: 3})
    with Service("offline, another cache", [other / "hub"], hf_home=other) as s:
        s.check("main", serve(name), OWN_OR_ERROR)
    with Service("offline, another cache, strict", [other / "hub"], hf_home=other, config='identify = "strict"\n') as s:
        s.check("main", program(name), OWN_OR_ERROR)


def online(source, folder):
    """The same with the hub, which vLLM asks for main's commit: its key has the model's id and the commit."""
    home, other, name = Path(os.environ["HF_HOME"]), folder / "other", "owner/online"
    hub_model(home / "hub", name, source, {ONE: 1, TWO: 2})
    truth = folder / "truth" / name
    for commit, n in {ONE: 1, TWO: 2}.items():
        variant(source, truth / commit, n)
    (truth / "main").write_text(ONE)
    with subprocess.Popen([sys.executable, hub.__file__, folder / "truth"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as server:
        url = server.stdout.readline().strip()
        with Service("online", [home / "hub"], hf_home=home) as s:
            s.check("main", serve(name, hub_url=url), OWN)
            s.check("a revision", serve(name, "--revision", TWO, revision=TWO, hub_url=url), OWN)
            s.check("main", program(name, hub_url=url), OWN)
            (truth / "main").write_text(TWO)
            s.check("main has moved", serve(name, hub_url=url), OWN)
            s.check("main has moved", program(name, hub_url=url), OWN)
        hub_model(other / "hub", name, source, {THREE: 3})
        with Service("online, another cache", [other / "hub"], hf_home=other) as s:
            s.check("main", serve(name, hub_url=url), OWN_OR_ERROR)
            s.check("main", program(name, hub_url=url), OWN_OR_ERROR)


def versions(source, folder):
    """One directory whose files change between two engines: the second gets the new ones."""

    def directory(model, new):
        model.rename(folder / "was")
        new.rename(model)

    def files(model, new):
        for path in new.iterdir():
            path.rename(model / path.name)

    def in_place(model, new):
        for path in new.glob("*.safetensors"):
            target = model / path.name
            was = target.stat()
            with open(target, "r+b") as f:
                f.write(path.read_bytes())
            os.utime(target, ns=(was.st_atime_ns, was.st_mtime_ns))

    def copied(model, new):
        subprocess.run(["cp", "-a", f"{new}/.", model], check=True)

    for change in directory, files, in_place, copied:
        name = change.__name__.replace("_", " ")
        root = folder / name.replace(" ", "-")
        model = variant(source, root / "model", 1)
        new = variant(source, folder / f"new-{name}", 2)
        with Service(f"versions, {name}", [root]) as s:
            s.check("before", program(model), OWN)
            change(model, new)
            s.check("after", program(model), OWN)
        shutil.rmtree(folder / "was", ignore_errors=True)


def main():
    wcache, checkpoint, folder = sys.argv[1:]
    Service.wcache, Service.folder = os.path.abspath(wcache), Path(folder).resolve()
    Service.count = {True: 0, False: 0}
    Service.out = os.fdopen(os.dup(1), "w")
    os.set_inheritable(Service.out.fileno(), False)
    os.dup2(2, 1)  # vLLM logs to stdout
    bed.preload()
    for case in nested, unseen, outside, switched, offline, online, versions:
        place = Service.folder / case.__name__
        place.mkdir()
        case(Path(checkpoint).resolve(), place)
    print(f"{Service.count[True]} passed, {Service.count[False]} failed", file=Service.out, flush=True)
    return 0 if not Service.count[False] else 1


if __name__ == "__main__":
    status = main()
    sys.stderr.flush()
    os._exit(status)  # as the test bed does
