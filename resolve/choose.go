// SPDX-FileCopyrightText: The wcache authors
// SPDX-License-Identifier: MIT

package resolve

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/wcache/wcache/fingerprint"
	"github.com/wcache/wcache/weights"
	"github.com/wcache/wcache/weights/index"
)

// Sure says why it is certain which directory a key means. The checkpoint hash of a key
// covers headers and not data, so several directories may fit.
type Sure string

// The reasons that make a directory certain, the strongest first.
const (
	ByEngine   Sure = "engine"   // the engine was started with it
	ByName     Sure = "name"     // the key names it, or a model id that leads to it
	ByRevision Sure = "revision" // it is the snapshot of the key's revision
	ByPin      Sure = "pin"      // it is pinned
	ByContent  Sure = "content"  // all known directories that fit hold the same model
	ByOnly     Sure = "only"     // no other is known, and every root was searched whole
)

// Text gives the reason in words for people.
func (s Sure) Text() string {
	switch s {
	case ByEngine:
		return "the engine was started with it"
	case ByName:
		return "the engine's key names it"
	case ByRevision:
		return "it is the snapshot of the engine's revision"
	case ByPin:
		return "it is pinned"
	case ByContent:
		return "all directories that fit hold the same"
	case ByOnly:
		return "no other directory that fits is known"
	}
	return string(s)
}

// Index finds model directories by checkpoint hash, as [index.Index] does.
type Index interface {
	Lookup(ctx context.Context, hash string) (index.Answer, error)
	Current(hash string, version uint64) bool
	Gone(hash string) []index.Gone
}

// Started is the model that an engine was started with, read from its process.
type Started struct {
	Name string // as on its command line
	Dir  string // the path by which this process reaches it
	By   string // the process, for people
}

// Choice is the directory that a key means.
type Choice struct {
	Dir  string // absolute, without links
	Sure Sure

	started *Started
	basis   basis
}

// basis records what a choice depends on, if the engine didn't name its model.
type basis struct {
	hash    string // "": nothing
	version uint64 // of the index's answer
	pins    []string
	refs    []string // of hub caches, with the commits that they held
	gone    goneMatters
}

// goneMatters says which directories that went a short time ago another engine may mean.
type goneMatters int

const (
	noneGone     goneMatters = iota
	snapshotGone             // those of hub caches: the key names a revision
	anyGone
)

// of gives those that matter.
func (m goneMatters) of(list []index.Gone) []index.Gone {
	switch m {
	case anyGone:
		return list
	case snapshotGone:
		return slices.DeleteFunc(slices.Clone(list), func(g index.Gone) bool { return !isSnapshot(g.Path) })
	}
	return nil
}

// Choose finds the one directory that a key means. Started is what the engine's
// process says, nil if it says nothing. A lasting refusal is a [*Refusal], a passing
// one an [*Uncertain]; other errors come from the file system.
func Choose(ctx context.Context, o Options, key fingerprint.Key, started *Started) (Choice, error) {
	if started != nil {
		dir, err := real(started.Dir)
		if err != nil {
			return Choice{}, err
		}
		if dir, err = resolvedSince(dir, key.Revision()); err != nil {
			return Choice{}, err
		}
		return Choice{Dir: dir, Sure: ByEngine, started: started}, nil
	}
	name := key.Str("checkpoint")
	if !isHash(name) {
		env := o.Env
		if env == nil {
			env = func(string) string { return "" }
		}
		path, _, err := weights.Locate(name, key.Revision().Exact(), env, o.Roots)
		if err != nil {
			return Choice{}, lasting(err)
		}
		dir, err := real(path)
		return Choice{Dir: dir, Sure: ByName}, err
	}
	answer, err := o.Index.Lookup(ctx, name)
	if err != nil {
		return Choice{}, fmt.Errorf("look up checkpoint %q: %w", name, err)
	}
	c := &chooser{ctx: ctx, o: o, key: key, answer: answer}
	choice, err := c.choose()
	if err != nil {
		return Choice{}, err
	}
	choice.basis = c.basis
	choice.basis.hash, choice.basis.version = name, answer.Version
	return choice, nil
}

// resolvedSince takes a snapshot to which a branch points now. If the key says that the
// branch pointed to another one when the engine asked the hub, it gives that one.
func resolvedSince(dir string, r fingerprint.Revision) (string, error) {
	if r.Commit == "" || !isSnapshot(dir) || filepath.Base(dir) == r.Commit || !ofRepo(dir, r.Repo) {
		return dir, nil
	}
	was := filepath.Join(filepath.Dir(dir), r.Commit)
	if _, err := os.Stat(was); err != nil {
		//diag model COMMIT REASON
		// The engine has resolved its model to this commit of the hub, and the files of the commit
		// can't be used for the given reason. Fetch the model again, and start the engine again.
		return "", &Refusal{
			Field: "revision", Reason: fmt.Sprintf("the engine has commit %s, whose snapshot can't be used: %v", r.Commit, err),
			Hint: "start the engine again, or fetch the model again",
		}
	}
	return was, nil
}

// Named is the choice of a directory that a request names itself.
func Named(path string) (Choice, error) {
	dir, err := real(path)
	return Choice{Dir: dir, Sure: ByName}, err
}

// Still reports whether Choose would come to the same choice. It compares what the choice
// depends on: the index (no directory of the hash came, went or changed), the pins, and
// the branches. It is false for a choice that costs no more to make again.
func (c Choice) Still(o Options) bool {
	b := c.basis
	if b.hash == "" || o.Strict && (c.Sure == ByOnly || c.Sure == ByContent) {
		return false
	}
	if !o.Index.Current(b.hash, b.version) { // which takes over what the kernel has told
		return false
	}
	return o.mayMean(b.gone.of(o.Index.Gone(b.hash))) == nil && slices.Equal(b.pins, RealPins(o.Pins)) && refsAre(b.refs)
}

// Blame makes the error for a [Plan] of this choice that failed. If the engine was started
// with the directory and the key doesn't fit it, the files have changed since.
func (c Choice) Blame(err error) error {
	var no *Refusal
	if c.started == nil || !errors.As(err, &no) || no.Field != "checkpoint" {
		return err
	}
	//diag model PROCESS MODEL REASON
	// The files were replaced since the engine read their headers. Start the engine again.
	return &Refusal{
		Field: "checkpoint",
		Reason: fmt.Sprintf("%s was started with %s, and the files there are not those that the engine has read: %s",
			c.started.By, c.started.Name, no.Reason),
		Hint: "start the engine again",
	}
}

// real is a directory's path without links.
func real(path string) (string, error) {
	dir, err := filepath.EvalSymlinks(path)
	if err == nil {
		dir, err = filepath.Abs(dir)
	}
	if err != nil {
		return "", fmt.Errorf("find model directory: %w", err)
	}
	return dir, nil
}

// RealPins gives the pinned directories without links, in order. It leaves out
// directories that don't exist.
func RealPins(pins []string) []string {
	var list []string
	for _, p := range pins {
		if dir, err := real(p); err == nil {
			list = append(list, dir)
		}
	}
	return list
}

// isHash tells a checkpoint hash, MD5 or SHA-256, from a model's name.
func isHash(s string) bool {
	return (len(s) == 32 || len(s) == 64) && strings.Trim(s, "0123456789abcdef") == ""
}
