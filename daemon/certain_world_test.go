// SPDX-FileCopyrightText: The wcache authors
// SPDX-License-Identifier: MIT

package daemon

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/wcache/wcache/cache"
	"github.com/wcache/wcache/fingerprint"
	"github.com/wcache/wcache/tensor"
	"github.com/wcache/wcache/weights"
)

// epoch is the modification time of every file of a world, as in an image that can be
// built again: it never tells one version from another.
var epoch = time.Unix(1, 0)

// step does one thing to the world, or has an engine ask.
func (w *world) step() {
	n := w.rng.IntN(100)
	if n < 55 {
		w.engine()
		return
	}
	if n < 62 {
		w.again()
		return
	}
	if n >= 97 {
		w.pin()
		return
	}
	w.doing.Lock()
	defer w.doing.Unlock()
	w.places = slices.DeleteFunc(w.places, func(p string) bool { _, err := os.Lstat(p); return err != nil })
	switch {
	case n < 66:
		w.create()
	case n < 71:
		w.change("in place", func(dir string, files map[string][]byte) error {
			for name, b := range files {
				f, err := os.OpenFile(filepath.Join(dir, name), os.O_WRONLY, 0)
				if err != nil {
					return err
				}
				_, err = f.WriteAt(b, 0)
				if err := f.Close(); err != nil {
					return err
				}
				if err != nil {
					return err
				}
			}
			return old(dir)
		})
	case n < 76:
		w.change("by rename", func(dir string, files map[string][]byte) error {
			for name, b := range files {
				tmp := filepath.Join(dir, ".tmp-"+name)
				if err := os.WriteFile(tmp, b, 0o600); err != nil {
					return err
				}
				if err := os.Chtimes(tmp, epoch, epoch); err != nil {
					return err
				}
				if err := os.Rename(tmp, filepath.Join(dir, name)); err != nil {
					return err
				}
			}
			return nil
		})
	case n < 79:
		w.change("by removal", func(dir string, files map[string][]byte) error {
			for name := range files {
				if err := os.Remove(filepath.Join(dir, name)); err != nil {
					return err
				}
			}
			for name, b := range files {
				if err := os.WriteFile(filepath.Join(dir, name), b, 0o600); err != nil {
					return err
				}
			}
			return old(dir)
		})
	case n < 81:
		w.change("by cp -a", func(dir string, files map[string][]byte) error {
			from := filepath.Join(w.dir, "copy")
			if err := os.MkdirAll(from, 0o700); err != nil {
				return err
			}
			for name, b := range files {
				if err := os.WriteFile(filepath.Join(from, name), b, 0o600); err != nil {
					return err
				}
			}
			if err := old(from); err != nil {
				return err
			}
			if out, err := exec.Command("cp", "-a", from+"/.", dir+"/").CombinedOutput(); err != nil {
				return fmt.Errorf("%w: %s", err, out)
			}
			return nil
		})
	case n < 84:
		w.rename()
	case n < 87:
		w.remove()
	case n < 92:
		w.link()
	case n < 95:
		w.damage()
	default:
		w.touch()
	}
}

// old gives all files of a directory the one time.
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

// versioned is a version's shards: the golden checkpoint's headers, and data that is the
// version's number again and again.
func versioned(version uint64) (map[string][]byte, error) {
	files, err := filepath.Glob(filepath.Join(checkpoints, "llama", "*.safetensors"))
	if err != nil {
		return nil, err
	}
	out := make(map[string][]byte)
	for _, path := range files {
		b, err := os.ReadFile(path)
		if err != nil {
			return nil, err
		}
		data := b[8+binary.LittleEndian.Uint64(b):]
		copy(data, bytes.Repeat(binary.LittleEndian.AppendUint64(nil, version), len(data)/8+1))
		out[filepath.Base(path)] = b
	}
	return out, nil
}

// dirs are the directories that hold something.
func (w *world) dirs() []string {
	var list []string
	for _, p := range w.places {
		if st, err := os.Lstat(p); err == nil && st.IsDir() {
			list = append(list, p)
		}
	}
	return list
}

func (w *world) any(list []string) string { return list[w.rng.IntN(len(list))] }

// create makes a model directory: below a root, outside of all, hidden, inside another
// one, or a snapshot of a hub cache; with contents of its own or those of another.
func (w *world) create() {
	if len(w.dirs()) > 9 {
		return
	}
	parents := []string{"root", "more", "outside", "root/.hidden", "more/a/b/c/d/e"}
	parent := filepath.Join(w.dir, w.any(parents))
	if list := w.dirs(); len(list) > 0 && w.rng.IntN(3) == 0 {
		parent = w.any(list) // a checkpoint of another one
	}
	dir := filepath.Join(parent, fmt.Sprintf("m%d", w.version))
	if w.rng.IntN(4) == 0 {
		commit := fmt.Sprintf("%040x", w.version)
		dir = filepath.Join(w.dir, "root", "models--o--n", "snapshots", commit)
		ref := filepath.Join(w.dir, "root", "models--o--n", "refs", "main")
		do(w.t, os.MkdirAll(filepath.Dir(ref), 0o700), os.WriteFile(ref, []byte(commit), 0o600))
	}
	version := w.version
	w.version++
	if w.rng.IntN(4) == 0 {
		if v := w.latest(w.any(append(w.dirs(), dir))); v != 0 {
			version = v
		}
	}
	files, err := versioned(version)
	do(w.t, err)
	for _, name := range []string{"config.json", "model.safetensors.index.json"} {
		files[name], err = os.ReadFile(filepath.Join(checkpoints, "llama", name))
		do(w.t, err)
	}
	w.did("create %s with %d", dir, version)
	w.changes(dir)
	do(w.t, os.MkdirAll(dir, 0o700))
	for name, b := range files {
		do(w.t, os.WriteFile(filepath.Join(dir, name), b, 0o600))
	}
	do(w.t, old(dir))
	w.places = append(w.places, dir)
	w.now(dir, version)
}

// change gives a directory other contents.
func (w *world) change(how string, f func(dir string, files map[string][]byte) error) {
	list := w.dirs()
	if len(list) == 0 {
		return
	}
	dir := w.any(list)
	if w.latest(dir) == 0 {
		return // damaged
	}
	version := w.version
	w.version++
	files, err := versioned(version)
	do(w.t, err)
	w.did("change %s %s to %d", dir, how, version)
	w.changes(dir)
	do(w.t, f(dir, files))
	w.now(dir, version)
}

// below are the directories inside another, and itself.
func (w *world) below(dir string) []string {
	var list []string
	for _, p := range w.dirs() {
		if p == dir || strings.HasPrefix(p, dir+"/") {
			list = append(list, p)
		}
	}
	return list
}

func (w *world) rename() {
	list := w.dirs()
	if len(list) == 0 {
		return
	}
	from := w.any(list)
	to := filepath.Join(w.dir, w.any([]string{"root", "more", "outside"}), fmt.Sprintf("r%d", w.version))
	w.version++
	w.did("rename %s to %s", from, to)
	moved := w.below(from)
	versions := make(map[string]uint64)
	for _, p := range moved {
		versions[p] = w.latest(p)
		w.changes(p)
		w.changes(to + strings.TrimPrefix(p, from))
	}
	do(w.t, os.Rename(from, to))
	for _, p := range moved {
		w.now(p, 0)
		q := to + strings.TrimPrefix(p, from)
		w.places = append(w.places, q)
		w.now(q, versions[p])
	}
}

func (w *world) remove() {
	list := w.dirs()
	if len(list) < 3 {
		return
	}
	dir := w.any(list)
	w.did("remove %s", dir)
	gone := w.below(dir)
	for _, p := range gone {
		w.changes(p)
	}
	do(w.t, os.RemoveAll(dir))
	for _, p := range gone {
		w.now(p, 0)
	}
}

// link makes or switches a link to a directory.
func (w *world) link() {
	list := w.dirs()
	if len(list) == 0 {
		return
	}
	to := w.any(list)
	link := filepath.Join(w.dir, w.any([]string{"root", "outside"}), fmt.Sprintf("link%d", w.rng.IntN(2)))
	w.did("link %s to %s", link, to)
	tmp := link + ".tmp"
	w.changes(link)
	do(w.t, os.Symlink(to, tmp), os.Rename(tmp, link))
	w.linked(link, to)
	w.places = append(w.places, link)
}

// damage breaks a directory in a way in which it can't be loaded, and may be a twin
// all the same.
func (w *world) damage() {
	list := w.dirs()
	if len(list) < 3 {
		return
	}
	dir := w.any(list)
	w.changes(dir)
	defer w.now(dir, 0)
	switch w.rng.IntN(3) {
	case 0:
		w.did("damage the configuration of %s", dir)
		do(w.t, os.WriteFile(filepath.Join(dir, "config.json"), []byte(`{"attention_bias": null`), 0o600))
	case 1:
		w.did("cut a shard of %s", dir)
		do(w.t, os.WriteFile(filepath.Join(dir, "model-00002-of-00004.safetensors"), make([]byte, 20), 0o600))
	default:
		w.did("remove a shard of %s", dir)
		do(w.t, os.RemoveAll(filepath.Join(dir, "model-00002-of-00004.safetensors")))
	}
}

// touch changes what decides nothing.
func (w *world) touch() {
	list := w.dirs()
	if len(list) == 0 {
		return
	}
	dir := w.any(list)
	w.did("touch %s", dir)
	do(w.t, os.WriteFile(filepath.Join(dir, "README.md"), []byte("x"), 0o600), os.WriteFile(filepath.Join(dir, "tokenizer.json"), []byte("{}"), 0o600))
}

// pin pins some directory or link, or nothing.
func (w *world) pin() {
	w.engines.Wait() // what was asked before must not be answered by it
	w.config.Pins = nil
	if w.rng.IntN(2) == 0 && len(w.places) > 0 {
		w.config.Pins = []string{w.any(w.places)}
	}
	w.did("pins %q", w.config.Pins)
	do(w.t, w.s.Reload())
}

func (w *world) report() string { return strings.Join(w.steps, "\n") }

// key is the one key of all directories of a world, as they have equal headers.
func (w *world) key(revision string) fingerprint.Key {
	dir, err := weights.Open(filepath.Join(checkpoints, "llama"))
	do(w.t, err)
	o := fingerprint.Options{TPSize: 1, PPSize: 1, Release: "0.33.0"}
	if revision != "" {
		o.Set = []fingerprint.Field{{Name: "revision", Value: revision}}
	}
	k, err := fingerprint.Compute(dir, o)
	do(w.t, err)
	return k
}

// versionOf reads what was handed out: every parameter must hold one version's number
// and nothing else, save for padding.
func versionOf(h *cache.Hold) (uint64, error) {
	table := h.Table()
	b := make([]byte, h.Segment().Bytes)
	if n, err := unix.Pread(h.Segment().Pieces[0].Int(), b, 0); n != len(b) || err != nil {
		return 0, fmt.Errorf("read %d of %d bytes: %w", n, len(b), err)
	}
	var version uint64
	for _, x := range table.Tensors {
		if x.Kind != tensor.Param {
			continue
		}
		s := table.Storages[x.Storage]
		for data := b[s.Offset:][:s.Bytes]; len(data) >= 8; data = data[8:] {
			v := binary.LittleEndian.Uint64(data)
			switch {
			case v == 0 || v == version:
			case version == 0:
				version = v
			default:
				return version, fmt.Errorf("%s is a mixture of %d and %d", x.Name, version, v)
			}
		}
	}
	return version, nil
}
