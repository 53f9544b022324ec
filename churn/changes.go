// SPDX-FileCopyrightText: The wcache authors
// SPDX-License-Identifier: MIT

package main

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// epoch is the modification time of every file, as in an image from a reproducible build:
// it never distinguishes one version from another.
var epoch = time.Unix(1, 0)

// Numbers of directories per family: many small ones, few large ones.
func most(f int) int { return []int{7, 2, 2}[f] }

// change makes one change to the directories. The error is this program's.
func (w *world) change() error {
	w.doing.Lock()
	defer w.doing.Unlock()
	w.mu.Lock()
	w.places = slices.DeleteFunc(w.places, func(p place) bool { _, err := os.Lstat(p.path); return err != nil })
	n, f := w.rng.IntN(100), w.rng.IntN(len(families()))
	w.mu.Unlock()
	switch {
	case n < 14:
		return w.create(f)
	case n < 32:
		return w.renew("in place", w.inPlace)
	case n < 46:
		return w.renew("by rename", w.byRename)
	case n < 54:
		return w.renew("by removal", w.byRemoval)
	case n < 62:
		return w.renew("by cp -a", w.byCopy)
	case n < 72:
		return w.rename()
	case n < 79:
		return w.remove()
	case n < 89:
		return w.link()
	case n < 94:
		return w.damage()
	}
	return w.touch()
}

// dirs are the places that contain files themselves.
func (w *world) dirs() []place {
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.DeleteFunc(slices.Clone(w.places), func(p place) bool { return p.link })
}

// pick gives one of a list, and false if it is empty.
func (w *world) pick(list []place) (place, bool) {
	if len(list) == 0 {
		return place{}, false
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	return list[w.rng.IntN(len(list))], true
}

// roll gives a number below n.
func (w *world) roll(n int) int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.rng.IntN(n)
}

// next gives the number of a new content.
func (w *world) next() uint32 {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.version++
	return w.version - 1
}

func (w *world) add(p place) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.places = append(w.places, p)
	w.families[p.path] = p.family
}

// create makes a model directory of a family: below a root, outside of all roots, hidden, or
// inside another one; with new contents or those of another directory.
func (w *world) create(f int) error {
	var alike []place
	for _, p := range w.dirs() {
		if p.family == f {
			alike = append(alike, p)
		}
	}
	if len(alike) >= most(f) {
		return nil
	}
	version := w.next()
	parents := []string{"root", "root", "more", "outside", "root/.hidden", "more/a/b/c/d/e"}
	parent := filepath.Join(w.dir, parents[w.roll(len(parents))])
	if other, ok := w.pick(w.dirs()); ok && w.roll(4) == 0 {
		parent = other.path // a checkpoint of another one
	}
	dir := filepath.Join(parent, fmt.Sprintf("%s%d", families()[f].name, version))
	if twin, ok := w.pick(alike); ok && (w.roll(3) == 0 || families()[f].name == "single") {
		if v := w.latest(twin.path); v != 0 {
			version = v
		}
	}
	files, err := families()[f].files(version)
	if err != nil {
		return err
	}
	w.note(dir, held{changes: true, how: "being made"})
	if err := writeAll(dir, files); err != nil {
		return err
	}
	w.add(place{path: dir, family: f})
	w.note(dir, held{version: version, how: "made"})
	return nil
}

// writeAll writes a directory, and makes all of its files old.
func writeAll(dir string, files map[string][]byte) error {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	for name, b := range files {
		if err := os.WriteFile(filepath.Join(dir, name), b, 0o600); err != nil {
			return err
		}
	}
	return old(dir)
}

// old gives all files of a directory the same old time.
func old(dir string) error {
	list, err := os.ReadDir(dir)
	if err != nil {
		return err
	}
	for _, e := range list {
		if e.Type().IsRegular() {
			if err := os.Chtimes(filepath.Join(dir, e.Name()), epoch, epoch); err != nil {
				return err
			}
		}
	}
	return nil
}

// renew gives a directory other contents.
func (w *world) renew(name string, how func(dir string, files map[string][]byte) error) error {
	p, ok := w.pick(w.dirs())
	if !ok {
		return nil
	}
	version := w.next()
	files, err := families()[p.family].files(version)
	if err != nil {
		return err
	}
	if w.latest(p.path) == 0 {
		name, how = "after damage", writeAll
	} else {
		delete(files, "config.json") // which is the same
		delete(files, "model.safetensors.index.json")
	}
	// By removal it lacks files for a moment.
	w.note(p.path, held{changes: true, lacks: name == "by removal", how: "being renewed " + name})
	if err := how(p.path, files); err != nil {
		return err
	}
	w.note(p.path, held{version: version, how: "renewed"})
	return nil
}

func (w *world) inPlace(dir string, files map[string][]byte) error {
	for name, b := range files {
		f, err := os.OpenFile(filepath.Join(dir, name), os.O_WRONLY, 0)
		if err != nil {
			return err
		}
		_, err = f.WriteAt(b, 0)
		if err := errors.Join(err, f.Close()); err != nil {
			return err
		}
	}
	return old(dir)
}

func (w *world) byRename(dir string, files map[string][]byte) error {
	for name, b := range files {
		tmp := filepath.Join(dir, ".tmp-"+name)
		err := errors.Join(os.WriteFile(tmp, b, 0o600), os.Chtimes(tmp, epoch, epoch), os.Rename(tmp, filepath.Join(dir, name)))
		if err != nil {
			return err
		}
	}
	return nil
}

func (w *world) byRemoval(dir string, files map[string][]byte) error {
	for name := range files {
		if err := os.Remove(filepath.Join(dir, name)); err != nil {
			return err
		}
	}
	return writeAll(dir, files)
}

func (w *world) byCopy(dir string, files map[string][]byte) error {
	from := filepath.Join(w.dir, "copy")
	if err := errors.Join(os.RemoveAll(from), writeAll(from, files)); err != nil {
		return err
	}
	if out, err := exec.Command("cp", "-a", from+"/.", dir+"/").CombinedOutput(); err != nil {
		return fmt.Errorf("cp -a: %w: %s", err, out)
	}
	return nil
}

// below are the directories inside another, and itself.
func (w *world) below(dir string) []place {
	var list []place
	for _, p := range w.dirs() {
		if p.path == dir || strings.HasPrefix(p.path, dir+"/") {
			list = append(list, p)
		}
	}
	return list
}

func (w *world) rename() error {
	from, ok := w.pick(w.dirs())
	if !ok {
		return nil
	}
	to := filepath.Join(w.dir, []string{"root", "more", "outside"}[w.roll(3)], fmt.Sprintf("moved%d", w.next()))
	moved := w.below(from.path)
	before := make(map[string]held)
	for _, p := range moved {
		before[p.path] = w.last(p.path)
		w.note(p.path, held{changes: true, how: "being moved"})
		w.note(to+strings.TrimPrefix(p.path, from.path), held{changes: true, how: "coming"})
	}
	if err := os.Rename(from.path, to); err != nil {
		return err
	}
	for _, p := range moved {
		w.note(p.path, held{lacks: true, how: "moved"})
		q := place{path: to + strings.TrimPrefix(p.path, from.path), family: p.family}
		w.add(q)
		w.note(q.path, held{version: before[p.path].version, lacks: before[p.path].lacks, how: "come"})
	}
	return nil
}

func (w *world) remove() error {
	list := w.dirs()
	p, ok := w.pick(list)
	if !ok || len(list) < 4 {
		return nil
	}
	gone := w.below(p.path)
	for _, q := range gone {
		w.note(q.path, held{changes: true, how: "being removed"})
	}
	if err := os.RemoveAll(p.path); err != nil {
		return err
	}
	for _, q := range gone {
		w.note(q.path, held{lacks: true, how: "removed"})
	}
	return nil
}

// link makes or switches a link to a directory.
func (w *world) link() error {
	p, ok := w.pick(w.dirs())
	if !ok {
		return nil
	}
	link := filepath.Join(w.dir, []string{"root", "outside"}[w.roll(2)], fmt.Sprintf("link%d", w.roll(2)))
	tmp := link + ".tmp"
	w.note(link, held{changes: true, how: "being switched"})
	if err := os.Remove(tmp); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if err := errors.Join(os.Symlink(p.path, tmp), os.Rename(tmp, link)); err != nil {
		return err
	}
	w.note(link, held{link: p.path, how: "switched to "})
	w.mu.Lock()
	defer w.mu.Unlock()
	w.places = slices.DeleteFunc(w.places, func(q place) bool { return q.path == link })
	w.places = append(w.places, place{path: link, family: p.family, link: true})
	return nil
}

// damage breaks a directory so that it can't be loaded. Its headers may still equal those of
// other directories.
func (w *world) damage() error {
	list := w.dirs()
	p, ok := w.pick(list)
	if !ok || len(list) < 4 {
		return nil
	}
	shard := filepath.Join(p.path, "model-00002-of-00004.safetensors")
	n := w.roll(3)
	how := []string{"its configuration is damaged", "a shard is cut", "a shard is removed"}[n]
	w.note(p.path, held{changes: true, lacks: n == 2, how: "being damaged"})
	defer w.note(p.path, held{lacks: n == 2, how: how})
	switch n {
	case 0:
		return os.WriteFile(filepath.Join(p.path, "config.json"), []byte(`{"attention_bias": null`), 0o600)
	case 1:
		return os.WriteFile(shard, make([]byte, 20), 0o600)
	}
	return os.RemoveAll(shard)
}

// touch changes irrelevant things: files beside the weights, and modes of those files.
func (w *world) touch() error {
	p, ok := w.pick(w.dirs())
	version := w.latest(p.path)
	if !ok || version == 0 {
		return nil
	}
	w.note(p.path, held{version: version, how: "being touched"}) // what is held may be compared, and that may fail
	mode := []fs.FileMode{0o600, 0o400, 0o640}[w.roll(3)]
	err := errors.Join(
		os.WriteFile(filepath.Join(p.path, "README.md"), []byte("x"), 0o600),
		os.WriteFile(filepath.Join(p.path, "tokenizer.json"), []byte("{}"), 0o600),
		os.Chmod(filepath.Join(p.path, "model-00001-of-00004.safetensors"), mode|0o200))
	w.note(p.path, held{version: version, how: "touched"})
	return err
}
