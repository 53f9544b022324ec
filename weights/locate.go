// SPDX-FileCopyrightText: The wcache authors
// SPDX-License-Identifier: MIT

package weights

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
)

// NotFound is the error for a model that isn't on this machine, or isn't named so
// that it can be found.
type NotFound struct {
	Name     string
	Revision string
	Reason   string   // why, and what to do
	Tried    []string // paths that were looked at, in order
}

func (e *NotFound) Error() string {
	name := fmt.Sprintf("%q", e.Name)
	if e.Revision != "" {
		name += fmt.Sprintf(" at revision %q", e.Revision)
	}
	text := fmt.Sprintf("find model %s: %s", name, e.Reason)
	if len(e.Tried) > 0 {
		text += fmt.Sprintf("; tried %q", e.Tried)
	}
	return text
}

// Locate finds the directory of a model: an absolute path, or a model id in the
// Hugging Face caches that env leads to (see [HubCaches]). A revision is a branch,
// a tag or a commit, "" for main; it has no meaning for a path. tried are the paths
// that were looked at, in order.
//
// Other paths are refused: an engine means them relative to its own working
// directory, and vLLM takes "a/b" for a model id unless it is there.
func Locate(nameOrPath, revision string, env func(string) string) (dir string, tried []string, err error) {
	if filepath.IsAbs(nameOrPath) {
		dir = filepath.Clean(nameOrPath)
		info, err := os.Stat(dir)
		switch {
		case errors.Is(err, fs.ErrNotExist):
			return "", []string{dir}, &NotFound{Name: nameOrPath, Reason: "no such directory", Tried: []string{dir}}
		case err != nil:
			return "", []string{dir}, fmt.Errorf("find model: %w", err)
		case !info.IsDir():
			return "", []string{dir}, &NotFound{Name: nameOrPath, Reason: "is a file; give the directory that it is in", Tried: []string{dir}}
		}
		return dir, []string{dir}, nil
	}
	if !isModelID(nameOrPath) {
		return "", nil, &NotFound{Name: nameOrPath, Reason: "is neither an absolute path nor a model id; relative paths depend on the engine's working directory, so give it the absolute one"}
	}
	var first error
	caches := HubCaches(env)
	if len(caches) == 0 {
		return "", nil, &NotFound{Name: nameOrPath, Revision: revision, Reason: "no Hugging Face cache is known, as there is no home directory; set HOME or HF_HUB_CACHE"}
	}
	for _, cache := range caches {
		dir, paths, err := Snapshot(cache, nameOrPath, revision)
		tried = append(tried, paths...)
		if err == nil {
			return dir, tried, nil
		}
		if first == nil {
			first = err
		}
	}
	var missing *NotFound
	if errors.As(first, &missing) {
		missing.Tried = tried
	}
	return "", tried, first
}

// HubCaches are the directories in which Hugging Face's libraries keep models, in
// the order in which to look. The first follows constants.py of huggingface_hub
// 2.4; TRANSFORMERS_CACHE, which only older releases know, comes after it. What would
// lie in the working directory, which is an engine's, is none of them.
func HubCaches(env func(string) string) []string {
	get := func(name, otherwise string) string {
		v := env(name)
		if v == "" {
			v = otherwise
		}
		return expand(v, env)
	}
	home := get("HF_HOME", filepath.Join(get("XDG_CACHE_HOME", "~/.cache"), "huggingface"))
	hub := get("HF_HUB_CACHE", get("HUGGINGFACE_HUB_CACHE", filepath.Join(home, "hub")))
	var caches []string
	for _, dir := range []string{hub, expand(env("TRANSFORMERS_CACHE"), env)} {
		if dir = filepath.Clean(dir); filepath.IsAbs(dir) && !slices.Contains(caches, dir) {
			caches = append(caches, dir)
		}
	}
	return caches
}

var variable = regexp.MustCompile(`\$(\w+|\{[^}]*\})`)

// expand is os.path.expanduser for one's own home, then os.path.expandvars:
// variables that aren't set stay as they are.
func expand(path string, env func(string) string) string {
	if home := env("HOME"); filepath.IsAbs(home) && (path == "~" || strings.HasPrefix(path, "~/")) {
		path = home + path[1:]
	}
	return variable.ReplaceAllStringFunc(path, func(name string) string {
		if v := env(strings.Trim(name, "${}")); v != "" {
			return v
		}
		return name
	})
}

// modelPart is what a Hugging Face repository or its owner may be called, from
// REPO_ID_REGEX of huggingface_hub's _validators.py.
var modelPart = regexp.MustCompile(`^[A-Za-z0-9_]([A-Za-z0-9._-]{0,94}[A-Za-z0-9_])?$`)

func isModelID(name string) bool {
	parts := strings.Split(name, "/")
	return len(parts) <= 2 && !strings.Contains(name, "--") && !strings.Contains(name, "..") &&
		!slices.ContainsFunc(parts, func(part string) bool { return !modelPart.MatchString(part) })
}

var commit = regexp.MustCompile(`^[0-9a-f]{40}$`)

// Snapshot finds a model id's directory in one Hugging Face cache, as
// huggingface_hub does without a network: a branch or tag leads to a commit
// through the cache's own record, and a commit to a directory. tried is as in
// [Locate]. Nothing is guessed: where the record is missing, a snapshot that is
// there may be another revision's.
func Snapshot(cache, id, revision string) (dir string, tried []string, err error) {
	fail := func(reason string) (string, []string, error) {
		return "", tried, &NotFound{Name: id, Revision: revision, Reason: reason, Tried: tried}
	}
	if !isModelID(id) {
		return fail("is no model id")
	}
	model := filepath.Join(cache, "models--"+strings.ReplaceAll(id, "/", "--"))
	sha := revision
	if !commit.MatchString(sha) {
		if sha == "" {
			sha = "main"
		}
		if !filepath.IsLocal(sha) {
			return fail("its revision is no branch, tag or commit")
		}
		ref := filepath.Join(model, "refs", sha)
		tried = append(tried, ref)
		if sha, err = readRef(ref); errors.Is(err, fs.ErrNotExist) {
			return fail(unrecorded(model))
		}
		if err != nil {
			return "", tried, fmt.Errorf("find model: %w", err)
		}
		if !commit.MatchString(sha) {
			return fail(fmt.Sprintf("%q holds no commit; fetch the model again", ref))
		}
	}
	dir = filepath.Join(model, "snapshots", sha)
	tried = append(tried, dir)
	info, err := os.Stat(dir)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return fail("its snapshot is not in the cache; fetch the model")
	case err != nil:
		return "", tried, fmt.Errorf("find model: %w", err)
	case !info.IsDir():
		return fail("its snapshot is no directory; fetch the model again")
	}
	return dir, tried, nil
}

func readRef(path string) (string, error) {
	f, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK, 0) // a pipe is empty, and not waited at
	if err != nil {
		return "", err
	}
	defer func() { _ = f.Close() }() // nothing was written
	const limit = 128                // a commit is 40 bytes
	b, err := io.ReadAll(io.LimitReader(f, limit))
	return strings.TrimSpace(string(b)), err
}

// unrecorded says what to do about a model whose revision has no record.
func unrecorded(model string) string {
	snapshots, err := os.ReadDir(filepath.Join(model, "snapshots"))
	if err != nil || len(snapshots) == 0 {
		return "is not in the cache; fetch the model"
	}
	names := make([]string, len(snapshots))
	for i, s := range snapshots {
		names[i] = s.Name()
	}
	return fmt.Sprintf("the cache does not record which commit the revision is; give one of the commits that are there: %s", strings.Join(names, ", "))
}
