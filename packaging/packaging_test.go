// SPDX-FileCopyrightText: The wcache authors
// SPDX-License-Identifier: MIT

// Package packaging_test holds what the packages carry to what the program has.
// The packages themselves are tested by "make test-packages".
package packaging_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"regexp"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/wcache/wcache/config"
	"github.com/wcache/wcache/internal/testmain"
)

func TestMain(m *testing.M) { testmain.Run(m) }

// setting is a line of wcache.toml that says something once its # is taken away;
// prose has a space after it.
var setting = regexp.MustCompile(`(?m)^#([a-z_[].*)$`)

// The file as it is installed says nothing. With every # taken away it says the
// defaults, of every key that there is.
func TestConfiguration(t *testing.T) {
	shipped, err := os.ReadFile("wcache.toml")
	if err != nil {
		t.Fatal(err)
	}
	full := filepath.Join(t.TempDir(), "wcache.toml")
	if err := os.WriteFile(full, setting.ReplaceAll(shipped, []byte("$1")), 0o600); err != nil {
		t.Fatal(err)
	}
	host := config.Default()
	host.Budget = 8 << 30
	tests := []struct {
		file, instance string
		want           config.Config
	}{
		{"wcache.toml", "host", config.Default()},
		{full, "0", config.Default()},
		{full, "host", host},
	}
	for _, test := range tests {
		got, err := config.Load([]string{test.file}, test.instance, func(string) string { return "" })
		if err != nil {
			t.Fatal(err)
		}
		if len(got.Assume) == 0 {
			got.Assume = nil // an empty list says as much as none
		}
		if diff := cmp.Diff(test.want, got); diff != "" {
			t.Errorf("%s, instance %s (-default +got):\n%s", test.file, test.instance, diff)
		}
	}

	var want, got []string
	for _, field := range reflect.VisibleFields(reflect.TypeFor[config.Config]()) {
		want = append(want, field.Tag.Get("toml"))
	}
	top, _, _ := strings.Cut(string(shipped), "\n#[")
	for _, found := range setting.FindAllStringSubmatch(top, -1) {
		key, _, _ := strings.Cut(found[1], " = ")
		got = append(got, key)
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("keys, in the order of package config (-want +got):\n%s", diff)
	}
}

func TestVersion(t *testing.T) {
	tests := []struct{ word, want string }{
		{"1.2.3", "1.2.3"},
		{"v1.2.3", "1.2.3"},
		{"v1.2.3-dirty", "1.2.3+dirty"},
		{"v1.2.3-rc1", "1.2.3-rc1"},
		{"v1.2.3-14-gabcdef0", "1.2.3+14.gabcdef0"},
		{"v1.2.3-14-gabcdef0-dirty", "1.2.3+14.gabcdef0.dirty"},
		{"v1.2.3-rc1-2-gabcdef0", "1.2.3-rc1+2.gabcdef0"},
		{"1.2.3-rc1+2.gabcdef0", "1.2.3-rc1+2.gabcdef0"},
		{"abcdef0", "0.1.0-devN"},
		{"abcdef0-dirty", "0.1.0-devN+dirty"},
		{"unknown", "0.1.0-devN"},
		{"0.1.0~rc1", "exit status 1"},
		{"latest", "exit status 1"},
	}
	commits := regexp.MustCompile(`-dev\d+`) // none in an archive of the tree
	for _, test := range tests {
		out, err := exec.Command("./version.sh", test.word).Output()
		got := commits.ReplaceAllString(strings.TrimSpace(string(out)), "-devN")
		if err != nil {
			got = err.Error()
		}
		if got != test.want {
			t.Errorf("%s: %s, want %s", test.word, got, test.want)
		}
	}
}

// Each module that is compiled into the programs has its stanza.
func TestCopyright(t *testing.T) {
	text, err := os.ReadFile("copyright")
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command("go", "list", "-deps", "-f", "{{with .Module}}{{if not .Main}}{{.Path}}{{end}}{{end}}", "../cmd/...")
	cmd.Stderr = os.Stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatal(err)
	}
	version := regexp.MustCompile(`/v\d+$`)
	for _, module := range strings.Fields(string(out)) {
		path := version.ReplaceAllString(module, "")
		if !strings.Contains(string(text), path+"/*") && !strings.HasPrefix(path, "golang.org/x/") {
			t.Errorf("%s is not in packaging/copyright", path)
		}
	}
}
