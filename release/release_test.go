// SPDX-FileCopyrightText: The wcache authors
// SPDX-License-Identifier: MIT

package release

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// A row stands on golden data, and golden data serve a row: the requests that were
// recorded of each release, with its key's fields, and the options of its programs.
func TestGoldenData(t *testing.T) {
	recorded := make(map[string][]string) // a key of each release
	files, err := filepath.Glob("../testdata/wire/*-get_state-llama-tp1r0.json")
	if err != nil {
		t.Fatal(err)
	}
	for _, path := range files {
		version, _, _ := strings.Cut(filepath.Base(path), "-")
		recorded[version] = keyOf(t, path)
	}
	want := make(map[string][]string)
	for _, r := range All() {
		want[r.Version] = r.Key
	}
	if diff := cmp.Diff(want, recorded); diff != "" {
		t.Errorf("keys (-rows +recorded):\n%s", diff)
	}
	options, err := os.ReadFile("../evidence/options.txt")
	if err != nil {
		t.Fatal(err)
	}
	var known []string
	for line := range strings.Lines(string(options)) {
		if f := strings.Fields(line); len(f) == 3 && f[0] == "release" {
			known = append(known, f[2])
		}
	}
	if diff := cmp.Diff(Versions(), known); diff != "" {
		t.Errorf("releases of options.txt (-rows +file):\n%s", diff)
	}
}

func TestFind(t *testing.T) {
	for version, want := range map[string]string{
		"0.33.0": "0.33.0", "0.33.0+cu130": "0.33.0", "0.30.0+cpu": "0.30.0",
		"0.33.1": "", "0.33.0+rocm721": "", "0.33.0+cu": "", "0.33.0+cu13x": "", "0.33": "", "": "",
	} {
		if r, ok := Find(version); r.Version != want || ok != (want != "") {
			t.Errorf("Find(%q) = %q, %v", version, r.Version, ok)
		}
	}
	for version, want := range map[string]string{
		"0.33.0": "0.33.0", "0.33.4.dev1+g0123456": "0.33.0", "0.30.2": "0.30.0", "0.3.0": "", "0.34.0": "", "0.33": "", "dev": "",
	} {
		if r, ok := Like(version); r.Version != want || ok != (want != "") {
			t.Errorf("Like(%q) = %q, %v", version, r.Version, ok)
		}
	}
	if !slices.IsSortedFunc(All(), func(a, b Release) int { return strings.Compare(a.Version, b.Version) }) || Newest().Version != "0.33.0" {
		t.Error("they are not in order")
	}
}

// keyOf gives the names of the fields of a recorded key, in order.
func keyOf(t *testing.T, path string) []string {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	var message struct {
		Fields map[string]json.RawMessage `json:"fields"`
	}
	if err := json.Unmarshal(b, &message); err != nil {
		t.Fatal(err)
	}
	key := message.Fields["cache_key"]
	if key == nil {
		key = message.Fields["cache_config"]
	}
	d := json.NewDecoder(bytes.NewReader(key))
	if _, err := d.Token(); err != nil { // the brace
		t.Fatal(err)
	}
	var names []string
	for d.More() {
		name, err := d.Token()
		if err != nil {
			t.Fatal(err)
		}
		var value json.RawMessage
		if err := d.Decode(&value); err != nil {
			t.Fatal(err)
		}
		if name != "__class__" {
			names = append(names, name.(string))
		}
	}
	return names
}
