// SPDX-FileCopyrightText: The wcache authors
// SPDX-License-Identifier: MIT

package evidence

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"strings"
	"syscall"
	"time"

	"github.com/wcache/wcache/weights"
)

// Place is the directory of an engine's model.
type Place struct {
	Name     string // as given to the engine
	Revision string // as given to the engine, "" without one
	Path     string // absolute, as the engine's process sees it
	// Device and Inode identify the directory whatever its path, at the moment when it was
	// looked up.
	Device, Inode uint64
	// Own is the path by which this process reaches the same directory, "" if its path in
	// the engine leads to another directory here, or to none.
	Own string
}

// Locate finds the directory of the engine's model, or of its draft, as vLLM does: a
// directory with that name, relative to the process's working directory, or else the
// snapshot of a model id in --download-dir, or in the cache that the environment names.
//
// Errors are a [*weights.NotFound] for a model that doesn't exist, with the paths that
// were tried, an [*Uncertain] for a model whose directory isn't certain, and an
// [*Unreadable] if the process has ended or this process may not read its files.
func (e *Evidence) Locate(draft bool) (*Place, error) {
	claim := e.Model
	if draft {
		claim = e.Draft
	}
	if claim.Name == "" {
		return nil, &Uncertain{Reason: claim.None}
	}
	v, err := e.process.view()
	if err != nil {
		return nil, err
	}
	defer func() { _ = v.close() }() // an O_PATH descriptor has no data to lose
	f := &finder{e: e, v: v}
	place, err := f.find(e.Model, e.offline)
	if err == nil {
		err = f.speculators(place)
	}
	// With HF_HUB_OFFLINE a draft that shares the model's files shares their directory;
	// otherwise it has its own revision.
	if err == nil && draft && (!claim.shared || !e.offline) {
		place, err = f.find(claim, false)
	}
	if err == nil {
		err = e.process.alive()
	}
	if err != nil {
		return nil, f.blame(err)
	}
	return place, nil
}

// finder finds models in the file system that a process sees.
type finder struct {
	e *Evidence
	v *view
}

// blame distinguishes files that this process may not read from files that don't exist.
func (f *finder) blame(err error) error {
	var missing *weights.NotFound
	var unsure *Uncertain
	var unreadable *Unreadable
	if errors.As(err, &missing) || errors.As(err, &unsure) || errors.As(err, &unreadable) {
		return err
	}
	return &Unreadable{PID: f.e.PID, What: "a file", Err: err}
}

// find finds one model. cached says that vLLM takes an id from the environment's cache and
// ignores --download-dir: for its main model, with HF_HUB_OFFLINE.
func (f *finder) find(c Claim, cached bool) (*Place, error) {
	dir, err := f.absolute(c.Name)
	if err != nil {
		return nil, err
	}
	switch info, err := f.v.Stat(dir); {
	case err == nil && info.IsDir():
		return f.place(c, dir)
	case err == nil:
		//diag model
		// The engine was started with the path of a file. Start it with the directory that contains
		// the file.
		return nil, &weights.NotFound{Name: c.Name, Reason: "is a file, not a model directory", Tried: []string{dir}}
	case !absent(err):
		return nil, err
	}
	switch {
	case path.IsAbs(c.Name):
		//diag model
		// The path of the model does not exist. Correct it, or fetch the model.
		return nil, &weights.NotFound{Name: c.Name, Reason: "no such directory", Tried: []string{dir}}
	case f.e.scope:
		//diag model
		// The engine takes the model id from ModelScope and not from Hugging Face. Start it with
		// the path of the model's directory.
		return nil, &Uncertain{Name: c.Name, Reason: "VLLM_USE_MODELSCOPE is set: it comes from ModelScope's cache, which is not looked into; give the engine the directory"}
	}
	cache, err := f.cache(c, cached)
	if err != nil {
		return nil, err
	}
	snapshot, tried, err := weights.Snapshot(f.v, cache, c.Name, c.Revision)
	var missing *weights.NotFound
	if errors.As(err, &missing) {
		missing.Tried = append([]string{dir}, missing.Tried...)
	}
	if err != nil {
		return nil, err
	}
	if len(tried) > 1 { // by a record of the cache
		if err := f.moved(c, tried[0], path.Dir(snapshot)); err != nil {
			return nil, err
		}
	}
	return f.place(c, snapshot)
}

// cache is the Hugging Face cache from which vLLM takes a model id.
func (f *finder) cache(c Claim, cached bool) (string, error) {
	if dir := f.e.DownloadDir; dir != "" && !cached {
		if strings.HasPrefix(dir, "~") {
			//diag model PATH
			// The option begins with `~`, which the shell did not expand. Write the whole path.
			return "", &Uncertain{Name: c.Name, Reason: fmt.Sprintf("--download-dir is %q, which not every release of huggingface_hub takes for a home directory; give its path", dir)}
		}
		return f.absolute(dir)
	}
	if f.e.hub == "" {
		return "", &Uncertain{Name: c.Name, Reason: f.e.noHub}
	}
	return f.e.hub, nil
}

// absolute makes a path absolute as the process does. The path isn't cleaned: "link/.."
// leads to the parent of the link's target.
func (f *finder) absolute(name string) (string, error) {
	if path.IsAbs(name) {
		return name, nil
	}
	cwd := f.e.Cwd
	here, err := os.Stat(procPath(f.e.PID, "cwd") + "/")
	if err != nil {
		return "", f.e.process.unreadable("cwd", err)
	}
	info, err := f.v.Stat(cwd)
	if err != nil || !os.SameFile(here, info) {
		//diag model PATH
		// The model's name is a relative path, and the folder in which the engine was started was
		// renamed or replaced. Start the engine again, with the absolute path.
		return "", &Uncertain{Name: name, Reason: fmt.Sprintf("it is relative to the engine's working directory, to which %q does not lead any more", cwd)}
	}
	return cwd + "/" + name, nil
}

func (f *finder) place(c Claim, dir string) (*Place, error) {
	info, err := f.v.Stat(dir)
	if err != nil {
		return nil, err
	}
	p := &Place{Name: c.Name, Revision: c.Revision, Path: path.Clean(dir)}
	if clean, err := f.v.Stat(p.Path); err != nil || !os.SameFile(info, clean) {
		p.Path = dir
	}
	p.Device, p.Inode = identity(info)
	if f.v.ours {
		p.Own = p.Path
	} else if here, err := os.Stat(p.Path); err == nil && os.SameFile(info, here) {
		p.Own = p.Path
	}
	return p, nil
}

func identity(info fs.FileInfo) (device, inode uint64) {
	st := info.Sys().(*syscall.Stat_t) // what Stat gives on Linux
	return st.Dev, st.Ino
}

func changeTime(info fs.FileInfo) time.Time {
	st := info.Sys().(*syscall.Stat_t) // what Stat gives on Linux
	return time.Unix(st.Ctim.Unix())
}

// absent reports whether an error says that a path doesn't exist.
func absent(err error) bool {
	return errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ENOTDIR) || errors.Is(err, syscall.ENAMETOOLONG)
}

// moved gives an error if a cache's record of a branch has changed since the engine began,
// and the cache has several commits: the engine may have used the earlier one.
func (f *finder) moved(c Claim, ref, snapshots string) error {
	info, err := f.v.Stat(ref)
	if err != nil {
		return err
	}
	if changed, err := f.e.process.changedSince(changeTime(info)); err != nil || !changed {
		return err
	}
	dir, err := f.v.Open(snapshots)
	if err != nil {
		return err
	}
	defer func() { _ = dir.Close() }() // nothing was written
	names, err := dir.Readdirnames(2)
	if err != nil || len(names) < 2 {
		return err
	}
	//diag model PATH
	// A branch of the model moved in the Hugging Face cache since the engine started, so it may
	// have read an earlier commit. Start the engine again, or give it `--revision`.
	return &Uncertain{Name: c.Name, Reason: fmt.Sprintf("%s was written after the engine began, and there are several commits; give the engine the one that is meant with --revision", ref)}
}

// maxModelConfig is the most that is read of a config.json, in bytes, as in package weights.
const maxModelConfig = 8 << 20

// speculators gives an error for a model whose config.json names another model: vLLM then
// loads that one, and uses this one as its draft (maybe_override_with_speculators).
func (f *finder) speculators(main *Place) error {
	text, _, err := f.v.read(main.Path+"/config.json", maxModelConfig)
	if absent(err) && f.e.DownloadDir != "" {
		text, err = f.described(main)
	}
	switch {
	case absent(err):
		return nil
	case err != nil:
		return err
	case bytes.Contains(text, []byte("speculators_config")):
		//diag model
		// The directory has a draft model that names its target, and the engine loads both. Start
		// the engine with the target as its model and this one in `--speculative-config`.
		return &Uncertain{Name: main.Name, Reason: "its config.json is in the format of speculators: the engine's model is the one that it names as the verifier; give the engine that one with --model, and this one in --speculative-config"}
	}
	return nil
}

// described reads the config.json of a model id from transformers' cache, if
// --download-dir has only the weights.
func (f *finder) described(main *Place) ([]byte, error) {
	if f.e.hub == "" {
		return nil, &Uncertain{Name: main.Name, Reason: f.e.noHub}
	}
	dir, _, err := weights.Snapshot(f.v, f.e.hub, main.Name, main.Revision)
	var missing *weights.NotFound
	if errors.As(err, &missing) {
		return nil, fs.ErrNotExist
	}
	if err != nil {
		return nil, err
	}
	text, _, err := f.v.read(dir+"/config.json", maxModelConfig)
	return text, err
}

// configFile reads a file of options as the process saw it when it began.
func (e *Evidence) configFile(name string) ([]byte, error) {
	v, err := e.process.view()
	if err != nil {
		return nil, err
	}
	defer func() { _ = v.close() }() // an O_PATH descriptor has no data to lose
	f := &finder{e: e, v: v}
	file, err := f.absolute(name)
	if err != nil {
		return nil, err
	}
	text, changed, err := v.read(file, maxConfig)
	if err != nil {
		return nil, fmt.Errorf("--config %q: %w", name, err)
	}
	switch since, err := e.process.changedSince(changed); {
	case err != nil:
		return nil, err
	case since:
		return nil, fmt.Errorf("--config %q was changed after the engine began", name)
	}
	if strings.Contains(string(text), "\x00") {
		return nil, fmt.Errorf("--config %q isn't text", name)
	}
	return text, nil
}
