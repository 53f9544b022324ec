// SPDX-FileCopyrightText: The wcache authors
// SPDX-License-Identifier: MIT

package manifest

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"

	"github.com/BurntSushi/toml"

	"github.com/wcache/wcache/fingerprint"
)

// Load reads a manifest. If the file doesn't exist the manifest is empty.
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

// Decode reads the text of a manifest of this schema or an earlier one. An invalid entry is
// left out, and its error is among Faults.
func Decode(b []byte) (*Manifest, error) {
	var version struct {
		Schema int `toml:"schema"`
	}
	if _, err := toml.Decode(string(b), &version); err != nil {
		return nil, fmt.Errorf("decode: %w", err)
	}
	var m *Manifest
	var err error
	switch version.Schema {
	case 1:
		m, err = migrate(b)
	case Schema:
		m = new(Manifest)
		err = strictly(b, m)
	default:
		return nil, fmt.Errorf("decode: schema %d, want %d or 1", version.Schema, Schema)
	}
	if err != nil {
		return nil, err
	}
	m.Schema = Schema
	if len(m.Entries) > MaxEntries {
		return nil, fmt.Errorf("decode: more than %d entries", MaxEntries)
	}
	m.check()
	return m, nil
}

// strictly decodes TOML, and refuses unknown keys.
func strictly(b []byte, v any) error {
	meta, err := toml.Decode(string(b), v)
	if err != nil {
		return fmt.Errorf("decode: %w", err)
	}
	if unknown := meta.Undecoded(); len(unknown) > 0 {
		return fmt.Errorf("decode: unknown key %q", unknown[0])
	}
	return nil
}

// check removes invalid entries from Entries, and adds their errors to Faults.
func (m *Manifest) check() {
	var sound []Entry
	seen := make(map[string]bool)
	for _, e := range m.Entries {
		err := e.check()
		if err == nil && seen[e.ID] {
			err = errors.New("is there twice")
		}
		if err != nil {
			m.Faults = append(m.Faults, fmt.Errorf("decode: entry %q: %w", e.ID, err))
			continue
		}
		seen[e.ID] = true
		sound = append(sound, e)
	}
	m.Entries = sound
}

// check checks an entry, and fills Key from the fields of the file.
func (e *Entry) check() error {
	var err error
	if e.Key, err = key(e.Fields); err != nil {
		return err
	}
	switch {
	case e.ID != ID(e.Key, e.Dir):
		return errors.New("is not the id of its key and directory")
	case len(e.Pieces) == 0 || e.Table == "":
		return errors.New("names no descriptors")
	}
	return nil
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
