// SPDX-FileCopyrightText: The wcache authors
// SPDX-License-Identifier: MIT

package weights

import (
	"encoding/binary"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/wcache/wcache/internal/testmain"
)

func TestMain(m *testing.M) { testmain.Run(m) }

const checkpoints = "../testdata/checkpoints"

// copyModel copies a golden checkpoint to a new folder. The files are an hour old, so
// that Open doesn't wait.
func copyModel(t testing.TB, name string) string {
	t.Helper()
	dir := filepath.Join(t.TempDir(), name)
	if err := os.CopyFS(dir, os.DirFS(filepath.Join(checkpoints, name))); err != nil {
		t.Fatal(err)
	}
	age(t, dir)
	return dir
}

// age sets the times of all files of a directory an hour back.
func age(t testing.TB, dir string) {
	t.Helper()
	then := time.Now().Add(-time.Hour)
	err := filepath.WalkDir(dir, func(path string, e fs.DirEntry, err error) error {
		if err != nil || !e.Type().IsRegular() {
			return err
		}
		return os.Chtimes(path, then, then)
	})
	if err != nil {
		t.Fatal(err)
	}
}

// shard is a safetensors file of U8 tensors with one element each, by name.
func shard(values map[string]byte) []byte {
	var entries []string
	var data []byte
	for name, value := range values {
		entries = append(entries, fmt.Sprintf(`%q:{"dtype":"U8","shape":[1],"data_offsets":[%d,%d]}`, name, len(data), len(data)+1))
		data = append(data, value)
	}
	header := "{" + strings.Join(entries, ",") + "}"
	b := binary.LittleEndian.AppendUint64(nil, uint64(len(header)))
	return append(append(b, header...), data...)
}

// model makes a directory of files, and adds a configuration if files has none.
func model(t testing.TB, files map[string][]byte) string {
	t.Helper()
	dir := t.TempDir()
	if _, ok := files["config.json"]; !ok {
		config, err := os.ReadFile(filepath.Join(checkpoints, "llama", "config.json"))
		if err != nil {
			t.Fatal(err)
		}
		write(t, filepath.Join(dir, "config.json"), config)
	}
	for name, b := range files {
		write(t, filepath.Join(dir, name), b)
	}
	age(t, dir)
	return dir
}

func write(t testing.TB, path string, b []byte) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, b, 0o600); err != nil {
		t.Fatal(err)
	}
}

func symlink(t testing.TB, to, path string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(to, path); err != nil {
		t.Fatal(err)
	}
}

func open(t testing.TB, dir string) *Dir {
	t.Helper()
	d, err := Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	return d
}

// flip changes the last byte of a file in place and keeps its size.
func flip(t testing.TB, path string) {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	b[len(b)-1] ^= 1
	f, err := os.OpenFile(path, os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = f.Close() }()
	if _, err := f.WriteAt(b, 0); err != nil {
		t.Fatal(err)
	}
}

func bases(files []*File) []string {
	var names []string
	for _, f := range files {
		names = append(names, f.Base)
	}
	return names
}

// relative replaces a test's folder in a text by DIR.
func relative(text, dir string) string { return strings.ReplaceAll(text, dir, "DIR") }
