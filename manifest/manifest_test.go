// SPDX-FileCopyrightText: The wcache authors
// SPDX-License-Identifier: MIT

package manifest

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/wcache/wcache/fingerprint"
	"github.com/wcache/wcache/stamp"
)

func example(t testing.TB) *Manifest {
	t.Helper()
	k, err := fingerprint.NewKey([]fingerprint.Field{
		{Name: "checkpoint", Value: "d0b480a03b1c2a44061558d5eab5335f"},
		{Name: "tp_size", Value: int64(2)},
		{Name: "quantization", Value: nil},
		{Name: "kv_cache_dtype_skip_layers", Value: fingerprint.Tuple{"0", nil, fingerprint.Tuple{"a", int64(1)}}},
		{Name: "is_draft", Value: false},
		{Name: "revision", Value: ""},
	})
	if err != nil {
		t.Fatal(err)
	}
	at := time.Date(2026, 11, 29, 12, 31, 7, 5000, time.UTC)
	return &Manifest{Schema: Schema, Entries: []Entry{{
		ID: ID(k, "/models/llama"), Key: k, Dir: "/models/llama", Sure: "pin", Device: "host", Loader: "native", Reason: "LlamaForCausalLM",
		Table: "t1", Pieces: []Piece{{Name: "s1", Bytes: 105472}}, Tensors: 29, Bytes: 105120,
		Loaded: at, Used: at, Seconds: 0.25, Pinned: true,
		Files:   []File{{Name: "model.safetensors", Stamp: stamp.Stamp{Size: 191976, MTime: at.UnixNano(), CTime: at.UnixNano() + 1, Inode: 42, Device: 65024, Mount: 7}, Used: true, SHA256: strings.Repeat("0a", 32), Hub: strings.Repeat("0b", 32)}},
		Engines: []Engine{{PID: 4711, Name: "VLLM::EngineCor", Start: 123456, Since: at}},
	}}}
}

func equal(t *testing.T, want, got *Manifest) {
	t.Helper()
	keys := cmp.Comparer(func(a, b fingerprint.Key) bool { return a.Equal(b) })
	if diff := cmp.Diff(want, got, keys, cmpopts.IgnoreFields(Entry{}, "Fields")); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
}

func TestSaveAndLoad(t *testing.T) {
	path := filepath.Join(t.TempDir(), "wcache", "host", "manifest.toml")
	empty, err := Load(path)
	if err != nil {
		t.Fatal(err)
	}
	equal(t, &Manifest{Schema: Schema}, empty)
	want := example(t)
	if err := want.Save(path); err != nil {
		t.Fatal(err)
	}
	got, err := Load(path)
	if err != nil {
		t.Fatal(err)
	}
	equal(t, want, got)
	if st, err := os.Stat(path); err != nil || st.Mode().Perm() != 0o600 {
		t.Errorf("mode of the file: %v, %v", st.Mode(), err)
	}
}

// A folder that takes no file: the old manifest stays as it was.
func TestSaveKeepsTheOldFile(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "sub", "manifest.toml")
	if err := os.WriteFile(filepath.Join(dir, "sub"), []byte("a file where the folder should be"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := example(t).Save(path); err == nil || !strings.HasPrefix(err.Error(), "write manifest: ") {
		t.Errorf("got %v", err)
	}
}

func TestDecodeRefuses(t *testing.T) {
	b, err := example(t).Encode()
	if err != nil {
		t.Fatal(err)
	}
	text := string(b)
	tests := []struct{ text, want string }{
		{"schema = 3\n", "decode: schema 3, want 2 or 1"},
		{"schema = 2\nnews = 1\n", `decode: unknown key "news"`},
		{"schema = 1\nnews = 1\n", `decode: unknown key "news"`},
		{strings.Replace(text, `sure = "pin"`, `sure = 5`, 1), `decode: toml: line 8 (last key "entry.sure"): incompatible types: TOML value has type int64; destination has type string`},
	}
	for _, tt := range tests {
		_, err := Decode([]byte(tt.text))
		if err == nil || err.Error() != tt.want {
			t.Errorf("got %v, want %s", err, tt.want)
		}
	}
}

// One bad row costs that row.
func TestFaults(t *testing.T) {
	m := example(t)
	second := m.Entries[0]
	second.Dir = "/models/other"
	second.ID = ID(second.Key, second.Dir)
	id := m.Entries[0].ID
	m.Entries = append(m.Entries, second)
	b, err := m.Encode()
	if err != nil {
		t.Fatal(err)
	}
	text := string(b)
	for _, c := range []struct{ text, want string }{
		{strings.Replace(text, "value = 2", "value = 3", 1), `decode: entry "` + id + `": is not the id of its key and directory`},
		{strings.Replace(text, `"/models/llama"`, `"/models/mistral"`, 1), `decode: entry "` + id + `": is not the id of its key and directory`},
		{strings.Replace(text, `table = "t1"`, `table = ""`, 1), `decode: entry "` + id + `": names no descriptors`},
	} {
		got, err := Decode([]byte(c.text))
		if err != nil {
			t.Fatal(err)
		}
		if len(got.Faults) != 1 || got.Faults[0].Error() != c.want {
			t.Errorf("got %v, want %s", got.Faults, c.want)
		}
		got.Faults = nil
		equal(t, &Manifest{Schema: Schema, Entries: []Entry{second}}, got)
	}
	m.Entries = append(m.Entries, second)
	if b, err = m.Encode(); err != nil {
		t.Fatal(err)
	}
	got, err := Decode(b)
	if want := `decode: entry "` + second.ID + `": is there twice`; err != nil || len(got.Entries) != 2 || len(got.Faults) != 1 || got.Faults[0].Error() != want {
		t.Errorf("got %d entries, %v and %v, want %s", len(got.Entries), got.Faults, err, want)
	}
}

// A process may call itself anything.
func TestForeignNames(t *testing.T) {
	m := example(t)
	m.Entries[0].Engines[0].Name = "Gr\xc3\xb6\xc3 \x1b[31m\n\x00"
	b, err := m.Encode()
	if err != nil {
		t.Fatal(err)
	}
	got, err := Decode(b)
	if err != nil {
		t.Fatal(err)
	}
	m.Entries[0].Engines[0].Name = "Gr\xc3\xb6\uFFFD \x1b[31m\n\x00"
	equal(t, m, got)
}

// A file of each version is read, the one of this version as it was written. What an
// older one doesn't say is "" or 0. Who raises Schema adds a file.
func TestVersions(t *testing.T) {
	less := map[int]func(*Entry){
		1: func(e *Entry) {
			e.Sure, e.Files[0].SHA256, e.Files[0].Hub = "", "", ""
			e.Files[0].Stamp = stamp.Stamp{Size: e.Files[0].Stamp.Size, MTime: e.Files[0].Stamp.MTime, Inode: e.Files[0].Stamp.Inode}
		},
		2: func(*Entry) {},
	}
	for version := 1; version <= Schema; version++ {
		got, err := Load(fmt.Sprintf("testdata/schema%d.toml", version))
		if err != nil {
			t.Fatal(err)
		}
		want := example(t)
		less[version](&want.Entries[0])
		equal(t, want, got)
	}
}

func TestLabel(t *testing.T) {
	want := example(t)
	table := []byte("a table\x00 of any bytes")
	b, err := EncodeLabel(want.Entries[0], table)
	if err != nil {
		t.Fatal(err)
	}
	e, rest, err := DecodeLabel(b)
	if err != nil {
		t.Fatal(err)
	}
	equal(t, want, &Manifest{Schema: Schema, Entries: []Entry{e}})
	if string(rest) != string(table) {
		t.Errorf("got the table %q", rest)
	}
	bad := want.Entries[0]
	bad.Dir = "/models/\xff"
	bad.ID = ID(bad.Key, bad.Dir)
	if _, err := EncodeLabel(bad, table); err == nil {
		t.Error("a label was made that can't be read")
	}
	for text, want := range map[string]string{
		"":                      "decode label: no label",
		"\x00":                  "decode label: no label",
		`{"tensors":[]}`:        "decode label: no label",
		"# no end":              "decode label: no label",
		"# x\n\x00":             "decode label: decode: schema 0, want 2 or 1",
		"#\nschema = 2\n\x00{}": "decode label: it is of 0 entries",
	} {
		if _, _, err := DecodeLabel([]byte(text)); err == nil || err.Error() != want {
			t.Errorf("%q: got %v, want %s", text, err, want)
		}
	}
}

func TestPath(t *testing.T) {
	for _, tt := range []struct {
		home, state, want string
		err               error
	}{
		{"/home/ada", "", "/home/ada/.local/state/wcache/0/manifest.toml", nil},
		{"/home/ada", "/state", "/state/wcache/0/manifest.toml", nil},
		{"/home/ada", "state", "/home/ada/.local/state/wcache/0/manifest.toml", nil},
		{"", "/state", "/state/wcache/0/manifest.toml", nil},
		{"", "", "", ErrHomeless}, // and never in the working directory
		{"ada", "state", "", ErrHomeless},
	} {
		env := map[string]string{"HOME": tt.home, "XDG_STATE_HOME": tt.state}
		if got, err := Path(func(n string) string { return env[n] }, "0"); got != tt.want || !errors.Is(err, tt.err) {
			t.Errorf("%v: got %q, %v", tt, got, err)
		}
	}
}

func FuzzDecode(f *testing.F) {
	b, err := example(f).Encode()
	if err != nil {
		f.Fatal(err)
	}
	f.Add(b)
	f.Add([]byte("schema = 1\n[[entry]]\n"))
	f.Add([]byte("schema = 2\n[[entry]]\n"))
	label, err := EncodeLabel(example(f).Entries[0], []byte("table"))
	if err != nil {
		f.Fatal(err)
	}
	f.Add(label)
	f.Fuzz(func(t *testing.T, b []byte) {
		m, err := Decode(b)
		if (err == nil) == (m == nil) {
			t.Fatal("either a value or an error")
		}
		if e, _, err := DecodeLabel(b); err == nil && e.ID != ID(e.Key, e.Dir) {
			t.Fatal("a label of another entry")
		}
	})
}
