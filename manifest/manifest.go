// SPDX-FileCopyrightText: The wcache authors
// SPDX-License-Identifier: MIT

// Package manifest is the record of what an instance holds: which weights, of
// which files, in which descriptors.
//
// The record of an entry is stored with its descriptors, as the [Label] in front of
// its table: after a restart the store says by itself what it holds. The manifest's
// file has the same for people, and says after a reboot what was here.
package manifest

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/BurntSushi/toml"
	"github.com/google/renameio/v2"

	"github.com/wcache/wcache/fingerprint"
	"github.com/wcache/wcache/stamp"
)

// Limits of a manifest file.
const (
	MaxFile    = 64 << 20 // bytes
	MaxEntries = 1 << 12
)

// Schema is the version of the file's form. Files of the versions before are
// migrated when they are read, see migrate.go.
const Schema = 2

// Manifest is everything that an instance holds. It is plain data.
type Manifest struct {
	Schema int `toml:"schema"`
	// Uncorrected is the GPU's count of memory errors that all entries have outlived.
	// Nil: there is none, or nobody has asked.
	Uncorrected *int64 `toml:"uncorrected_errors,omitempty"`

	Entries []Entry `toml:"entry"`

	// Faults are why entries of the file are not among Entries, an error for each.
	Faults []error `toml:"-"`
}

// Entry is one rank of a model in memory.
type Entry struct {
	ID       string          `toml:"id"` // see [ID]
	Key      fingerprint.Key `toml:"-"`
	Dir      string          `toml:"dir"`                // the model directory, absolute, without links
	Sure     string          `toml:"sure,omitempty"`     // by what the key's directory was certain, as resolve.Sure
	Revision string          `toml:"revision,omitempty"` // as the engine sent it
	Device   string          `toml:"device"`             // what the layout was made for
	Loader   string          `toml:"loader"`
	Reason   string          `toml:"reason"` // why this loader
	Table    string          `toml:"table"`  // name of the table's descriptor
	Pieces   []Piece         `toml:"segments"` // of its memory, in order
	Tensors  int             `toml:"tensors"`
	Bytes    int64           `toml:"bytes"` // of distinct storages
	Loaded   time.Time       `toml:"loaded"`
	Used     time.Time       `toml:"used"`
	Seconds  float64         `toml:"load_seconds"`
	Pinned   bool            `toml:"pinned"`
	Fields   []Field         `toml:"key"`     // Key as the file has it; Load and Save keep the two alike
	Indexed  bool            `toml:"indexed"` // the directory's index says which files count
	Files    []File          `toml:"file"`
	Engines  []Engine        `toml:"engine"`
}

// Engine is a process that was given the entry's handles.
type Engine struct {
	PID   int       `toml:"pid"`
	Name  string    `toml:"name"`
	Start uint64    `toml:"start"` // field 22 of /proc/PID/stat, in clock ticks since boot
	Since time.Time `toml:"since"`
}

// Piece is a stored descriptor of weights: all of an entry's memory, or a part that is as
// large as the others.
type Piece struct {
	Name  string `toml:"name"`
	Bytes int64  `toml:"bytes"`
	File  string `toml:"file"` // which file it was when the loader gave it, as fd.FD.File tells
}

// File is a file of the model directory as it was when the entry was loaded.
type File struct {
	Name  string      `toml:"name"`
	Stamp stamp.Stamp `toml:"stamp"`
	Used  bool        `toml:"used"` // whether a change of it makes the entry stale
	// SHA256 is that of its contents, 64 hexadecimal digits, and Hub what the name says
	// that it has in a Hugging Face cache. "": not known yet, and no such name.
	SHA256 string `toml:"sha256,omitempty"`
	Hub    string `toml:"hub,omitempty"`
}

// Damaged reports whether a file is known not to be what its name says.
func (f File) Damaged() bool { return f.SHA256 != "" && f.Hub != "" && f.SHA256 != f.Hub }

// Field is a field of the engine's key. TOML has no null and no mixed tuples:
// None has neither value nor JSON, a tuple is JSON text.
type Field struct {
	Name  string `toml:"name"`
	Value any    `toml:"value,omitempty"`
	JSON  string `toml:"json,omitempty"`
}

// ID names what an entry is: a key, and the directory that answers it. One key may
// mean several directories, since it covers headers and no data. It has 64
// hexadecimal digits.
func ID(key fingerprint.Key, dir string) string {
	sum := sha256.Sum256([]byte(key.ID() + "\x00" + dir))
	return hex.EncodeToString(sum[:])
}

//diag usage
// `HOME` is not set, and the user database has no home directory for this user's number. Set `HOME`
// or `XDG_STATE_HOME` to an absolute path; the daemon does not write to its working directory.

// ErrHomeless is the error of a user for whose state there is no place.
var ErrHomeless = errors.New("find state folder: no home directory is known, and XDG_STATE_HOME is not set")

// Path is where the manifest of an instance lies: below $XDG_STATE_HOME, by
// default ~/.local/state. The error is [ErrHomeless].
func Path(env func(string) string, instance string) (string, error) {
	folder := env("XDG_STATE_HOME")
	if home := env("HOME"); !filepath.IsAbs(folder) {
		if !filepath.IsAbs(home) {
			return "", ErrHomeless
		}
		folder = filepath.Join(home, ".local", "state")
	}
	return filepath.Join(folder, "wcache", instance, "manifest.toml"), nil
}

// Encode writes the text of a manifest.
func (m *Manifest) Encode() ([]byte, error) {
	out := Manifest{Schema: Schema, Uncorrected: m.Uncorrected, Entries: slices.Clone(m.Entries)}
	for i := range out.Entries {
		if err := out.Entries[i].prepare(); err != nil {
			return nil, fmt.Errorf("encode manifest: entry %q: %w", out.Entries[i].ID, err)
		}
	}
	var b bytes.Buffer
	b.WriteString("# What this instance of wcache holds. Written by wcache, read when it starts again.\n\n")
	e := toml.NewEncoder(&b)
	e.Indent = ""
	if err := e.Encode(out); err != nil {
		return nil, fmt.Errorf("encode manifest: %w", err)
	}
	return b.Bytes(), nil
}

// Save writes a manifest so that the file is the old one or the new one, never
// a part, whatever happens meanwhile. The folder is made if it isn't there.
func (m *Manifest) Save(path string) error {
	b, err := m.Encode()
	if err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return fmt.Errorf("write manifest: %w", err)
	}
	if err := renameio.WriteFile(path, b, 0o600, renameio.WithTempDir(filepath.Dir(path))); err != nil {
		return fmt.Errorf("write manifest: %w", err)
	}
	return nil
}

// prepare makes an entry fit for a file: its key as fields, and text that comes from
// elsewhere, such as a process's name, as UTF-8, which TOML wants.
func (e *Entry) prepare() error {
	list, err := fields(e.Key)
	if err != nil {
		return err
	}
	e.Fields = list
	e.Engines = slices.Clone(e.Engines)
	for i := range e.Engines {
		e.Engines[i].Name = strings.ToValidUTF8(e.Engines[i].Name, "\uFFFD")
	}
	return nil
}

func fields(k fingerprint.Key) ([]Field, error) {
	var list []Field
	for _, f := range k.Fields() {
		field := Field{Name: f.Name, Value: f.Value}
		if tuple, ok := f.Value.(fingerprint.Tuple); ok {
			b, err := json.Marshal(tuple)
			if err != nil {
				return nil, err
			}
			field = Field{Name: f.Name, JSON: string(b)}
		}
		list = append(list, field)
	}
	return list, nil
}
