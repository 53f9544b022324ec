// SPDX-FileCopyrightText: The wcache authors
// SPDX-License-Identifier: MIT

package config

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

func env(name string) string {
	return map[string]string{"HOME": "/home/ada"}[name]
}

func write(t *testing.T, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "wcache.toml")
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func TestLoad(t *testing.T) {
	system := write(t, `
roots = ["/srv/models"]
budget = "24GiB"
idle_exit = "0s"

[instance.0]
budget = "80.5GiB"
handles = "value"
`)
	user := write(t, `
pins = ["~/models/llama"]
policy = "pinned"
assume = ["rope"]

[instance."GPU-3f8a"]
workers = 3
handles = "legacy"
block = "8MiB"
direct = false
verify = "load"
torch = "2.12.1+rocm7"
`)
	missing := filepath.Join(t.TempDir(), "none.toml")
	base := Default()
	base.Roots, base.Budget, base.IdleExit = []string{"/srv/models"}, 24<<30, 0
	base.Pins, base.Policy, base.Assume = []string{"/home/ada/models/llama"}, PolicyPinned, []string{AssumeRope}
	zero := base
	zero.Budget, zero.Handles = 80<<30+512<<20, HandlesValue
	gpu := base
	gpu.Handles = HandlesLegacy
	gpu.Workers, gpu.Block, gpu.Direct, gpu.Verify, gpu.Torch = 3, 8<<20, false, VerifyLoad, "2.12.1+rocm7"
	for instance, want := range map[string]Config{"host": base, "0": zero, "GPU-3f8a": gpu} {
		got, err := Load([]string{system, missing, user}, instance, env)
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("instance %s (-want +got):\n%s", instance, diff)
		}
	}
}

func TestLoadWithoutFiles(t *testing.T) {
	got, err := Load([]string{"/nonexistent/wcache.toml"}, "0", env)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(Default(), got); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
}

func TestLoadRefuses(t *testing.T) {
	tests := []struct{ text, want string }{
		{"roots = [\n", ":1: roots: unexpected EOF; expected value"},
		{"\nbugdet = \"1GiB\"\n", `:2: unknown key "bugdet"`},
		{"[instance.0]\npolicy = 'any'\n\nrots = []\n", `:4: unknown key "instance.0.rots"`},
		{"[instnce.0]\n", `:1: unknown key "instnce.0"`},
		{"budget = \"24GB\"\n", `:1: budget: "24GB" is not an amount such as "24GiB" (B, KiB, MiB, GiB, TiB)`},
		{"budget = \"-1GiB\"\n", `:1: budget: "-1GiB" is not an amount such as "24GiB"`},
		{"budget = \"99999999999TiB\"\n", `:1: budget: "99999999999TiB" is not an amount such as "24GiB"`},
		{"idle_exit = \"soon\"\n", `:1: idle_exit: "soon" is not a time span such as "90s" or "10m"`},
		{"load_timeout = \"0s\"\n", `:1: load_timeout: must be more than 0`},
		{"memory_wait = \"0s\"\n", `:1: memory_wait: must be more than 0`},
		{"policy = \"all\"\n", `:1: policy: "all" is not one of any, pinned`},
		{"roots = [\"models\"]\n", `:1: roots: "models" is neither an absolute path nor starts with ~/`},
		{"[instance.'1']\nhandles = 'fast'\n", `:2: handles: "fast" is not one of mapped, value, legacy`},
		{"verify = 'always'\n", `:1: verify: "always" is not one of load, idle, off`},
		{"assume = ['all']\n", `:1: assume: "all" is not one of rope`},
		{"workers = 5000\n", `:1: workers: 5000 is not from 0 to 1024`},
		{"block = '4KiB'\n", `:1: block: 4096 bytes are not from 1MiB to 256MiB`},
		{"torch = 'new'\n", `:1: torch: "new" is not a version such as "2.14"`},
		{"workers = 'many'\n", `:1: workers: incompatible types: TOML value has type string; destination has type integer`},
	}
	for _, tt := range tests {
		path := write(t, tt.text)
		_, err := Load([]string{path}, "0", env)
		var e *Error
		if !errors.As(err, &e) {
			t.Errorf("%q: got %v, want an *Error", tt.text, err)
			continue
		}
		if got := strings.TrimPrefix(err.Error(), "read configuration: "+path); got != tt.want {
			t.Errorf("%q:\ngot  %s\nwant %s", tt.text, got, tt.want)
		}
	}
}

func TestLoadRefusesADirectory(t *testing.T) {
	dir := t.TempDir()
	_, err := Load([]string{dir}, "0", env)
	if want := "read configuration: " + dir + ": not a regular file of at most 1048576 bytes"; err == nil || err.Error() != want {
		t.Errorf("got %v, want %s", err, want)
	}
}

func TestPaths(t *testing.T) {
	const system = "/etc/wcache/wcache.toml"
	for _, tt := range []struct {
		home, folder string
		want         []string
	}{
		{"/home/ada", "", []string{system, "/home/ada/.config/wcache/wcache.toml"}},
		{"/home/ada", "/c", []string{system, "/c/wcache/wcache.toml"}},
		{"", "/c", []string{system, "/c/wcache/wcache.toml"}},
		{"", "", []string{system}}, // and no file in the working directory
		{"ada", "c", []string{system}},
	} {
		env := map[string]string{"HOME": tt.home, "XDG_CONFIG_HOME": tt.folder}
		if diff := cmp.Diff(tt.want, Paths(func(n string) string { return env[n] })); diff != "" {
			t.Errorf("%v: -want +got:\n%s", tt, diff)
		}
	}
}

// A path below an unknown home directory doesn't become a path in the working directory.
func TestLoadHomeless(t *testing.T) {
	for text, line := range map[string]string{
		"policy = 'any'\npins = ['/a', '~/b']\n": ":2: pins: \"~/b\"", "roots = ['~']\n": ":1: roots: \"~\"", "[instance.0]\nroots = ['~/c']\n": ": roots: \"~/c\"",
	} {
		path := write(t, text)
		_, err := Load([]string{path}, "0", func(string) string { return "" })
		want := "read configuration: " + path + line + " needs a home directory, and none is known: set HOME, or write an absolute path"
		if err == nil || err.Error() != want {
			t.Errorf("%q: got %v, want %s", text, err, want)
		}
	}
}

func TestBytes(t *testing.T) {
	for text, want := range map[string]Bytes{"0": 0, "1B": 1, "1.5 KiB": 1536, "2TiB": 2 << 40} {
		var got Bytes
		if err := got.UnmarshalText([]byte(text)); err != nil || got != want {
			t.Errorf("%q: got %d, %v, want %d", text, got, err, want)
		}
	}
	if time.Duration(Default().LoadTimeout) != time.Hour {
		t.Error("the default load time-out is not an hour")
	}
}

func FuzzLoad(f *testing.F) {
	f.Add("roots = ['/a']\n[instance.0]\nbudget = '1GiB'\n")
	f.Add("x = [[[[")
	f.Add("[[instance]]\nroots = 1\n")
	f.Add("instance.0.workers = 3")
	f.Fuzz(func(t *testing.T, text string) {
		c, err := merge(Default(), "f", text, "0")
		if err != nil {
			var e *Error
			if !errors.As(err, &e) {
				t.Errorf("error of another type: %v", err)
			}
			if !cmp.Equal(c, Config{}) {
				t.Error("a value beside an error")
			}
			return
		}
		if f := c.check(); f != nil {
			t.Errorf("accepted: %v", f)
		}
	})
}
