// SPDX-FileCopyrightText: The wcache authors
// SPDX-License-Identifier: MIT

// Package explain says why an engine's request was not answered from memory, and how the
// key of a model directory is computed.
package explain

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"strings"

	"github.com/wcache/wcache/config"
	"github.com/wcache/wcache/fingerprint"
	"github.com/wcache/wcache/resolve"
	"github.com/wcache/wcache/weights"
)

// maxKey is the limit of a key as JSON, in bytes, which is many times what a key takes.
const maxKey = 1 << 20

// ReadKey reads a key that is given as JSON text, or as the path of a file with it. ok is
// false if arg is something else, such as a model directory or a model id. The error is a
// [*BadKey] if arg looks like a key and isn't valid.
func ReadKey(arg string) (key fingerprint.Key, ok bool, err error) {
	text := []byte(arg)
	if !strings.HasPrefix(strings.TrimSpace(arg), "{") {
		st, err := os.Stat(arg)
		if err != nil || !st.Mode().IsRegular() {
			return key, false, nil
		}
		if st.Size() > maxKey {
			//diag usage TEXT
			// The file is larger than any key, so it is another file. Name the file that holds the
			// key.
			return key, false, &BadKey{fmt.Errorf("explain: %q is too large for a key", arg)}
		}
		if text, err = os.ReadFile(arg); err != nil {
			return key, false, err
		}
	}
	if err := json.Unmarshal(text, &key); err != nil {
		//diag usage REASON
		// The JSON of the key is not an object with strings, numbers, booleans or null as values.
		// Copy the whole key from `fingerprint` in `wcache status --json`.
		return key, false, &BadKey{fmt.Errorf("explain: the key: %w", err)}
	}
	return key, true, nil
}

// BadKey is the error for an invalid key.
type BadKey struct{ Err error }

func (e *BadKey) Error() string { return e.Err.Error() }

// Unwrap is for errors.Is.
func (e *BadKey) Unwrap() error { return e.Err }

// Loading says how a key would be loaded from a directory.
type Loading struct {
	Loader string // with the reason for it, "" if there is a Refusal
	Bytes  int64  // that the weights take
	// Refusal is why wcache would not load it.
	Refusal string
}

// Plan says how a key would be loaded, or why not.
func Plan(key fingerprint.Key, dir *weights.Dir) Loading {
	target, err := resolve.PlanDir(resolve.Options{Assume: []string{config.AssumeRope}}, key, dir)
	var no *resolve.Refusal
	switch {
	case errors.As(err, &no):
		return Loading{Refusal: fmt.Sprintf("%s: %s", no.Field, no.Reason)}
	case err != nil:
		return Loading{Refusal: err.Error()}
	}
	return Loading{Loader: fmt.Sprintf("%s: %s", target.Loader, target.Reason), Bytes: target.Plan.Table.Bytes()}
}

// Source says what a field of a directory's key is computed from, "" if that is only
// an option.
func Source(field string, dir *weights.Dir) string {
	switch field {
	case "checkpoint":
		var names []string
		for _, f := range dir.Hashed {
			names = append(names, f.Base)
		}
		if len(names) > 3 {
			return fmt.Sprintf("the headers of %s, … (%d files)", strings.Join(names[:2], ", "), len(names))
		}
		return "the headers of " + strings.Join(names, ", ")
	case "rope_parameters_hash":
		text, err := fingerprint.RopePayload(dir.Config)
		if err == nil {
			return text
		}
	case "quant_config_hash":
		text, err := fingerprint.QuantPayload(dir.Config)
		if err == nil {
			return text
		}
	}
	return ""
}
