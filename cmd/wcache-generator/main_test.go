// SPDX-FileCopyrightText: The wcache authors
// SPDX-License-Identifier: MIT

package main

import (
	"bytes"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// TestMain is also the command, for the tests that start it.
func TestMain(m *testing.M) {
	if os.Getenv("GENERATOR_TEST_RUN") != "" {
		main()
		return
	}
	os.Exit(m.Run())
}

func TestGenerator(t *testing.T) {
	root, tmp := t.TempDir(), t.TempDir()
	gpu := filepath.Join(root, "proc/driver/nvidia/gpus/0000:00:06.0")
	if err := os.MkdirAll(gpu, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(gpu, "information"), []byte("GPU UUID: \t GPU-c0310b5e-fbba-55e6-a977-3f9ff9c728ca\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	// A file where a folder should be is a place that can't be written, for root too.
	taken := filepath.Join(tmp, "taken")
	if err := os.WriteFile(taken, nil, 0o644); err != nil {
		t.Fatal(err)
	}
	out := filepath.Join(tmp, "out")
	tests := []struct {
		name   string
		root   string
		args   []string
		files  []string
		stdout string // its first line
		stderr string // its first line
	}{
		{"no GPU", tmp, []string{out, out + "1", out + "2"}, nil, "", ""},
		{"a GPU", root, []string{out, out + "1", out + "2"}, []string{
			"wcache-draft@0.socket.d/10-engine-paths.conf",
			"wcache-draft@GPU-c0310b5e-fbba-55e6-a977-3f9ff9c728ca.socket.d/10-engine-paths.conf",
			"wcache@0.socket.d/10-engine-paths.conf",
			"wcache@GPU-c0310b5e-fbba-55e6-a977-3f9ff9c728ca.socket.d/10-engine-paths.conf",
		}, "", ""},
		{"by hand", root, nil, nil, "# wcache@0.socket.d/10-engine-paths.conf", ""},
		{"nowhere to write", root, []string{taken}, nil, "",
			"wcache-generator: write drop-in: mkdir TMP/taken: not a directory"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			if err := os.RemoveAll(out); err != nil {
				t.Fatal(err)
			}
			var stdout, stderr bytes.Buffer
			cmd := exec.Command(os.Args[0], test.args...)
			cmd.Env = []string{"GENERATOR_TEST_RUN=1", "GORACE=atexit_sleep_ms=0", "WCACHE_ROOT=" + test.root, "TMPDIR=" + tmp}
			cmd.Stdout, cmd.Stderr = &stdout, &stderr
			if err := cmd.Run(); err != nil {
				t.Errorf("generator ended with %v", err)
			}
			var files []string
			_ = filepath.WalkDir(out, func(path string, d fs.DirEntry, err error) error {
				if err == nil && !d.IsDir() {
					files = append(files, strings.TrimPrefix(path, out+"/"))
				}
				return nil
			})
			if diff := cmp.Diff(test.files, files); diff != "" {
				t.Error("-want +got:\n" + diff)
			}
			first, _, _ := strings.Cut(stdout.String(), "\n")
			if first != test.stdout {
				t.Errorf("prints %q, not %q", first, test.stdout)
			}
			first, _, _ = strings.Cut(strings.ReplaceAll(stderr.String(), tmp, "TMP"), "\n")
			if first != test.stderr {
				t.Errorf("says %q, not %q", first, test.stderr)
			}
		})
	}
}
