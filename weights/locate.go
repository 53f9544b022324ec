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

// NotFound is the error for a model that isn't on this machine, or whose name doesn't
// lead to it.
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

// Advice is what to do about it.
func (e *NotFound) Advice() string { return "download it, or name its directory" }

// Ambiguous is the error for a model id of which several caches have different commits.
type Ambiguous struct {
	Name     string
	Revision string
	Dirs     []string // its directories
}

func (e *Ambiguous) Error() string {
	//diag model MODEL LIST
	// A folder of `roots` is a Hugging Face cache with another commit of this model than the user's
	// own cache, or than another root. Give the directory that is meant, which the message lists.
	return fmt.Sprintf("find model %q: caches have different commits of it; give the directory, one of %s", e.Name, strings.Join(e.Dirs, ", "))
}

// Locate finds the directory of a model: an absolute path, or a model id in the
// Hugging Face caches that env points to (see [HubCaches]) and in roots that are such
// caches. A revision is a branch, a tag or a commit, "" for main; for a path it has no
// meaning. tried lists the paths that were looked at, in order.
//
// Locate refuses relative paths: an engine means them relative to its own working
// directory, and vLLM takes "a/b" for a model id unless that path exists. If a root has
// another commit of an id than the cache of env or another root, the error is an
// [*Ambiguous]: an option of the engine decides which one it uses.
func Locate(nameOrPath, revision string, env func(string) string, roots []string) (dir string, tried []string, err error) {
	if filepath.IsAbs(nameOrPath) {
		dir = filepath.Clean(nameOrPath)
		info, err := os.Stat(dir)
		switch {
		case errors.Is(err, fs.ErrNotExist):
			return "", []string{dir}, &NotFound{Name: nameOrPath, Reason: "no such directory", Tried: []string{dir}}
		case err != nil:
			return "", []string{dir}, fmt.Errorf("find model: %w", err)
		case !info.IsDir():
			//diag model
			// The path leads to a file, and a model is a directory with `config.json` and
			// `.safetensors` files. Give the directory that contains the file.
			return "", []string{dir}, &NotFound{Name: nameOrPath, Reason: "is a file; give the directory that it is in", Tried: []string{dir}}
		}
		return dir, []string{dir}, nil
	}
	if !isModelID(nameOrPath) {
		//diag model
		// The name of the model is a relative path, whose meaning depends on where the engine was
		// started. Start the engine with the absolute path.
		return "", nil, &NotFound{Name: nameOrPath, Reason: "is neither an absolute path nor a model id; relative paths depend on the engine's working directory, so give it the absolute one"}
	}
	return locateID(nameOrPath, revision, HubCaches(env), roots)
}

// locateID takes the first cache in own that has a model id. Roots have no order.
func locateID(id, revision string, own, roots []string) (dir string, tried []string, err error) {
	var first error
	var dirs []string
	look := func(cache string) bool {
		dir, paths, err := Snapshot(Here{}, cache, id, revision)
		tried = append(tried, paths...)
		switch {
		case err == nil:
			dirs = append(dirs, dir)
		case first == nil:
			first = err
		}
		return err == nil
	}
	for _, cache := range own {
		if look(cache) {
			break
		}
	}
	for _, root := range roots {
		if !slices.Contains(own, filepath.Clean(root)) && hasModel(root, id) {
			look(root)
		}
	}
	if len(dirs) > 0 {
		commit := filepath.Base(dirs[0])
		if slices.ContainsFunc(dirs, func(d string) bool { return filepath.Base(d) != commit }) {
			return "", tried, &Ambiguous{Name: id, Revision: revision, Dirs: dirs}
		}
		return dirs[0], tried, nil
	}
	if first == nil {
		//diag model
		// A model id was given, and without a home directory the place of the cache can't be
		// derived. Set `HOME` or `HF_HUB_CACHE` for the service, or give the model's directory.
		return "", nil, &NotFound{Name: id, Revision: revision, Reason: "no Hugging Face cache is known, as there is no home directory; set HOME or HF_HUB_CACHE"}
	}
	var missing *NotFound
	if errors.As(first, &missing) {
		missing.Tried = tried
	}
	return "", tried, first
}

// hasModel reports whether a directory is a Hugging Face cache that has at least part of
// a model.
func hasModel(dir, id string) bool {
	info, err := os.Stat(modelFolder(dir, id))
	return err == nil && info.IsDir()
}

// modelFolder is the folder of a model in a Hugging Face cache.
func modelFolder(cache, id string) string {
	return filepath.Join(cache, "models--"+strings.ReplaceAll(id, "/", "--"))
}

// HubCache is the directory in which Hugging Face's libraries keep models, by the rules
// of constants.py of huggingface_hub 2.4. It may be relative to the working directory of
// the process whose environment env reads. HubCache asks env only for the variables that
// decide.
func HubCache(env func(string) string) string {
	hub := env("HF_HUB_CACHE")
	if hub == "" {
		hub = env("HUGGINGFACE_HUB_CACHE")
	}
	if hub == "" {
		hub = filepath.Join(hubHome(env), "hub")
	}
	return filepath.Clean(expand(hub, env))
}

// HubCaches are the directories in which this user's models may be, in search order:
// the one of [HubCache], then TRANSFORMERS_CACHE, which only older releases know.
// Relative ones are left out, because the engine's working directory isn't known.
func HubCaches(env func(string) string) []string {
	var caches []string
	for _, dir := range []string{HubCache(env), filepath.Clean(expand(env("TRANSFORMERS_CACHE"), env))} {
		if filepath.IsAbs(dir) && !slices.Contains(caches, dir) {
			caches = append(caches, dir)
		}
	}
	return caches
}

func hubHome(env func(string) string) string {
	if home := env("HF_HOME"); home != "" {
		return expand(home, env)
	}
	cache := env("XDG_CACHE_HOME")
	if cache == "" {
		cache = "~/.cache"
	}
	return expand(filepath.Join(cache, "huggingface"), env)
}

var variable = regexp.MustCompile(`\$(\w+|\{[^}]*\})`)

// expand does what os.path.expanduser does for one's own home, then what
// os.path.expandvars does: variables that aren't set stay as they are.
func expand(path string, env func(string) string) string {
	if path == "~" || strings.HasPrefix(path, "~/") { // HOME is read only if it is needed
		if home := env("HOME"); filepath.IsAbs(home) {
			path = home + path[1:]
		}
	}
	return variable.ReplaceAllStringFunc(path, func(name string) string {
		if v := env(strings.Trim(name, "${}")); v != "" {
			return v
		}
		return name
	})
}

// modelPart matches the name of a Hugging Face repository or of its owner, from
// REPO_ID_REGEX of huggingface_hub's _validators.py.
var modelPart = regexp.MustCompile(`^[A-Za-z0-9_]([A-Za-z0-9._-]{0,94}[A-Za-z0-9_])?$`)

func isModelID(name string) bool {
	parts := strings.Split(name, "/")
	return len(parts) <= 2 && !strings.Contains(name, "--") && !strings.Contains(name, "..") &&
		!slices.ContainsFunc(parts, func(part string) bool { return !modelPart.MatchString(part) })
}

var commit = regexp.MustCompile(`^[0-9a-f]{40}$`)

// Files is the file system that a process sees, by the absolute paths that it uses.
type Files interface {
	// Stat follows links, as os.Stat does.
	Stat(path string) (fs.FileInfo, error)
	// Open opens for reading, and doesn't wait for the writer of a pipe. The caller
	// closes the file.
	Open(path string) (*os.File, error)
}

// Here is the file system that this process sees.
type Here struct{}

// Stat is os.Stat.
func (Here) Stat(path string) (fs.FileInfo, error) { return os.Stat(path) }

// Open is os.Open that doesn't wait on a pipe.
func (Here) Open(path string) (*os.File, error) {
	return os.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK, 0)
}

// Snapshot finds a model id's directory in one Hugging Face cache, as
// huggingface_hub does without a network: the cache's own record gives the commit of a
// branch or tag, and the commit gives a directory. tried is as in [Locate]. If the
// record is missing, Snapshot doesn't guess: an existing snapshot may be another
// revision's.
func Snapshot(files Files, cache, id, revision string) (dir string, tried []string, err error) {
	fail := func(reason string) (string, []string, error) {
		return "", tried, &NotFound{Name: id, Revision: revision, Reason: reason, Tried: tried}
	}
	if !isModelID(id) {
		return fail("is not a model id")
	}
	model := modelFolder(cache, id)
	sha := revision
	if !commit.MatchString(sha) {
		if sha == "" {
			sha = "main"
		}
		if !filepath.IsLocal(sha) {
			return fail("its revision is not a branch, tag or commit")
		}
		ref := filepath.Join(model, "refs", sha)
		tried = append(tried, ref)
		if sha, err = readRef(files, ref); errors.Is(err, fs.ErrNotExist) {
			return fail(unrecorded(files, model))
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
	info, err := files.Stat(dir)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		//diag model
		// The cache knows the commit of the revision and does not have its files: they were
		// removed, or their download was not begun. Fetch the model again.
		return fail("its snapshot is not in the cache; fetch the model")
	case err != nil:
		return "", tried, fmt.Errorf("find model: %w", err)
	case !info.IsDir():
		return fail("its snapshot is not a directory; fetch the model again")
	}
	return dir, tried, nil
}

func readRef(files Files, path string) (string, error) {
	f, err := files.Open(path) // a pipe reads as empty, without waiting
	if err != nil {
		return "", err
	}
	defer func() { _ = f.Close() }() // nothing was written
	const limit = 128                // a commit is 40 bytes
	b, err := io.ReadAll(io.LimitReader(f, limit))
	return strings.TrimSpace(string(b)), err
}

// unrecorded says what to do about a model whose revision the cache doesn't record.
func unrecorded(files Files, model string) string {
	names := snapshotNames(files, model)
	if len(names) == 0 {
		//diag model
		// No Hugging Face cache of this user has the model id. Fetch the model with `hf download`;
		// if the cache is elsewhere, run `systemctl --user set-environment HF_HOME=...` and restart
		// the service, or give an absolute path.
		return "is not in the cache; fetch the model"
	}
	//diag model LIST
	// The cache has no file below `refs` for this revision, as after copying a download by hand.
	// Give one of the commits that the message lists as `--revision`, or fetch the model again.
	return fmt.Sprintf("the cache does not record which commit the revision is; give one of the commits that are there: %s", strings.Join(names, ", "))
}

// maxSnapshots is how many snapshots a message names.
const maxSnapshots = 100

// snapshotNames lists the commits that a cache has of a model, in order.
func snapshotNames(files Files, model string) []string {
	f, err := files.Open(filepath.Join(model, "snapshots"))
	if err != nil {
		return nil
	}
	defer func() { _ = f.Close() }() // nothing was written
	names, _ := f.Readdirnames(maxSnapshots)
	slices.Sort(names)
	return names
}
