// SPDX-FileCopyrightText: The wcache authors
// SPDX-License-Identifier: MIT

// Package manifest reads and writes the record of an instance's entries: which weights, from
// which files, in which descriptors.
//
// The fd store has the record of an entry too, as the label in front of its table (see
// [EncodeLabel]), so after a restart the store itself says what it holds. The manifest's file
// shows the entries to people, and after a reboot says which there were.
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

// Schema is the version of the file's format. Load migrates files of earlier versions, see
// migrate.go.
const Schema = 2

// Manifest lists the entries of an instance. It is plain data.
type Manifest struct {
	Schema int `toml:"schema"`
	// Uncorrected is the GPU's count of uncorrected memory errors at the last check; a higher
	// one later means that the entries may be damaged. Nil: not known.
	Uncorrected *int64 `toml:"uncorrected_errors,omitempty"`

	Entries []Entry `toml:"entry"`

	// Faults has one error per entry of the file that isn't among Entries.
	Faults []error `toml:"-"`
}

// Entry is one rank of a model in memory.
type Entry struct {
	ID       string          `toml:"id"` // see [ID]
	Key      fingerprint.Key `toml:"-"`
	Dir      string          `toml:"dir"`                // the model directory, absolute, without links
	Sure     string          `toml:"sure,omitempty"`     // how the directory was found, a resolve.Sure
	Revision string          `toml:"revision,omitempty"` // as the engine sent it
	Device   string          `toml:"device"`             // the device that the memory is on
	Loader   string          `toml:"loader"`
	Reason   string          `toml:"reason"`   // why this loader
	Table    string          `toml:"table"`    // name of the table's descriptor
	Pieces   []Piece         `toml:"segments"` // the pieces of its memory, in order
	Tensors  int             `toml:"tensors"`
	Bytes    int64           `toml:"bytes"` // sum of the distinct storages
	Loaded   time.Time       `toml:"loaded"`
	Used     time.Time       `toml:"used"`
	Seconds  float64         `toml:"load_seconds"`
	Pinned   bool            `toml:"pinned"`
	Fields   []Field         `toml:"key"`     // Key in the file's form; Load and Save keep both equal
	Indexed  bool            `toml:"indexed"` // the directory's index file names the files that matter
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

// Piece is a stored descriptor of weights: all of an entry's memory, or one of several parts
// of equal size.
type Piece struct {
	Name  string `toml:"name"`
	Bytes int64  `toml:"bytes"`
	File  string `toml:"file"` // fd.FD.File of the descriptor when it was loaded
}

// File is a file of the model directory as it was when the entry was loaded.
type File struct {
	Name  string      `toml:"name"`
	Stamp stamp.Stamp `toml:"stamp"`
	Used  bool        `toml:"used"` // whether a change of it makes the entry stale
	// SHA256 is the digest of its contents, 64 hexadecimal digits; "": not known yet. Hub is
	// the digest in its name in a Hugging Face cache; "": it has no such name.
	SHA256 string `toml:"sha256,omitempty"`
	Hub    string `toml:"hub,omitempty"`
}

// Damaged reports whether a file's digest is known and isn't the one in its name.
func (f File) Damaged() bool { return f.SHA256 != "" && f.Hub != "" && f.SHA256 != f.Hub }

// Field is a field of the engine's key. TOML has no null and no mixed tuples:
// None has neither value nor JSON, a tuple is JSON text.
type Field struct {
	Name  string `toml:"name"`
	Value any    `toml:"value,omitempty"`
	JSON  string `toml:"json,omitempty"`
}

// ID identifies an entry by its key and its directory, in 64 hexadecimal digits. Several
// directories may have the same key, since a key depends on headers and not on data.
func ID(key fingerprint.Key, dir string) string {
	sum := sha256.Sum256([]byte(key.ID() + "\x00" + dir))
	return hex.EncodeToString(sum[:])
}

//diag usage
// `HOME` is not set, and the user database has no home directory for this user's number. Set `HOME`
// or `XDG_STATE_HOME` to an absolute path; the daemon does not write to its working directory.

// ErrHomeless is the error if neither a home directory nor XDG_STATE_HOME is known.
var ErrHomeless = errors.New("find state folder: no home directory is known, and XDG_STATE_HOME is not set")

// Path is the path of an instance's manifest, below $XDG_STATE_HOME, by default
// ~/.local/state. The error is [ErrHomeless].
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

// Save replaces the file of a manifest in one step: after a crash it is the old file or the
// new one, never a part. It makes a missing folder.
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

// prepare prepares an entry for the file: it sets the key's fields, and makes foreign text,
// such as a process's name, valid UTF-8, which TOML needs.
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
