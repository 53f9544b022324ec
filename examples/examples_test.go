// SPDX-FileCopyrightText: The wcache authors
// SPDX-License-Identifier: MIT

// Package examples has files to copy: an image, pods, a timer. Here their syntax
// is held to the programs that read them; docs/containers.md says what was run.
package examples

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

func TestUnits(t *testing.T) {
	analyze, err := exec.LookPath("systemd-analyze")
	if err != nil {
		t.Skip("no systemd-analyze")
	}
	dir := t.TempDir()
	if err := os.CopyFS(dir, os.DirFS("prometheus")); err != nil {
		t.Fatal(err)
	}
	args := []string{"--user", "--man=no", "verify"}
	for _, name := range []string{"wcache-metrics@.service", "wcache-metrics@.timer"} {
		args = append(args, filepath.Join(dir, name), filepath.Join(dir, strings.Replace(name, "@", "@0", 1)))
	}
	cmd := exec.Command(analyze, args...)
	cmd.Env = []string{"XDG_RUNTIME_DIR=" + dir, "HOME=" + dir, "PATH=" + os.Getenv("PATH"), "LANG=C.UTF-8"}
	if out, err := cmd.CombinedOutput(); err != nil || len(out) != 0 {
		t.Errorf("systemd-analyze: %v, and says:\n%s", err, out)
	}
}

// TestPods parses the manifests, where Python has what it takes, and compares what
// both containers of a pod have to agree on.
func TestPods(t *testing.T) {
	const check = `
import sys
try:
    import yaml
except ImportError:
    sys.exit(77)
for path in sys.argv[1:]:
    pod = [d for d in yaml.safe_load_all(open(path)) if d["kind"] == "Pod"][0]["spec"]
    cache, engine = pod["initContainers"][0], pod["containers"][0]
    words = " ".join(cache.get("command", []) + cache.get("args", [])).split()
    socket = words[words.index("--listen") + 1]
    assert pod["shareProcessNamespace"], path
    assert '{"socket_path":"%s"}' % socket in engine["command"][-1], path
    assert socket in cache["startupProbe"]["exec"]["command"], path
    names = {v["name"] for v in pod["volumes"]}
    for c in (cache, engine):
        assert {m["name"] for m in c["volumeMounts"]} <= names, path
        assert socket.startswith([m["mountPath"] for m in c["volumeMounts"] if m["name"] == "socket"][0]), path
`
	cmd := exec.Command("python3", "-c", check, "kubernetes/cpu.yaml", "kubernetes/gpu.yaml")
	out, err := cmd.CombinedOutput()
	switch {
	case cmd.ProcessState == nil, cmd.ProcessState.ExitCode() == 77:
		t.Skip("no Python with yaml")
	case err != nil:
		t.Errorf("%v\n%s", err, out)
	}
}
