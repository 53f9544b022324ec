// SPDX-FileCopyrightText: The wcache authors
// SPDX-License-Identifier: MIT

package index

import (
	"bytes"
	"crypto/md5"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"

	"github.com/google/renameio/v2"

	"github.com/wcache/wcache/stamp"
	"github.com/wcache/wcache/weights"
)

// MaxFile is the limit of a saved [Index] in bytes.
const MaxFile = 64 << 20

// saved is the form of an index in a file. It only saves reading headers: a directory
// counts once it has been walked, and a saved header counts if the stamp of its file is
// the same.
type saved struct {
	Version int                 `json:"version"`
	Added   []string            `json:"added,omitempty"`
	Dirs    map[string]savedDir `json:"dirs"`
}

type savedDir struct {
	MD5     string               `json:"md5,omitempty"`
	SHA256  string               `json:"sha256,omitempty"`
	Covered []string             `json:"covered,omitempty"` // the names that the hashes cover
	Files   map[string]savedFile `json:"files"`
}

type savedFile struct {
	Stamp  stamp.Stamp `json:"stamp"`
	Digest string      `json:"digest,omitempty"` // of a header, in hex
	Names  []string    `json:"names,omitempty"`  // of a shard index
}

const savedVersion = 3

// Save writes what is known to a file. After an error the old file is unchanged.
func (x *Index) Save(path string) error {
	x.mu.Lock()
	models, added := maps.Clone(x.hints), []string(nil)
	for _, r := range x.roots {
		if r.single {
			added = append(added, r.path)
		}
		for f := range r.known {
			models[f.path] = f.model
		}
	}
	x.mu.Unlock()
	slices.Sort(added)
	b, err := encode(models, added)
	if err != nil {
		return fmt.Errorf("save index: %w", err)
	}
	if err := renameio.WriteFile(path, b, 0o600, renameio.WithTempDir(filepath.Dir(path))); err != nil {
		return fmt.Errorf("save index: %w", err)
	}
	return nil
}

// encode writes models by directory. It leaves out files whose stamp could stay the same
// after a later write.
func encode(models map[string]*model, added []string) ([]byte, error) {
	s := saved{Version: savedVersion, Added: added, Dirs: make(map[string]savedDir)}
	for dir, m := range models {
		d := savedDir{Files: make(map[string]savedFile)}
		for name, f := range m.files {
			switch {
			case !f.known || !f.settled:
			case weights.IsWeights(name):
				d.Files[name] = savedFile{Stamp: f.stamp, Digest: hex.EncodeToString(f.digest[:])}
			case name == weights.ShardIndexName:
				d.Files[name] = savedFile{Stamp: f.stamp, Names: f.names}
			}
		}
		lacks := func(name string) bool { _, ok := d.Files[name]; return !ok }
		if m.md5 != "" && !slices.ContainsFunc(m.covered, lacks) {
			d.MD5, d.SHA256, d.Covered = m.md5, m.sha256, m.covered
		}
		if len(d.Files) > 0 {
			s.Dirs[dir] = d
		}
	}
	return json.Marshal(s)
}

// Load reads what Save wrote. Without the file, or with a damaged one, the index starts
// empty; only damage is an error, for the log. Added directories are walked again in any
// case.
func (x *Index) Load(path string) error {
	f, err := os.Open(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("load index: %w", err)
	}
	defer func() { _ = f.Close() }() // nothing was written
	b, err := io.ReadAll(io.LimitReader(f, MaxFile+1))
	if err != nil {
		return fmt.Errorf("load index: %w", err)
	}
	models, added, err := decode(b)
	if err != nil {
		return fmt.Errorf("load index %q: %w", path, err)
	}
	x.mu.Lock()
	x.hints = models
	x.mu.Unlock()
	for _, dir := range added {
		x.Add(dir)
	}
	return nil
}

// decode reads what encode has written.
func decode(b []byte) (models map[string]*model, added []string, err error) {
	if len(b) > MaxFile {
		return nil, nil, fmt.Errorf("it is over the limit of %d bytes", MaxFile)
	}
	var s saved
	d := json.NewDecoder(bytes.NewReader(b))
	if err := d.Decode(&s); err != nil {
		return nil, nil, err
	}
	if s.Version != savedVersion {
		return nil, nil, fmt.Errorf("it has version %d, not %d", s.Version, savedVersion)
	}
	for _, dir := range s.Added {
		if !isClean(dir) {
			return nil, nil, fmt.Errorf("directory %q: not an absolute path", dir)
		}
	}
	models = make(map[string]*model, len(s.Dirs))
	for dir, d := range s.Dirs {
		m, err := d.model()
		if err == nil && !isClean(dir) {
			err = errors.New("not an absolute path")
		}
		if err != nil {
			return nil, nil, fmt.Errorf("directory %q: %w", dir, err)
		}
		models[dir] = m
	}
	return models, s.Added, nil
}

func isClean(path string) bool { return filepath.IsAbs(path) && filepath.Clean(path) == path }

func (d savedDir) model() (*model, error) {
	m := &model{md5: d.MD5, sha256: d.SHA256, covered: d.Covered, files: make(map[string]*file, len(d.Files))}
	if !isHash(d.MD5, md5.Size) || !isHash(d.SHA256, sha256.Size) || (d.MD5 == "") != (d.SHA256 == "") {
		return nil, fmt.Errorf("hashes %q and %q", d.MD5, d.SHA256)
	}
	if (len(d.Covered) > 0) != (d.MD5 != "") || !slices.IsSorted(d.Covered) {
		return nil, fmt.Errorf("a hash of %d files", len(d.Covered))
	}
	for name, f := range d.Files {
		g := &file{stamp: f.Stamp, settled: true, known: true, names: f.Names}
		switch {
		case f.Stamp == stamp.Stamp{}:
			return nil, fmt.Errorf("file %q: no stamp", name)
		case name == weights.ShardIndexName:
			if f.Digest != "" || len(f.Names) == 0 || !slices.IsSorted(f.Names) {
				return nil, fmt.Errorf("file %q: not a shard index", name)
			}
		case !weights.IsWeights(name) || len(f.Names) > 0 || f.Digest == "" || !isHash(f.Digest, len(g.digest)):
			return nil, fmt.Errorf("file %q: no weights with a digest", name)
		default:
			_, _ = hex.Decode(g.digest[:], []byte(f.Digest)) // isHash has checked it
		}
		m.files[name] = g
	}
	for _, name := range d.Covered {
		if m.files[name] == nil || !weights.IsWeights(name) {
			return nil, fmt.Errorf("file %q: the hash covers it, and nothing is known of it", name)
		}
	}
	return m, nil
}

// isHash reports whether s is empty or size bytes in hex.
func isHash(s string, size int) bool {
	b, err := hex.DecodeString(s)
	return err == nil && (s == "" || len(b) == size)
}
