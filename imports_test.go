// SPDX-FileCopyrightText: The wcache authors
// SPDX-License-Identifier: MIT

package wcache

import (
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

const module = "github.com/wcache/wcache"

// allowed is the table of docs/design.md: what each package may import of this
// module, tests aside. Reading it downwards goes from the wire and the disk to
// the program.
var allowed = map[string][]string{
	"tensor":               {},
	"tensor/cast":          {"tensor"},
	"stamp":                {},
	"release":              {},
	"internal/advice":      {},
	"internal/fd":          {},
	"internal/home":        {},
	"internal/logqueue":    {},
	"internal/quota":       {},
	"internal/visible":     {},
	"internal/testmain":    {"internal/fd"},
	"attached":             {"internal/fd"},
	"internal/hungfs":      {"internal/fd"},
	"config":               {},
	"weights/safetensors":  {"tensor"},
	"weights/hfconfig":     {"tensor"},
	"weights":              {"internal/quota", "stamp", "tensor", "weights/safetensors", "weights/hfconfig"},
	"weights/index":        {"internal/fd", "stamp", "weights", "weights/safetensors"},
	"evidence":             {"internal/fd", "weights"},
	"fingerprint":          {"release", "tensor", "weights", "weights/hfconfig"},
	"protocol/pickle":      {},
	"protocol":             {"protocol/pickle", "tensor", "fingerprint"},
	"torch":                {"release", "protocol", "protocol/pickle", "tensor"},
	"layout":               {"release", "stamp", "tensor", "tensor/cast", "weights", "weights/safetensors", "weights/hfconfig"},
	"device":               {"internal/fd"},
	"device/host":          {"device", "internal/fd"},
	"device/devicetest":    {"device", "internal/fd"},
	"device/cuda":          {"device", "internal/fd"},
	"device/cuda/fake":     {},
	"device/nvml":          {"device"},
	"device/place":         {"device", "device/cuda", "device/host", "device/nvml", "systemd/generator"},
	"loader/native":        {"layout", "stamp", "tensor", "tensor/cast", "device", "internal/fd"},
	"loader":               {"loader/native", "layout", "stamp", "tensor", "device", "internal/fd"},
	"activation":           {"internal/fd"},
	"manifest":             {"fingerprint", "stamp"},
	"resolve":              {"config", "fingerprint", "layout", "weights", "weights/index"},
	"cache":                {"device", "fingerprint", "internal/fd", "manifest", "tensor"},
	"control":              {"device", "fingerprint"},
	"explain":              {"config", "control", "fingerprint", "resolve", "weights"},
	"control/schematest":   {},
	"client":               {"control", "internal/fd", "protocol"},
	"daemon/peer":          {"internal/fd"},
	"daemon/socket":        {"daemon/peer"},
	"daemon":               {"attached", "daemon/peer", "daemon/socket", "internal/advice", "cache", "config", "control", "device", "evidence", "fingerprint", "internal/fd", "internal/quota", "internal/visible", "tensor", "layout", "loader", "manifest", "protocol", "release", "resolve", "stamp", "torch", "weights", "weights/index"},
	"daemon/listeners":     {"activation", "control", "daemon", "daemon/socket"},
	"doctor":               {"config", "device", "internal/visible", "systemd/generator"},
	"systemdtest":          {},
	"packagetest":          {"control"},
	"systemd/generator":    {},
	"cmd/wcache-generator": {"systemd/generator"},
	"churn":                {"client", "control", "fingerprint", "protocol", "tensor", "weights"},
	"demo/engine":          {"client", "protocol", "tensor"},

	"tools/manual/messages":    {},
	"tools/manual/diagnostics": {"tools/manual/messages"},
}

// cmd/wcache is wiring and may import everything; nothing imports cmd.
func TestImports(t *testing.T) {
	found := make(map[string]bool)
	err := filepath.WalkDir(".", func(path string, e fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case e.IsDir() && (strings.HasPrefix(e.Name(), ".") && path != "." || e.Name() == "testdata"):
			return filepath.SkipDir
		case e.IsDir() || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go"):
			return nil
		}
		pkg := filepath.ToSlash(filepath.Dir(path))
		found[pkg] = true
		f, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.ImportsOnly)
		if err != nil {
			return err
		}
		for _, i := range f.Imports {
			name, ours := strings.CutPrefix(strings.Trim(i.Path.Value, `"`), module+"/")
			switch {
			case !ours:
			case strings.HasPrefix(name, "cmd/"):
				t.Errorf("%s imports %s: nothing imports cmd", path, name)
			case pkg == "cmd/wcache" || pkg == "bench":
			case !slices.Contains(allowed[pkg], name):
				t.Errorf("%s imports %s: the table of docs/design.md doesn't have it", path, name)
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	for pkg := range found {
		if _, ok := allowed[pkg]; !ok && pkg != "." && pkg != "cmd/wcache" && pkg != "bench" {
			t.Errorf("package %s is not in the table", pkg)
		}
	}
	for pkg := range allowed {
		if !found[pkg] {
			t.Errorf("package %s of the table is not there", pkg)
		}
	}
}

// maxLines is where a file would be two.
const maxLines = 450

func TestFiles(t *testing.T) {
	const header = "// SPDX-FileCopyrightText: The wcache authors\n// SPDX-License-Identifier: MIT\n"
	err := filepath.WalkDir(".", func(path string, e fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case e.IsDir() && strings.HasPrefix(e.Name(), ".") && path != ".":
			return filepath.SkipDir
		case e.IsDir() || !strings.HasSuffix(path, ".go"):
			return nil
		}
		text, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		if !strings.HasPrefix(string(text), header) {
			t.Errorf("%s doesn't begin with the licence's two lines", path)
		}
		if n := strings.Count(string(text), "\n"); n > maxLines && !strings.HasSuffix(path, "_test.go") {
			t.Errorf("%s has %d lines, more than %d", path, n, maxLines)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}
