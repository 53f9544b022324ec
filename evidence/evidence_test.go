// SPDX-FileCopyrightText: The wcache authors
// SPDX-License-Identifier: MIT

package evidence

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/wcache/wcache/internal/testmain"
)

var exported = cmp.Options{cmpopts.IgnoreUnexported(Evidence{}), cmp.AllowUnexported(Claim{})}

// Read finds the command line of vllm serve from an engine's core, from its worker, and
// from vllm serve itself.
func TestRead(t *testing.T) {
	dir := folder(t, nil)
	argv := []string{"/venv/bin/python3", "/venv/bin/vllm", "serve", "./m", "--revision", "v1", "--download-dir=/d", "-sc", `{"model":"d","num_speculative_tokens":1}`, ""}
	argv = argv[:len(argv)-1]
	c := start(t,
		stage{Argv: argv, Env: []string{"HOME=/h", "HF_HOME=/hf", "HF_TOKEN=secret", "XDG_CACHE_HOME="}, Dir: dir},
		stage{Argv: []string{"VLLM::EngineCore"}},
		stage{Argv: []string{"VLLM::Worker_TP0"}},
	)
	want := &Evidence{
		PID: c.pids[0], Program: "vllm serve", Command: argv, Cwd: dir, DownloadDir: "/d",
		Env:   map[string]string{"HOME": "/h", "HF_HOME": "/hf", "XDG_CACHE_HOME": ""},
		Model: Claim{Name: "./m", Revision: "v1"}, Draft: Claim{Name: "d"},
	}
	for _, pid := range c.pids {
		got, err := Read(pid)
		if diff := cmp.Diff(want, got, exported); diff != "" || err != nil {
			t.Errorf("%v: %s", err, diff)
		}
	}
}

// If there is no evidence, the reason says why; PID… is the first helper's pid.
func TestReadNone(t *testing.T) {
	core := stage{Argv: []string{"VLLM::EngineCore"}}
	serve := stage{Argv: []string{"vllm", "serve", "m"}}
	elsewhere := core
	elsewhere.Dir = t.TempDir()
	apart := core
	apart.Session = true
	redirected := serve
	redirected.Env = []string{"VLLM_MODEL_REDIRECT_PATH=/redirects"}
	long := serve
	long.Env = []string{"X=" + strings.Repeat("x", 100<<10)}
	for range 20 {
		long.Env = append(long.Env, long.Env[0])
	}
	deep := []stage{serve}
	for range maxParents + 1 {
		deep = append(deep, core)
	}
	for name, c := range map[string]struct {
		stages []stage
		none   string
	}{
		"a Python program": {
			[]stage{{Argv: []string{"python3", "my.py", "--key", "secret"}}, core},
			`no parent of process PID1 is vllm serve or python -m vllm: process PID0 runs "python3 my.py", whose models no command line names`,
		},
		"a Python program below vllm serve": {
			[]stage{serve, {Argv: []string{"python3", "my.py"}}, core},
			`no parent of process PID2 is vllm serve or python -m vllm: process PID1 runs "python3 my.py", whose models no command line names`,
		},
		"nothing of vLLM": {
			[]stage{{Argv: []string{"sleep"}}},
			`no parent of process PID0 is vllm serve or python -m vllm: process PID0 runs "sleep", whose models no command line names`,
		},
		"other session":           {[]stage{serve, apart}, "process PID1 was started in another session than its parent PID0"},
		"other working directory": {[]stage{serve, elsewhere}, "processes PID1 and PID0 have different working directories"},
		"redirected":              {[]stage{redirected, core}, "VLLM_MODEL_REDIRECT_PATH is set, so that the model may be another than the one named"},
		"a client":                {[]stage{{Argv: []string{"vllm", "bench", "serve", "--model", "m"}}}, `"vllm bench serve" is not known to start an engine with a model of its own`},
		"no model":                {[]stage{{Argv: []string{"vllm", "serve"}}, core}, `"vllm serve" names no model`},
		"too deep":                {deep, fmt.Sprintf("none of %d parents of process PID17 is vllm serve or python -m vllm", maxParents)},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			running := start(t, c.stages...)
			got, err := Read(running.pids[len(running.pids)-1])
			want := c.none
			for i := len(running.pids) - 1; i >= 0; i-- {
				want = strings.ReplaceAll(want, fmt.Sprintf("PID%d", i), strconv.Itoa(running.pids[i]))
			}
			if err != nil || got.Model.None != want || got.Draft.None != want || got.Model.Name+got.Draft.Name != "" {
				t.Errorf("got %+v, %v; want %s", got, err, want)
			}
			_, err = got.Locate(false)
			var unsure *Uncertain
			if !errors.As(err, &unsure) || unsure.Reason != want {
				t.Errorf("Locate gives %v", err)
			}
		})
	}
	for pid, want := range map[int]string{
		0: "the engine's process has no number here: it is in another pid namespace",
		1: "no parent of process 1 is vllm serve or python -m vllm: process 1 runs ",
	} {
		if got, err := Read(pid); err == nil && !strings.HasPrefix(got.Model.None, want) && got.Model.None != "process 1 is of another user" {
			t.Errorf("process %d: got %+v", pid, got)
		}
	}
}

func TestReadGone(t *testing.T) {
	c := start(t, stage{Argv: []string{"vllm", "serve", "/"}})
	e, err := Read(c.pids[0])
	if err != nil {
		t.Fatal(err)
	}
	c.end()
	_, readErr := Read(c.pids[0])
	_, locateErr := e.Locate(false)
	for _, err := range []error{readErr, locateErr} {
		var unreadable *Unreadable
		if !errors.As(err, &unreadable) || !errors.Is(err, ErrGone) || !errors.Is(err, os.ErrProcessDone) || unreadable.PID != c.pids[0] {
			t.Errorf("got %v", err)
		}
	}
}

// A pid that now belongs to another process.
func TestReadReused(t *testing.T) {
	needRoot(t, "choosing a process's number")
	got := says(t, stage{Argv: []string{"reuse"}, Reuse: true})
	want := regexp.MustCompile(`^one number: true; the second: <nil>; the first: read stat of process \d+: the process has ended$`)
	if !want.MatchString(got) {
		t.Errorf("got %s", got)
	}
}

// Read checks after reading: the start time of every process, the parents, and what the
// last one runs.
func TestParents(t *testing.T) {
	c := start(t, stage{Argv: []string{"vllm", "serve", "m"}}, stage{Argv: []string{"VLLM::EngineCore"}})
	good, err := ancestry(c.pids[1])
	if err != nil || good.unchanged() != nil || len(good.processes) != 2 {
		t.Fatalf("got %+v, %v", good, err)
	}
	for name, change := range map[string]func(*chain){
		"the engine is another one": func(c *chain) { c.processes[0].start++ },
		"the parent is another one": func(c *chain) { c.processes[1].start++ },
		"its parent has changed":    func(c *chain) { c.processes[0].parent = 1 },
		"the parent runs another":   func(c *chain) { c.argv = []string{"vllm", "serve", "n"} },
	} {
		chain := good
		chain.processes = append([]process(nil), good.processes...)
		change(&chain)
		var unreadable *Unreadable
		if err := chain.unchanged(); !errors.Is(err, ErrGone) || !errors.As(err, &unreadable) {
			t.Errorf("%s: got %v", name, err)
		}
	}
	chain := good
	chain.processes = append([]process(nil), good.processes...)
	chain.processes[1].parent = 1
	if err := chain.unchanged(); err != nil {
		t.Errorf("the shell that started vllm serve has ended: got %v", err)
	}
}

const nobody = 65534

func TestReadOfOthers(t *testing.T) {
	needRoot(t, "a process of another user")
	c := start(t, stage{Argv: []string{"vllm", "serve", "m"}, User: nobody}, stage{Argv: []string{"VLLM::EngineCore"}})
	want := fmt.Sprintf("process %d is of another user", c.pids[1])
	if got, err := Read(c.pids[1]); err != nil || got.Model.None != want {
		t.Errorf("got %+v, %v; want %s", got, err, want)
	}
	// An engine of this user, below another user's process.
	own := start(t, stage{Argv: []string{"vllm", "serve", "m"}}, stage{Argv: []string{"VLLM::EngineCore"}, User: nobody})
	want = fmt.Sprintf("process %d is of another user", own.pids[0])
	if got := says(t, stage{Argv: []string{"reader"}, Reads: own.pids[1], User: nobody}); !strings.Contains(got, want) || !strings.HasSuffix(got, "; <nil>") {
		t.Errorf("got %s, want %s", got, want)
	}
}

// A process that isn't dumpable hides its environment even from its own user.
func TestReadHidden(t *testing.T) {
	needRoot(t, "a reader that may not read all")
	c := start(t, stage{Argv: []string{"vllm", "serve", "m"}, User: nobody, Hidden: true})
	want := fmt.Sprintf("read environ of process %d: open /proc/%d/environ: permission denied", c.pids[0], c.pids[0])
	if got := says(t, stage{Argv: []string{"reader"}, Reads: c.pids[0], User: nobody}); !strings.HasSuffix(got, want) {
		t.Errorf("got %s, want %s", got, want)
	}
	err := error(&Unreadable{PID: 1, What: "environ", Err: fs.ErrPermission})
	if !errors.Is(err, fs.ErrPermission) || errors.Is(err, ErrGone) {
		t.Errorf("got %v", err)
	}
}

// A file of options counts only if it hasn't changed since the engine began.
func TestReadConfig(t *testing.T) {
	t.Parallel()
	dir := folder(t, map[string]string{"c.yaml": "model: from-file\nspeculative-config: {model: d}\n", "pipe": "", "big.yaml": strings.Repeat("#", maxConfig+1)})
	core := stage{Argv: []string{"VLLM::EngineCore"}}
	reading := func(file string) cast {
		return start(t, stage{Argv: []string{"vllm", "serve", "--config", file}, Dir: dir}, core)
	}
	c := reading("c.yaml")
	e, err := Read(c.pids[1])
	if err != nil || e.Model != (Claim{Name: "from-file"}) || e.Draft != (Claim{Name: "d"}) {
		t.Errorf("got %+v, %v", e, err)
	}
	for _, x := range [][2]string{
		{dir + "/none.yaml", `--config "` + dir + `/none.yaml": open ` + dir + "/none.yaml: no such file or directory"},
		{"big.yaml", fmt.Sprintf("is over %d bytes long", maxConfig)},
		{"/dev/null.yaml/../null", `vLLM takes no --config "/dev/null.yaml/../null", which isn't named .yaml or .yml`},
	} {
		got, err := Read(reading(x[0]).pids[1])
		if err != nil || !strings.HasSuffix(got.Model.None, x[1]) || got.Draft.None != got.Model.None {
			t.Errorf("%s: got %+v, %v", x[0], got, err)
		}
	}
	imported(t, e)
	if err := os.Chmod(dir+"/c.yaml", 0o600); err != nil {
		t.Fatal(err)
	}
	if got, err := Read(c.pids[1]); err != nil || got.Model.None != `--config "c.yaml" was changed after the engine began` {
		t.Errorf("got %+v, %v", got, err)
	}
}

// imported waits until an engine may have read files.
func imported(t *testing.T, e *Evidence) {
	t.Helper()
	testmain.Eventually(t, "a process of a second's age", func() bool {
		const grain = 100 * time.Millisecond // more than that of a file system's clock
		since, err := e.process.changedSince(time.Now().Add(-grain))
		if err != nil {
			t.Fatal(err)
		}
		return since
	})
}

// BenchmarkRead measures the cost of Read per engine request.
func BenchmarkRead(b *testing.B) {
	c := start(b, stage{Argv: []string{"vllm", "serve", "/", "-tp", "2", "--load-format", "ipc_cache"}}, stage{Argv: []string{"VLLM::EngineCore"}}, stage{Argv: []string{"VLLM::Worker_TP0"}})
	for b.Loop() {
		e, err := Read(c.pids[2])
		if err != nil {
			b.Fatal(err)
		}
		if _, err := e.Locate(false); err != nil {
			b.Fatal(err)
		}
	}
}
