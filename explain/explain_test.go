// SPDX-FileCopyrightText: The wcache authors
// SPDX-License-Identifier: MIT

package explain

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/wcache/wcache/control"
	"github.com/wcache/wcache/fingerprint"
	"github.com/wcache/wcache/internal/testmain"
	"github.com/wcache/wcache/weights"
)

func TestMain(m *testing.M) { testmain.Run(m) }

const checkpoint = "../testdata/checkpoints/llama"

func compute(t *testing.T, o fingerprint.Options) fingerprint.Key {
	t.Helper()
	dir, err := weights.Open(checkpoint)
	if err != nil {
		t.Fatal(err)
	}
	key, err := fingerprint.Compute(dir, o)
	if err != nil {
		t.Fatal(err)
	}
	return key
}

// A wrong explanation would send the user to the wrong option.
func TestMisses(t *testing.T) {
	options := fingerprint.Options{TPSize: 1, PPSize: 1, Release: "0.33.0"}
	held := compute(t, options)
	options.TPSize, options.DType = 2, "float32"
	asked := compute(t, options)
	miss := control.Miss{
		Reason: control.MissOptions, Directories: []string{checkpoint}, Fingerprint: asked,
		Held: &control.Held{Model: checkpoint, Fingerprint: held},
	}
	earlier := miss
	earlier.Held, earlier.Field = nil, "dtype"
	type row struct {
		Field                   string
		Engine, Held, Directory any
		Decided                 bool
	}
	var got [][]row
	for _, m := range Misses([]control.Miss{miss, earlier}) {
		var rows []row
		for _, d := range m.Differences {
			if d.Option != fingerprint.OptionOf(d.Field) {
				t.Errorf("%s is changed by %q", d.Field, d.Option)
			}
			rows = append(rows, row{d.Field, d.Engine, d.Held, d.Directory, d.Decided})
		}
		got = append(got, rows)
	}
	want := [][]row{
		{{"tp_size", int64(2), int64(1), nil, false}, {"dtype", "torch.float32", "torch.bfloat16", "torch.bfloat16", true}},
		{{"dtype", "torch.float32", nil, nil, false}}, // its directory is not looked at
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
	if list := Misses(nil); list == nil || len(list) != 0 {
		t.Errorf("no misses are %v", list)
	}
}

// A model's name must not be taken for a key, nor a broken key for a name.
func TestReadKey(t *testing.T) {
	folder := t.TempDir()
	file := func(name, text string) string {
		path := filepath.Join(folder, name)
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	large := filepath.Join(folder, "large")
	if err := errors.Join(os.WriteFile(large, nil, 0o600), os.Truncate(large, maxKey+1)); err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		arg     string
		ok, bad bool
	}{
		{`{"tp_size": 1}`, true, false},
		{` {"tp_size": 1}`, true, false},
		{file("key", `{"tp_size": 1}`), true, false},
		{"owner/model", false, false},
		{folder, false, false},
		{`{"tp_size"`, false, true},
		{file("text", "no key"), false, true},
		{large, false, true},
	} {
		key, ok, err := ReadKey(tt.arg)
		var bad *BadKey
		if ok != tt.ok || errors.As(err, &bad) != tt.bad || !tt.bad && err != nil || ok && key.Int("tp_size", 0) != 1 {
			t.Errorf("%.40q: %v, %v", tt.arg, ok, err)
		}
	}
}

// If wcache would not load a model, Plan gives the field and the reason.
func TestPlan(t *testing.T) {
	dir, err := weights.Open(checkpoint)
	if err != nil {
		t.Fatal(err)
	}
	key := compute(t, fingerprint.Options{TPSize: 1, PPSize: 1, Release: "0.33.0"})
	if l := Plan(key, dir); l.Refusal != "" || l.Loader == "" || l.Bytes <= 0 {
		t.Errorf("%+v", l)
	}
	if key, _, err = ReadKey(`{"vllm_version": "0.1.0"}`); err != nil {
		t.Fatal(err)
	}
	if l := Plan(key, dir); l.Refusal == "" || l.Loader != "" || l.Bytes != 0 {
		t.Errorf("%+v", l)
	}
}
