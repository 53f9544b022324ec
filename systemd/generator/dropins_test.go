// SPDX-FileCopyrightText: The wcache authors
// SPDX-License-Identifier: MIT

package generator

import (
	"errors"
	"flag"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

var update = flag.Bool("update", false, "write testdata anew")

func TestDropIns(t *testing.T) {
	one := []GPU{{0, "0000:00:06.0", uuidA}}
	tests := []struct {
		name string
		m    Machine
	}{
		{"none", Machine{UID: 1000, TempDir: "/tmp", RuntimeDir: "/run/user/1000"}},
		{"one", Machine{GPUs: one, UID: 1000, TempDir: "/tmp", RuntimeDir: "/run/user/1000"}},
		{"three", Machine{UID: 1000, TempDir: "/var/tmp", RuntimeDir: "/run/user/1000",
			GPUs: []GPU{{0, "0000:21:00.0", uuidA}, {1, "0000:41:00.0", ""}, {2, "0000:c1:00.0", uuidB}}}},
		{"fips", Machine{GPUs: one, UID: 1000, TempDir: "/tmp", RuntimeDir: "/run/user/1000", FIPS: true}},
		{"long", Machine{GPUs: one, UID: 1000, TempDir: "/scratch/projects/" + strings.Repeat("x", 30), RuntimeDir: "/run/user/1000"}},
		{"percent", Machine{GPUs: one, UID: 1000, TempDir: "/tmp/100% mine", RuntimeDir: "/run/user/1000"}},
		{"linebreak", Machine{GPUs: one, UID: 1000, TempDir: "/tmp/a\nExecStartPre=b", RuntimeDir: "/run/user/1000"}},
		{"distrust", Machine{GPUs: one, UID: 1000, TempDir: "/tmp", RuntimeDir: "/run/user/1000",
			Distrust: "/tmp/vllm_weight_cache_1000 belongs to user 1001: set TMPDIR to a directory of your own"}},
		{"notemp", Machine{GPUs: one, UID: 1000, RuntimeDir: "/run/user/1000"}},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			var b strings.Builder
			for _, d := range DropIns(test.m) {
				b.WriteString("-- " + d.Path + " --\n" + d.Text)
			}
			golden := filepath.Join("testdata", test.name+".golden")
			if *update {
				if err := os.WriteFile(golden, []byte(b.String()), 0o644); err != nil {
					t.Fatal(err)
				}
			}
			want, err := os.ReadFile(golden)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(string(want), b.String()); diff != "" {
				t.Error("-want +got:\n" + diff)
			}
		})
	}
}

// The names are those of vLLM's get_socket_path: the md5 was seen in use by 0.33
// on the GPU of this uuid.
func TestEnginePaths(t *testing.T) {
	const (
		md5    = "4c62b9dad4ae1c226d611a4d7b68a7e3"
		sha256 = "31587f0fb8d3ba36566a0af00b277ee971eed43f67dffe95a8eab284c0dde2f9"
		long   = "BYTES bytes, and a socket's path has at most 107: set the engine's socket_path to one of those in /run/user/1000/vllm_weight_cache"
	)
	tooLong := func(bytes string) string { return strings.Replace(long, "BYTES", bytes, 1) }
	tests := []struct {
		name string
		m    Machine
		want []Path
	}{
		{"plain", Machine{UID: 1000, TempDir: "/tmp", RuntimeDir: "/run/user/1000"}, []Path{
			{"/tmp/vllm_weight_cache_1000/vllm_weight_cache_" + uuidA + ".sock", false, "0.30", ""},
			{"/tmp/vllm_weight_cache_1000/vllm_weight_cache_" + md5 + ".sock", false, "0.31 and later", ""},
			{"/tmp/vllm_weight_cache_1000/vllm_weight_cache_" + md5 + "_draft.sock", true, "0.31 and later", ""},
			{"/run/user/1000/vllm_weight_cache/vllm_weight_cache_" + uuidA + ".sock", false, "0.30", ""},
			{"/run/user/1000/vllm_weight_cache/vllm_weight_cache_" + md5 + ".sock", false, "0.31 and later", ""},
			{"/run/user/1000/vllm_weight_cache/vllm_weight_cache_" + md5 + "_draft.sock", true, "0.31 and later", ""},
		}},
		{"FIPS", Machine{UID: 1000, TempDir: "/t", RuntimeDir: "/run/user/1000", FIPS: true}, []Path{
			{"/t/vllm_weight_cache_1000/vllm_weight_cache_" + uuidA + ".sock", false, "0.30", ""},
			{"/t/vllm_weight_cache_1000/vllm_weight_cache_" + md5 + ".sock", false, "0.31 and later", ""},
			{"/t/vllm_weight_cache_1000/vllm_weight_cache_" + md5 + "_draft.sock", true, "0.31 and later", ""},
			{"/t/vllm_weight_cache_1000/vllm_weight_cache_" + sha256 + ".sock", false, "0.31 and later", tooLong("113")},
			{"/t/vllm_weight_cache_1000/vllm_weight_cache_" + sha256 + "_draft.sock", true, "0.31 and later", tooLong("119")},
			{"/run/user/1000/vllm_weight_cache/vllm_weight_cache_" + uuidA + ".sock", false, "0.30", ""},
			{"/run/user/1000/vllm_weight_cache/vllm_weight_cache_" + md5 + ".sock", false, "0.31 and later", ""},
			{"/run/user/1000/vllm_weight_cache/vllm_weight_cache_" + md5 + "_draft.sock", true, "0.31 and later", ""},
			{"/run/user/1000/vllm_weight_cache/vllm_weight_cache_" + sha256 + ".sock", false, "0.31 and later", tooLong("120")},
			{"/run/user/1000/vllm_weight_cache/vllm_weight_cache_" + sha256 + "_draft.sock", true, "0.31 and later", tooLong("126")},
		}},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			if diff := cmp.Diff(test.want, test.m.EnginePaths(uuidA)); diff != "" {
				t.Error("-want +got:\n" + diff)
			}
		})
	}
}

// The longest path that systemd accepts, and one byte more.
func TestPathLimit(t *testing.T) {
	for n, want := range map[int]bool{maxSocketPath: true, maxSocketPath + 1: false} {
		if got := (Machine{}).problem("/" + strings.Repeat("x", n-1)); (got == "") != want {
			t.Errorf("%d bytes: %q", n, got)
		}
	}
}

func TestWrite(t *testing.T) {
	dir := t.TempDir()
	// A file is in the way of the first drop-in; the second is still written.
	if err := os.WriteFile(filepath.Join(dir, "a.socket.d"), nil, 0o644); err != nil {
		t.Fatal(err)
	}
	err := Write(dir, []DropIn{{"a.socket.d/x.conf", "a"}, {"b.socket.d/x.conf", "b"}})
	var path *fs.PathError
	if !errors.As(err, &path) {
		t.Errorf("error is %v", err)
	}
	got, err := os.ReadFile(filepath.Join(dir, "b.socket.d/x.conf"))
	if err != nil || string(got) != "b" {
		t.Errorf("second drop-in is %q, %v", got, err)
	}
}

// The environment can't add lines to a unit.
func FuzzDropIns(f *testing.F) {
	f.Add("/tmp", "/run/user/1000", "")
	f.Add("/tmp/a\n[Service]\nExecStart=/bin/false", "/run\r\n", "a\nb")
	f.Add("/\xff", "/%h", "")
	f.Fuzz(func(t *testing.T, tmp, run, why string) {
		m := Machine{GPUs: []GPU{{0, "0000:00:06.0", uuidA}}, TempDir: tmp, RuntimeDir: run, Distrust: why, FIPS: true}
		for _, d := range DropIns(m) {
			for line := range strings.Lines(d.Text) {
				line = strings.TrimSuffix(line, "\n")
				switch value, listen := strings.CutPrefix(line, "ListenStream="); {
				case listen && len(value) <= 2*maxSocketPath && !strings.ContainsAny(value, "\n\r\x00") &&
					!strings.Contains(strings.ReplaceAll(value, "%%", ""), "%"):
				case line == "[Unit]", line == "[Socket]", strings.HasPrefix(line, "# "):
				case strings.HasPrefix(line, "Conflicts=wcache"), strings.HasPrefix(line, "After=wcache"):
				default:
					t.Errorf("%s has the line %q", d.Path, line)
				}
			}
		}
	})
}
