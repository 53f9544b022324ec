// SPDX-FileCopyrightText: The wcache authors
// SPDX-License-Identifier: MIT

package main

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
	"unicode"

	"github.com/google/go-cmp/cmp"

	"github.com/wcache/wcache/control"
	"github.com/wcache/wcache/device"
	"github.com/wcache/wcache/doctor"
	"github.com/wcache/wcache/fingerprint"
	"github.com/wcache/wcache/internal/logqueue"
)

// evil is a name that colours, clears the screen, asks the terminal to answer, draws a
// line of its own, and turns the direction of writing.
const evil = "m\x1b[31m\x1b[2J\u009b6n\n# all is well\r\u202elasrever"

const evilShown = `m\x1b[31m\x1b[2J\u009b6n\n# all is well\r\u202elasrever`

// harmless fails if a text contains anything that a terminal would act on.
func harmless(t *testing.T, what, text string) {
	t.Helper()
	for _, r := range text {
		if r != '\n' && !unicode.IsPrint(r) {
			t.Errorf("%s: %q is printed in\n%q", what, r, text)
			return
		}
	}
	if strings.Contains(text, "\n# all is well") {
		t.Errorf("%s: a name has made a line of its own in\n%s", what, text)
	}
}

func evilKey(t *testing.T) fingerprint.Key {
	t.Helper()
	key, err := fingerprint.NewKey([]fingerprint.Field{{Name: "model_arch", Value: evil}, {Name: evil, Value: fingerprint.Tuple{evil}}})
	if err != nil {
		t.Fatal(err)
	}
	return key
}

// Names of models, processes, keys and GPUs, and quotations in errors, are shown by the
// terminal and never acted on.
func TestNamesOnATerminal(t *testing.T) {
	key := evilKey(t)
	engine := []control.Engine{{PID: 7, Comm: evil}}
	status := control.Status{
		Schema: control.Schema, Instance: evil, State: "serving", PID: 7, Since: time.Now(), Version: control.Version{Daemon: evil}, Socket: evil,
		Device: control.Device{Kind: evil}, GPU: &device.GPU{UUID: evil, Name: evil, Driver: evil, State: evil, Processes: []device.GPUProcess{{PID: 7, Comm: evil}}},
		Problems: []string{evil}, Entries: []control.Entry{{
			Key: evil, Model: "/models/" + evil, Sure: evil, State: "loading", Engines: engine, Fingerprint: key, Used: time.Now(),
			Progress: &control.Progress{Waiting: evil},
		}},
	}
	miss := control.Miss{
		Time: time.Now(), PID: 7, Comm: evil, Reason: evil, Field: evil, Message: evil, Hint: evil, Sure: evil,
		Directories: []string{evil}, Held: &control.Held{Key: evil, Model: evil, Fingerprint: evilKey(t)}, Fingerprint: key,
	}
	entry := &control.Entry{Key: evil, Model: evil, Fingerprint: key}
	for name, tt := range map[string]struct {
		args   []string
		reply  control.Reply
		failed bool
	}{
		"status":     {args: []string{"status"}, reply: control.Reply{Status: &status}},
		"json":       {args: []string{"status", "--json"}, reply: control.Reply{Status: &status}},
		"prometheus": {args: []string{"status", "--prometheus"}, reply: control.Reply{Status: &status}},
		"version":    {args: []string{"version"}, reply: control.Reply{Status: &status}},
		"explain":    {args: []string{"explain"}, reply: control.Reply{Misses: []control.Miss{miss, miss}}},
		"warm":       {args: []string{"warm", "/models"}, reply: control.Reply{Entry: entry}},
		"evict":      {args: []string{"evict", "7c"}, reply: control.Reply{Evicted: []string{evil}}},
		"error":      {args: []string{"evict", "7c"}, reply: control.Reply{Error: &control.Error{Code: control.CodeInUse, Message: evil, Hint: evil}}, failed: true},
		"json error": {args: []string{"evict", "7c", "--json"}, reply: control.Reply{Error: &control.Error{Code: control.CodeInUse, Message: evil, Hint: evil}}, failed: true},
		"completion": {args: []string{"__complete", "evict", ""}, reply: control.Reply{Status: &status}},
		"name":       {args: []string{"evict", "7c", evil}, failed: true},
	} {
		t.Run(name, func(t *testing.T) {
			tt.reply.Final = true
			line, err := json.Marshal(tt.reply)
			if err != nil {
				t.Fatal(err)
			}
			var out, errs bytes.Buffer
			a := &app{out: &out, err: &errs, env: noEnv}
			code := a.execute(t.Context(), append([]string{"--socket", serveOne(t, string(line))}, tt.args...))
			if (code != 0) != tt.failed {
				t.Errorf("exit %d\n%s%s", code, &out, &errs)
			}
			harmless(t, "standard output", out.String())
			harmless(t, "standard error", errs.String())
			if out.Len()+errs.Len() == 0 {
				t.Error("nothing is printed")
			}
		})
	}
	for _, a := range []*app{{env: noEnv}, {env: noEnv, json: true}} {
		var drawn bytes.Buffer // by --watch
		a.drawInto(&drawn, status)
		harmless(t, "watch", drawn.String())
	}
}

// Names that commands find on disk.
func TestFilesOnATerminal(t *testing.T) {
	folder := t.TempDir()
	name := strings.ReplaceAll(evil, "/", "_")
	model, broken := filepath.Join(folder, name), filepath.Join(folder, "broken"+name)
	must(t, os.CopyFS(model, os.DirFS("../../testdata/checkpoints/llama")), os.Mkdir(broken, 0o700))
	header := fmt.Sprintf(`{%q:{"dtype":"BF16","shape":[1],"data_offsets":[0,9]}}`, "tensor\u009b")
	write(t, filepath.Join(broken, "model.safetensors"), string(binary.LittleEndian.AppendUint64(nil, uint64(len(header))))+header)
	write(t, filepath.Join(broken, "config.json"), `{"architectures":["\u001b[31m\u009b"],"model_type":"\u001b"}`)
	for _, args := range [][]string{
		{"explain", model}, {"explain", broken}, {"explain", model + "none"}, {"explain", `{"model_arch": "\u001b[31m\u009b", "dtype": "torch.bfloat16"}`, model},
		{"explain", "--config", model + ".toml", `{"checkpoint": "\u009b"}`}, {"__complete", "warm", ""}, {"doctor"}, {"--gpu", evil, "status"},
	} {
		env := map[string]string{"HF_HUB_CACHE": folder, "XDG_CONFIG_HOME": folder, "XDG_RUNTIME_DIR": model}
		write(t, filepath.Join(folder, "wcache.toml"), "")
		must(t, os.MkdirAll(filepath.Join(folder, "wcache"), 0o700), os.WriteFile(filepath.Join(folder, "wcache/wcache.toml"), fmt.Appendf(nil, "roots = [%q]\n", folder), 0o600))
		var out, errs bytes.Buffer
		a := &app{out: &out, err: &errs, sysroot: t.TempDir(), env: func(n string) string { return env[n] }}
		a.execute(t.Context(), args)
		harmless(t, fmt.Sprintf("%.30q: standard output", args), out.String())
		harmless(t, fmt.Sprintf("%.30q: standard error", args), errs.String())
	}
}

// A check of doctor is one line.
func TestChecksOnATerminal(t *testing.T) {
	var out bytes.Buffer
	a := app{out: &out, env: noEnv}
	if err := a.printChecks([]doctor.Result{{State: doctor.Fail, Check: "GPU", Text: evil + "\n", Mend: "kill " + evil}}); err != nil {
		t.Fatal(err)
	}
	want := "fail   GPU   " + strings.Replace(evilShown, `\n`, "; ", 1) + "   -> kill " + strings.Replace(evilShown, `\n`, "; ", 1) + "\n1 failed, 0 warnings\n"
	if diff := cmp.Diff(want, out.String()); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
}

// The log of a daemon that was started by hand is on a terminal.
func TestLogOnATerminal(t *testing.T) {
	for _, stream := range []string{"", "8:1"} {
		var out bytes.Buffer
		log := slog.New(logqueue.Handler(&out, func(string) string { return stream }, slog.LevelDebug))
		log.Info(evil, "model", evil, "err", errors.New(evil), "list", []string{evil})
		harmless(t, "log", out.String())
	}
}

// All output goes through say, so that text added later is escaped, too.
func TestSayAlone(t *testing.T) {
	files, err := filepath.Glob("*.go")
	if err != nil {
		t.Fatal(err)
	}
	for _, path := range files {
		if strings.HasSuffix(path, "_test.go") || path == "print.go" {
			continue
		}
		set := token.NewFileSet()
		f, err := parser.ParseFile(set, path, nil, parser.SkipObjectResolution)
		if err != nil {
			t.Fatal(err)
		}
		ast.Inspect(f, func(n ast.Node) bool {
			c, ok := n.(*ast.CallExpr)
			if !ok {
				return true
			}
			s, ok := c.Fun.(*ast.SelectorExpr)
			if !ok {
				return true
			}
			from, _ := s.X.(*ast.Ident)
			prints := from != nil && from.Name == "fmt" && (strings.HasPrefix(s.Sel.Name, "Fprint") || strings.HasPrefix(s.Sel.Name, "Print"))
			if prints && !toBuilder(c) || slices.Contains([]string{"NewEncoder"}, s.Sel.Name) {
				t.Errorf("%s: %s.%s: use say or printJSON, which escape", set.Position(c.Pos()), from.Name, s.Sel.Name)
			}
			return true
		})
	}
}

// toBuilder reports whether a call of Fprintf writes to memory, &b.
func toBuilder(c *ast.CallExpr) bool {
	u, ok := c.Args[0].(*ast.UnaryExpr)
	return ok && u.Op == token.AND
}
