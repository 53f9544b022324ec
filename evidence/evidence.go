// SPDX-FileCopyrightText: The wcache authors
// SPDX-License-Identifier: MIT

// Package evidence reads which model an engine's process was started with: from its
// command line, or that of the vLLM process which started it, its environment and its
// working directory. A key names headers, which two fine-tunes of a model share; a
// command line names a directory.
//
// The package doesn't guess: if a command line could be read in two ways, there is no
// evidence, and the result says why.
package evidence

import (
	"fmt"
	"os"
	"path"
)

// Evidence is what a process says. It is immutable, and safe for concurrent use.
type Evidence struct {
	// PID is the process that says it: the one that was asked about, or a parent of it;
	// 0 if there is no evidence.
	PID int
	// Program is what the process runs, such as "vllm serve".
	Program string
	// Command is the command line. It may hold secrets (--api-key).
	Command []string
	// Cwd is the working directory, as the process itself sees it.
	Cwd string
	// Env has the variables that decide where Hugging Face's caches are, if they are set.
	Env map[string]string
	// DownloadDir is --download-dir, "" without the option.
	DownloadDir string
	// Model is what the engine serves, and Draft the model that proposes tokens to it.
	Model, Draft Claim

	process process
	offline bool   // HF_HUB_OFFLINE
	scope   bool   // VLLM_USE_MODELSCOPE
	hub     string // the Hugging Face cache, absolute
	noHub   string // why hub isn't certain
}

// Claim is what a process says about one model.
type Claim struct {
	// Name is a path or a model id, as given; "" if it isn't certain.
	Name string
	// Revision is a branch, a tag or a commit as given, "" without one.
	Revision string
	// None is why Name is "", for people.
	None string

	shared bool // the draft's weights are in the files of the model itself
}

// variables are the variables that decide where Hugging Face's caches are.
func variables() []string {
	return []string{"HF_HOME", "HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE", "TRANSFORMERS_CACHE", "XDG_CACHE_HOME", "HOME"}
}

func nothing(format string, args ...any) *Evidence {
	none := Claim{None: fmt.Sprintf(format, args...)}
	return &Evidence{Model: none, Draft: none}
}

// Read reads what process pid says, or the nearest of its parents that was started as
// "vllm serve" or "python -m vllm…", if only vLLM's own processes lie between them. If
// there is no evidence, both claims say why, without an error. An error is an
// [*Unreadable]: the process has ended, or this process may not read its data.
//
// The pid belongs to one process during the whole of Read. The caller has to know that
// it belonged to the same process before: a connection belongs to that process if the
// caller opened a pidfd of its peer before Read, and the peer is still alive after it.
//
// The amount of data is bounded, but the kernel may block the reader, on memory that is
// swapped out or a file system that hangs: callers need a deadline for it, and for
// [Evidence.Locate] too.
func Read(pid int) (*Evidence, error) {
	if pid <= 0 {
		return nothing("the engine's process has no number here: it is in another pid namespace"), nil
	}
	chain, err := ancestry(pid)
	if err != nil {
		return nil, err
	}
	e := nothing("%s", chain.none)
	if chain.none == "" {
		if e, err = of(chain); err != nil {
			return nil, err
		}
	}
	if err := chain.unchanged(); err != nil {
		return nil, err
	}
	return e, nil
}

// of reads the evidence from the last process of a chain.
func of(chain chain) (*Evidence, error) {
	peer, p := chain.processes[0], chain.last()
	if why, err := sameView(peer, p); why != "" || err != nil {
		return nothing("%s", why), err
	}
	vars, err := p.environ()
	if err != nil {
		return nil, err
	}
	if vars == nil {
		return nothing("process %d has an environment of over %d bytes", p.pid, maxText), nil
	}
	cwd, err := p.cwd()
	if err != nil {
		return nil, err
	}
	e := &Evidence{
		PID: p.pid, Program: chain.program.shown, Command: chain.argv, Cwd: cwd, Env: make(map[string]string),
		process: p, offline: vars.offline(), scope: vars.modelScope(),
	}
	for _, name := range variables() {
		if v, ok := vars[name]; ok {
			e.Env[name] = v
		}
	}
	if e.hub, e.noHub = vars.hub(); e.hub != "" && !path.IsAbs(e.hub) {
		e.hub = path.Join(cwd, e.hub)
	}
	said, why := chain.program.read(func(file string) ([]byte, error) { return e.configFile(file) })
	if why == "" && vars["VLLM_MODEL_REDIRECT_PATH"] != "" {
		why = "VLLM_MODEL_REDIRECT_PATH is set, so that the model may be another than the one named"
	}
	if why != "" {
		e.Model.None, e.Draft.None = why, why
		return e, nil
	}
	e.DownloadDir = said.downloadDir
	e.Model, e.Draft = said.claims()
	return e, nil
}

// Unreadable is the error for a process that has ended, or whose data this process may
// not read. [errors.Is] distinguishes them: fs.ErrPermission, or [ErrGone].
type Unreadable struct {
	PID  int
	What string // what could not be read
	Err  error
}

func (e *Unreadable) Error() string {
	//diag model THING NUMBER REASON
	// The engine has ended, or the service may not read what its process was started with. Run the
	// engine as the same user and outside of a container, or name the directory in `pins`.
	return fmt.Sprintf("read %s of process %d: %v", e.What, e.PID, e.Err)
}

func (e *Unreadable) Unwrap() error { return e.Err }

// ErrGone says that a process has ended, or that its pid now belongs to another one.
const ErrGone = gone("the process has ended")

type gone string

func (g gone) Error() string { return string(g) }

// Is makes it equal to os.ErrProcessDone, too.
func (g gone) Is(target error) bool { return target == os.ErrProcessDone }

// Uncertain is the error for a model whose directory isn't certain.
type Uncertain struct {
	Name   string // the model, as given; "" if that isn't known
	Reason string // why, and what to do
}

func (e *Uncertain) Error() string {
	if e.Name == "" {
		//diag - the reason is explained by itself
		return "find the engine's model: " + e.Reason
	}
	//diag - the reason is explained by itself
	return fmt.Sprintf("find model %q: %s", e.Name, e.Reason)
}
