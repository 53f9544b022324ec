// SPDX-FileCopyrightText: The wcache authors
// SPDX-License-Identifier: MIT

// Package evidence reads what an engine's process says of the model that it was
// started with: its command line, or that of the vLLM process which started it, its
// environment and its working directory. A key names headers, which two fine-tunes of
// a model share; a command line names a directory.
//
// Nothing is guessed: where a command line could be read in two ways there is no
// evidence, with the reason.
package evidence

import (
	"fmt"
	"os"
	"path"
)

// Evidence is what a process says. It doesn't change, and is safe for concurrent use.
type Evidence struct {
	// PID is the process that says it, 0 if there is none: the one that was asked
	// about, or a parent of it.
	PID int
	// Program is what it runs, such as "vllm serve".
	Program string
	// Command is its command line. It may hold secrets (--api-key).
	Command []string
	// Cwd is its working directory, as the process itself sees it.
	Cwd string
	// Env has the variables that lead to Hugging Face's caches, as far as they are set.
	Env map[string]string
	// DownloadDir is --download-dir, "" without.
	DownloadDir string
	// Model is what the engine serves, and Draft the model that proposes tokens to it.
	Model, Draft Claim

	process process
	offline bool   // HF_HUB_OFFLINE
	scope   bool   // VLLM_USE_MODELSCOPE
	hub     string // the Hugging Face cache, absolute
	noHub   string // why hub isn't certain
}

// Claim is what a process says of one model.
type Claim struct {
	// Name is a path or a model id, as it was given; "" if nothing is certain.
	Name string
	// Revision is a branch, a tag or a commit as it was given, "" without.
	Revision string
	// None is why Name is "", for people.
	None string

	shared bool // a draft from the files of the model itself
}

// variables lead to Hugging Face's caches.
func variables() []string {
	return []string{"HF_HOME", "HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE", "TRANSFORMERS_CACHE", "XDG_CACHE_HOME", "HOME"}
}

func nothing(format string, args ...any) *Evidence {
	none := Claim{None: fmt.Sprintf(format, args...)}
	return &Evidence{Model: none, Draft: none}
}

// Read reads what process pid says, or the nearest of its parents that was started as
// "vllm serve" or "python -m vllm…", as long as only vLLM's own processes lie between
// them. Where there is no evidence both claims say why, without an error. An error is
// an [*Unreadable]: the process has ended, or its data is kept from this one.
//
// The number belongs to one process during the whole of Read. That it did before is
// for the caller to know: a connection whose peer is alive after Read, by a pidfd that
// was opened before it, is of that process.
//
// What is read is bounded, but the kernel may keep its reader waiting, for memory that
// is on a disk and for a file system that hangs: callers put a deadline on it, and on
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

// of reads the evidence of the last process of a chain.
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
// not read. [errors.Is] tells which: fs.ErrPermission, or [ErrGone].
type Unreadable struct {
	PID  int
	What string // what was to be read
	Err  error
}

func (e *Unreadable) Error() string {
	//diag model THING NUMBER REASON
	// The engine has ended, or the service may not read what its process was started with. Run the
	// engine as the same user and outside of a container, or name the directory in `pins`.
	return fmt.Sprintf("read %s of process %d: %v", e.What, e.PID, e.Err)
}

func (e *Unreadable) Unwrap() error { return e.Err }

// ErrGone says that a process has ended, or is another one than a moment ago.
const ErrGone = gone("the process has ended")

type gone string

func (g gone) Error() string { return string(g) }

// Is makes it an os.ErrProcessDone, too.
func (g gone) Is(target error) bool { return target == os.ErrProcessDone }

// Uncertain is the error for a model whose directory can't be told for certain.
type Uncertain struct {
	Name   string // the model, as it was given; "" if that isn't known
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
