// SPDX-FileCopyrightText: The wcache authors
// SPDX-License-Identifier: MIT

// Package resolve turns an engine's request into the work to load it: a key into a
// model directory, and the directory into a plan. It refuses a request if it can't be
// sure of the directory, because an engine accepts any weights that it is given.
package resolve

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/wcache/wcache/fingerprint"
	"github.com/wcache/wcache/layout"
	"github.com/wcache/wcache/weights"
)

// Refusal is a lasting refusal: asking again with the same key changes nothing until
// the user has followed the hint.
type Refusal struct {
	Field  string // the key's field that caused it
	Reason string // for people, without a full stop
	Hint   string // what to do, "" if nothing helps
}

//diag - the reason is explained by itself

func (r *Refusal) Error() string { return fmt.Sprintf("resolve %s: %s", r.Field, r.Reason) }

// Advice is the hint.
func (r *Refusal) Advice() string { return r.Hint }

// Refusal is the field and the reason.
func (r *Refusal) Refusal() (field, reason string, ok bool) { return r.Field, r.Reason, true }

// Uncertain is the error for a key whose directory can't be determined now. Asking
// again may help: a root is still being searched, or a file is being written.
type Uncertain struct {
	Reason string
	Hint   string
}

//diag - the reason is explained by itself

func (u *Uncertain) Error() string { return "resolve checkpoint: " + u.Reason }

// Advice is the hint.
func (u *Uncertain) Advice() string { return u.Hint }

// Options say where to look and what is allowed.
type Options struct {
	Index  Index               // the model directories that are known
	Roots  []string            // searched for model ids, besides the Hugging Face caches of Env
	Env    func(string) string // leads to the Hugging Face cache; nil: an empty environment
	Pins   []string            // model directories to prefer if several fit
	Strict bool                // a directory isn't certain just because no other is known
	Assume []string            // config.Assume
	Began  time.Time           // when the engine's process began; zero: not known
	CUDA   bool                // engines run on an NVIDIA GPU
	Memory *weights.Memory     // bounds the headers and configurations read; nil: no common limit
}

// Target is what a key means.
type Target struct {
	Dir    *weights.Dir // the caller closes it
	Plan   *layout.Plan
	Loader string // "native"
	Reason string // why this loader
}

// Plan opens the directory that was chosen for a key, checks that it fits the key, and
// plans its load. Lasting errors are [*Refusal]s.
func Plan(o Options, key fingerprint.Key, path string) (*Target, error) {
	dir, err := o.Memory.Open(context.Background(), path) // which waits a minute at most
	if err != nil {
		return nil, lasting(err)
	}
	err = match(key, dir)
	var target *Target
	if err == nil {
		target, err = PlanDir(o, key, dir)
	}
	if err != nil {
		dir.Close()
		return nil, err
	}
	return target, nil
}

// PlanDir plans the load of a directory without checking it against the key.
func PlanDir(o Options, key fingerprint.Key, dir *weights.Dir) (*Target, error) {
	opt, err := native(key, o.Assume)
	if err != nil {
		return nil, err
	}
	opt.CUDA = o.CUDA
	plan, err := layout.New(dir, opt)
	if err != nil {
		return nil, unsupported(err)
	}
	return &Target{
		Dir: dir, Plan: plan, Loader: "native",
		Reason: fmt.Sprintf("%s in %s is built as vLLM %s does", key.Str("model_arch"), key.Str("dtype"), opt.Release),
	}, nil
}

// match gives a [*Refusal] for the first field of the key that certainly contradicts the
// directory, or an [*unknown] for a field that can't be computed. An engine's dtype is an
// option, and says nothing about the directory.
func match(key fingerprint.Key, d *weights.Dir) error {
	var open error
	for _, diff := range fingerprint.Explain(key, d) {
		switch {
		case diff.Field == "dtype":
		case diff.Blame == fingerprint.Unknown:
			if open == nil {
				//diag model VALUE DIRECTORY REASON
				// The directory has the right headers, and its `config.json` has something that
				// wcache does not understand. The reason names it; the engine loads from disk.
				open = &unknown{&Refusal{
					Field:  diff.Field,
					Reason: fmt.Sprintf("the engine has %v, and what %s gives can't be computed: %s", diff.Engine, d.Path, diff.Why),
					Hint:   fmt.Sprintf("wcache explain %s shows every field", d.Path),
				}}
			}
		default:
			//diag model VALUE DIRECTORY VALUE REASON
			// The directory has the right headers, and one field of the key can't come from it: an
			// option of the engine changes the field, or `config.json` was edited or belongs to
			// another model. `wcache explain KEY DIRECTORY` shows all fields.
			return &Refusal{
				Field:  diff.Field,
				Reason: fmt.Sprintf("the engine has %v, %s gives %v: %s", diff.Engine, d.Path, diff.Computed, diff.Why),
				Hint:   fmt.Sprintf("wcache explain %s shows every field", d.Path),
			}
		}
	}
	return open
}

// unknown is a refusal for a field that can't be computed: it excludes no candidate.
type unknown struct{ error }

func (u *unknown) Unwrap() error { return u.error }

// lasting makes a refusal of an error that only a change of the directory can solve.
func lasting(err error) error {
	var missing *weights.NotFound
	if errors.As(err, &missing) {
		return &Refusal{Field: "checkpoint", Reason: missing.Error(), Hint: "download it, or give the engine the model's directory"}
	}
	var several *weights.Ambiguous
	if errors.As(err, &several) {
		return &Refusal{Field: "checkpoint", Reason: several.Error(), Hint: "start the engine with the directory that is meant"}
	}
	var bad *weights.Unusable
	if errors.As(err, &bad) {
		return &Refusal{Field: "checkpoint", Reason: bad.Error()}
	}
	var unreadable *weights.Unreadable
	if errors.As(err, &unreadable) {
		return &Refusal{Field: "checkpoint", Reason: unreadable.Error()}
	}
	return err
}
