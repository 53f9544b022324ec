// SPDX-FileCopyrightText: The wcache authors
// SPDX-License-Identifier: MIT

// Package manifest is the record of what an instance holds: which weights, of
// which files, in which descriptors. It says after a restart what the stored
// descriptors are, which nothing else can tell, and after a reboot what was here.
package manifest

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
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

// Schema is the version of the file's form. A file of another version is not
// read: its entries load again.
const Schema = 1

// Manifest is everything that an instance holds. It is plain data.
type Manifest struct {
	Schema int `toml:"schema"`
	// Uncorrected is the GPU's count of memory errors that all entries have outlived.
	// Nil: there is none, or nobody has asked.
	Uncorrected *int64 `toml:"uncorrected_errors,omitempty"`

	Entries []Entry `toml:"entry"`
}

// Entry is one rank of a model in memory.
type Entry struct {
	ID       string          `toml:"id"` // fingerprint.Key.ID
	Key      fingerprint.Key `toml:"-"`
	Dir      string          `toml:"dir"`                // the model directory, absolute
	Revision string          `toml:"revision,omitempty"` // as the engine sent it
	Device   string          `toml:"device"`             // what the layout was made for
	Loader   string          `toml:"loader"`
	Reason   string          `toml:"reason"` // why this loader
	Table    string          `toml:"table"`  // name of the table's descriptor
	Segments []Segment       `toml:"segments"`
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

// Segment is a stored descriptor of weights.
type Segment struct {
	Name  string `toml:"name"`
	Bytes int64  `toml:"bytes"`
	File  string `toml:"file"` // which file it was when the loader gave it, as fd.FD.File tells
}

// File is a file of the model directory as it was when the entry was loaded.
type File struct {
	Name  string      `toml:"name"`
	Stamp stamp.Stamp `toml:"stamp"`
	Used  bool        `toml:"used"` // whether a change of it makes the entry stale
}

// Field is a field of the engine's key. TOML has no null and no mixed tuples:
// None has neither value nor JSON, a tuple is JSON text.
type Field struct {
	Name  string `toml:"name"`
	Value any    `toml:"value,omitempty"`
	JSON  string `toml:"json,omitempty"`
}

// Path is where the manifest of an instance lies: below $XDG_STATE_HOME, by
// default ~/.local/state.
func Path(env func(string) string, instance string) string {
	home := env("XDG_STATE_HOME")
	if !filepath.IsAbs(home) {
		home = filepath.Join(env("HOME"), ".local", "state")
	}
	return filepath.Join(home, "wcache", instance, "manifest.toml")
}

// Load reads a manifest. One that doesn't exist is empty.
func Load(path string) (*Manifest, error) {
	st, err := os.Stat(path)
	if errors.Is(err, fs.ErrNotExist) {
		return &Manifest{Schema: Schema}, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read manifest: %w", err)
	}
	if st.Size() > MaxFile {
		return nil, fmt.Errorf("read manifest: %s: %d bytes are over the limit of %d", path, st.Size(), MaxFile)
	}
	b, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("read manifest: %w", err)
	}
	m, err := Decode(b)
	if err != nil {
		return nil, fmt.Errorf("read manifest: %s: %w", path, err)
	}
	return m, nil
}

// Decode reads the text of a manifest.
func Decode(b []byte) (*Manifest, error) {
	m := new(Manifest)
	meta, err := toml.Decode(string(b), m)
	if err != nil {
		return nil, fmt.Errorf("decode: %w", err)
	}
	if m.Schema != Schema {
		return nil, fmt.Errorf("decode: schema %d, want %d", m.Schema, Schema)
	}
	if unknown := meta.Undecoded(); len(unknown) > 0 {
		return nil, fmt.Errorf("decode: unknown key %q", unknown[0])
	}
	if len(m.Entries) > MaxEntries {
		return nil, fmt.Errorf("decode: more than %d entries", MaxEntries)
	}
	seen := make(map[string]bool)
	for i := range m.Entries {
		e := &m.Entries[i]
		if e.Key, err = key(e.Fields); err != nil {
			return nil, fmt.Errorf("decode: entry %q: %w", e.ID, err)
		}
		switch {
		case e.ID != e.Key.ID():
			return nil, fmt.Errorf("decode: entry %q: is not the id of its key", e.ID)
		case seen[e.ID]:
			return nil, fmt.Errorf("decode: entry %q: is there twice", e.ID)
		case len(e.Segments) == 0 || e.Table == "":
			return nil, fmt.Errorf("decode: entry %q: names no descriptors", e.ID)
		}
		seen[e.ID] = true
	}
	return m, nil
}

// Encode writes the text of a manifest.
func (m *Manifest) Encode() ([]byte, error) {
	out := Manifest{Schema: Schema, Uncorrected: m.Uncorrected, Entries: append([]Entry(nil), m.Entries...)}
	for i := range out.Entries {
		var err error
		if out.Entries[i].Fields, err = fields(out.Entries[i].Key); err != nil {
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
	if err := renameio.WriteFile(path, b, 0o600); err != nil {
		return fmt.Errorf("write manifest: %w", err)
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

func key(list []Field) (fingerprint.Key, error) {
	var fields []fingerprint.Field
	for _, f := range list {
		value := f.Value
		if f.JSON != "" {
			// The key's own JSON reader makes tuples of arrays.
			var one fingerprint.Key
			text := fmt.Sprintf(`{"value":%s}`, f.JSON)
			if err := json.Unmarshal([]byte(text), &one); err != nil {
				return fingerprint.Key{}, err
			}
			value, _ = one.Get("value")
		}
		fields = append(fields, fingerprint.Field{Name: f.Name, Value: value})
	}
	return fingerprint.NewKey(fields)
}
