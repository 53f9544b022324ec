// SPDX-FileCopyrightText: The wcache authors
// SPDX-License-Identifier: MIT

// Package resolve turns what an engine asks for into what has to be loaded: a
// key into a model directory, and the directory into a plan. It says no where it
// can't be sure, because an engine takes any weights that it is given.
package resolve

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"strings"

	"github.com/wcache/wcache/fingerprint"
	"github.com/wcache/wcache/layout"
	"github.com/wcache/wcache/weights"
)

// Refusal is a no that lasts: asking again with the same key changes nothing
// until somebody has done what the hint says.
type Refusal struct {
	Field  string // the key's field that it hangs on
	Reason string // for people, without a full stop
	Hint   string // what to do, "" where nothing helps
}

func (r *Refusal) Error() string { return fmt.Sprintf("resolve %s: %s", r.Field, r.Reason) }

// Options say where to look and what is allowed.
type Options struct {
	Index  *weights.Index      // the model directories that are known
	Roots  []string            // searched for model ids, beside the Hugging Face caches of Env
	Env    func(string) string // leads to the Hugging Face cache; nil: an empty environment
	Pins   []string            // model directories that are meant where several fit
	Assume []string            // config.Assume
	CUDA   bool                // engines run on an NVIDIA GPU
}

// Target is what to load for a key.
type Target struct {
	Dir    *weights.Dir
	Plan   *layout.Plan
	Loader string // "native"
	Reason string // why this loader
	Pinned bool
}

// Resolve finds the directory that a key means and plans its rank. The error is
// a [*Refusal] where asking again is of no use. It reads headers and, where two
// directories have equal headers, compares their data; it stops early when ctx
// is done.
func Resolve(ctx context.Context, o Options, key fingerprint.Key) (*Target, error) {
	dir, err := Directory(ctx, o, key)
	if err != nil {
		return nil, err
	}
	return Plan(o, key, dir)
}

// Directory is Resolve without the plan.
func Directory(ctx context.Context, o Options, key fingerprint.Key) (*weights.Dir, error) {
	dir, err := find(ctx, o, key)
	if err != nil {
		return nil, err
	}
	if err := match(key, dir); err != nil {
		return nil, err
	}
	return dir, nil
}

// Plan chooses the loader for a key whose directory is known, and plans.
func Plan(o Options, key fingerprint.Key, dir *weights.Dir) (*Target, error) {
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
		Dir: dir, Plan: plan, Loader: "native", Pinned: Pinned(o.Pins, dir.Path),
		Reason: fmt.Sprintf("%s in %s is built as vLLM %s does", key.Str("model_arch"), key.Str("dtype"), opt.Release),
	}, nil
}

// find gives the one directory that a key means.
func find(ctx context.Context, o Options, key fingerprint.Key) (*weights.Dir, error) {
	name := key.Str("checkpoint")
	if !isHash(name) {
		return locate(o, key, name)
	}
	paths, err := o.Index.Lookup(name)
	if err != nil {
		return nil, fmt.Errorf("look up checkpoint %q: %w", name, err)
	}
	if len(paths) == 0 {
		return nil, unknown(o, name)
	}
	var dirs []*weights.Dir
	var no error
	for _, p := range paths {
		d, err := weights.Open(p)
		if err == nil {
			err = match(key, d)
		} else {
			err = unusable(err)
		}
		if err != nil {
			no = errors.Join(no, err)
			continue
		}
		dirs = append(dirs, d)
	}
	if len(dirs) == 0 {
		return nil, only(no)
	}
	return one(ctx, o, dirs)
}

// one chooses among directories that fit a key alike: the pinned one, else any
// if all hold the same data.
func one(ctx context.Context, o Options, dirs []*weights.Dir) (*weights.Dir, error) {
	chosen := slices.DeleteFunc(slices.Clone(dirs), func(d *weights.Dir) bool { return !Pinned(o.Pins, d.Path) })
	if len(chosen) == 0 {
		chosen = dirs
	}
	for _, d := range chosen[1:] {
		if err := ctx.Err(); err != nil {
			return nil, fmt.Errorf("compare model directories: %w", err)
		}
		same, err := weights.SameContent(chosen[0], d)
		if err != nil {
			return nil, fmt.Errorf("compare model directories: %w", err)
		}
		if !same {
			var list []string
			for _, d := range chosen {
				list = append(list, d.Path)
			}
			return nil, &Refusal{
				Field:  "checkpoint",
				Reason: fmt.Sprintf("%d model directories have the same headers and different weights: %s", len(chosen), strings.Join(list, ", ")),
				Hint:   fmt.Sprintf("name the one that is meant in wcache.toml, such as: pins = [%q]", list[0]),
			}
		}
	}
	return chosen[0], nil
}

// match compares what can be computed of a directory with the key. A dtype that
// differs says nothing about the directory: it is an option of the engine, and
// the plan casts or refuses.
func match(key fingerprint.Key, d *weights.Dir) error {
	for _, diff := range fingerprint.Explain(key, d) {
		if diff.Field != "dtype" {
			return &Refusal{
				Field:  diff.Field,
				Reason: fmt.Sprintf("the engine has %v, %s gives %v: %s", diff.Engine, d.Path, diff.Computed, diff.Why),
				Hint:   fmt.Sprintf("wcache explain %s shows every field", d.Path),
			}
		}
	}
	return nil
}

func locate(o Options, key fingerprint.Key, name string) (*weights.Dir, error) {
	env := o.Env
	if env == nil {
		env = func(string) string { return "" }
	}
	path, _, err := weights.Locate(name, key.Str("revision"), env, o.Roots)
	if err != nil {
		return nil, unusable(err)
	}
	d, err := weights.Open(path)
	if err != nil {
		return nil, unusable(err)
	}
	return d, nil
}

func unknown(o Options, hash string) error {
	r := &Refusal{
		Field:  "checkpoint",
		Reason: fmt.Sprintf("no model directory with the checkpoint hash %s is known", hash),
		Hint:   "add its folder to roots in wcache.toml, or run: wcache warm DIR",
	}
	problems := slices.DeleteFunc(o.Index.Problems(), func(err error) bool { return o.isMissingHub(err) })
	if len(problems) > 0 {
		r.Reason += fmt.Sprintf("; %d directories could not be read, the first: %v", len(problems), problems[0])
	}
	return r
}

// isMissingHub reports whether a problem is only that this user has no Hugging
// Face cache, which is looked through without anybody having asked for it.
func (o Options) isMissingHub(err error) bool {
	if o.Env == nil || !errors.Is(err, fs.ErrNotExist) {
		return false
	}
	return slices.ContainsFunc(weights.HubCaches(o.Env), func(hub string) bool { return strings.Contains(err.Error(), hub) })
}

// unusable makes a Refusal of errors that stay until somebody acts.
func unusable(err error) error {
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
	return err
}

// only reduces joined errors to the single one there is, if so: callers look at
// its type.
func only(err error) error {
	if many, ok := err.(interface{ Unwrap() []error }); ok {
		list := many.Unwrap()
		if len(list) == 1 {
			return list[0]
		}
		r := &Refusal{Field: "checkpoint", Reason: fmt.Sprintf("%d model directories have these headers and none fits", len(list))}
		for _, e := range list {
			var one *Refusal
			if !errors.As(e, &one) {
				return err
			}
			r.Field, r.Hint = one.Field, one.Hint
			r.Reason += "; " + one.Reason
		}
		return r
	}
	return err
}

// Pinned reports whether a directory is one of those that are pinned.
func Pinned(pins []string, dir string) bool {
	return slices.ContainsFunc(pins, func(p string) bool { return SameDir(p, dir) })
}

// SameDir reports whether two paths lead to one directory.
func SameDir(a, b string) bool {
	if a == b {
		return true
	}
	x, err := os.Stat(a)
	if err != nil {
		return false
	}
	y, err := os.Stat(b)
	return err == nil && os.SameFile(x, y)
}

// isHash reports whether a checkpoint is a hash of headers: md5, or sha256 on a
// FIPS machine, in lower-case hex.
func isHash(s string) bool {
	return (len(s) == 32 || len(s) == 64) && strings.Trim(s, "0123456789abcdef") == ""
}
