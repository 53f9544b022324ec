// SPDX-FileCopyrightText: The wcache authors
// SPDX-License-Identifier: MIT

package manifest

import (
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
		ID: k.ID(), Key: k, Dir: "/models/llama", Device: "host", Loader: "native", Reason: "LlamaForCausalLM",
		Table: "t1", Segments: []Segment{{Name: "s1", Bytes: 105472}}, Tensors: 29, Bytes: 105120,
		Loaded: at, Used: at, Seconds: 0.25, Pinned: true,
		Files:   []File{{Name: "model.safetensors", Stamp: stamp.Stamp{Size: 191976, MTime: at.UnixNano(), CTime: at.UnixNano() + 1, Inode: 42, Device: 65024, Mount: 7}, Used: true}},
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
	id := example(t).Entries[0].ID
	entry := text[strings.Index(text, "[[entry]]"):]
	tests := []struct{ text, want string }{
		{"schema = 2\n", "decode: schema 2, want 1"},
		{"schema = 1\nnews = 1\n", `decode: unknown key "news"`},
		{strings.Replace(text, "value = 2", "value = 3", 1), `decode: entry "` + id + `": is not the id of its key`},
		{text + "\n" + entry, `decode: entry "` + id + `": is there twice`},
		{strings.Replace(text, `table = "t1"`, `table = ""`, 1), `decode: entry "` + id + `": names no descriptors`},
	}
	for _, tt := range tests {
		_, err := Decode([]byte(tt.text))
		if err == nil || err.Error() != tt.want {
			t.Errorf("got %v, want %s", err, tt.want)
		}
	}
}

func TestPath(t *testing.T) {
	env := map[string]string{"HOME": "/home/ada"}
	get := func(n string) string { return env[n] }
	if got, want := Path(get, "0"), "/home/ada/.local/state/wcache/0/manifest.toml"; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
	env["XDG_STATE_HOME"] = "/state"
	if got, want := Path(get, "host"), "/state/wcache/host/manifest.toml"; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
}

func FuzzDecode(f *testing.F) {
	b, err := example(f).Encode()
	if err != nil {
		f.Fatal(err)
	}
	f.Add(b)
	f.Add([]byte("schema = 1\n[[entry]]\n"))
	f.Fuzz(func(t *testing.T, b []byte) {
		m, err := Decode(b)
		if (err == nil) == (m == nil) {
			t.Fatal("either a value or an error")
		}
	})
}
