// SPDX-FileCopyrightText: The wcache authors
// SPDX-License-Identifier: MIT

package evidence

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/wcache/wcache/weights"
)

const (
	oldCommit = "0123456789abcdef0123456789abcdef01234567"
	newCommit = "89abcdef0123456789abcdef0123456789abcdef"
)

// engine runs vllm serve with some words in a directory, and gives its evidence.
func engine(t *testing.T, s stage) *Evidence {
	t.Helper()
	s.Argv = append([]string{"vllm", "serve"}, s.Argv...)
	c := start(t, s)
	e, err := Read(c.pids[0])
	if err != nil {
		t.Fatal(err)
	}
	return e
}

// located is a place, or the error, in one line without the test's directory.
func located(t *testing.T, e *Evidence, draft bool, dir string) string {
	t.Helper()
	p, err := e.Locate(draft)
	if err != nil {
		return strings.ReplaceAll(err.Error(), dir, "DIR")
	}
	var st unix.Stat_t
	if p.Own != "" {
		if err := unix.Stat(p.Own, &st); err != nil {
			t.Fatal(err)
		}
		if st.Dev != p.Device || st.Ino != p.Inode {
			t.Errorf("%s is another directory: got %+v", p.Own, p)
		}
	}
	text := p.Path
	if p.Own != p.Path {
		text += " own " + p.Own
	}
	if p.Revision != "" {
		text += " at " + p.Revision
	}
	return strings.ReplaceAll(text, dir, "DIR")
}

func TestLocate(t *testing.T) {
	snapshot := func(cache, repo, commit string) string { return cache + "/models--" + repo + "/snapshots/" + commit }
	contents := map[string]string{
		"models/m/config.json":       "{}",
		"models/link":                "->m",
		"work/rel/config.json":       "{}",
		"work/org/model/config.json": "{}", // a directory goes before a model id
		"work/file":                  "",
		"elsewhere/deep/":            "",
		"elsewhere/m/config.json":    "{}",
		"work/jump":                  "->../elsewhere/deep",
		"models/spec/config.json":    `{"speculators_config": {}}`,
		snapshot("hub", "org--hub", oldCommit) + "/config.json":          "{}",
		snapshot("hub", "org--hub", newCommit) + "/config.json":          "{}",
		"hub/models--org--hub/refs/main":                                 newCommit,
		"hub/models--org--hub/refs/v1":                                   oldCommit,
		snapshot("home/.cache/huggingface/hub", "tiny", oldCommit) + "/": "",
		"home/.cache/huggingface/hub/models--tiny/refs/main":             oldCommit,
		snapshot("down", "org--hub", newCommit) + "/":                    "",
		"down/models--org--hub/refs/main":                                newCommit,
		snapshot("work/cache/hub", "org--rel", oldCommit) + "/":          "",
		"work/cache/hub/models--org--rel/refs/main":                      oldCommit,
		snapshot("down", "org--spec", oldCommit) + "/":                   "",
		"down/models--org--spec/refs/main":                               oldCommit,
		snapshot("hub", "org--spec", oldCommit) + "/config.json":         `{"speculators_config": {}}`,
		"hub/models--org--spec/refs/main":                                oldCommit,
	}
	dir := folder(t, contents)
	hub := []string{"HF_HUB_CACHE=" + dir + "/hub", "TRANSFORMERS_CACHE=" + dir + "/down"}
	for _, c := range []struct {
		line  string // DIR is the test's directory
		env   []string
		model string
		draft string // "": has none
	}{
		{line: "DIR/models/m", model: "DIR/models/m"},
		{line: "DIR/models//m/.", model: "DIR/models/m"},
		{line: "DIR/models/link", model: "DIR/models/link"},
		{line: "rel", model: "DIR/work/rel"},
		{line: "./rel/", model: "DIR/work/rel"},
		{line: "../models/m --revision v1", model: "DIR/models/m at v1"},
		{line: "jump/../m", model: "DIR/work/jump/../m"}, // through the link, as the kernel does
		{line: "org/model", env: hub, model: "DIR/work/org/model"},
		{line: "file", model: `find model "file": is a file, not a model directory; tried ["DIR/work/file"]`},
		{line: "DIR/none", model: `find model "DIR/none": no such directory; tried ["DIR/none"]`},
		{line: "DIR/models/m/config.json/x", model: `find model "DIR/models/m/config.json/x": no such directory; tried ["DIR/models/m/config.json/x"]`},
		{line: "./none", env: hub, model: `find model "./none": is not a model id; tried ["DIR/work/./none"]`},
		{line: "org/hub", env: hub, model: snapshot("DIR/hub", "org--hub", newCommit)},
		{line: "org/hub --revision v1", env: hub, model: snapshot("DIR/hub", "org--hub", oldCommit) + " at v1"},
		{line: "org/hub --revision " + oldCommit, env: hub, model: snapshot("DIR/hub", "org--hub", oldCommit) + " at " + oldCommit},
		{line: "org/none", env: hub, model: `find model "org/none": is not in the cache; fetch the model; tried ["DIR/work/org/none" "DIR/hub/models--org--none/refs/main"]`},
		{line: "tiny", env: []string{"HOME=" + dir + "/home"}, model: snapshot("DIR/home/.cache/huggingface/hub", "tiny", oldCommit)},
		{line: "tiny", model: `find model "tiny": HOME is not set, and only the engine's own system knows its home directory`},
		{line: "org/rel", env: []string{"HF_HOME=cache"}, model: snapshot("DIR/work/cache/hub", "org--rel", oldCommit)},
		{line: "org/hub --download-dir DIR/down", env: hub, model: snapshot("DIR/down", "org--hub", newCommit)},
		{line: "org/hub --download-dir ../down", env: hub, model: snapshot("DIR/down", "org--hub", newCommit)},
		{line: "org/hub --download-dir DIR/down", env: append(hub, "HF_HUB_OFFLINE=1"), model: snapshot("DIR/hub", "org--hub", newCommit)},
		{line: "org/rel --download-dir DIR/down", env: hub, model: `find model "org/rel": is not in the cache; fetch the model; tried ["DIR/work/org/rel" "DIR/down/models--org--rel/refs/main"]`},
		{line: "org/hub --download-dir ~/down", env: hub, model: "find model \"org/hub\": --download-dir is \"~/down\", which not every release of huggingface_hub takes for a home directory; give its path"},
		{line: "org/hub", env: append(hub, "VLLM_USE_MODELSCOPE=True"), model: `find model "org/hub": VLLM_USE_MODELSCOPE is set: it comes from ModelScope's cache, which is not looked into; give the engine the directory`},
		{line: "rel", env: append(hub, "VLLM_USE_MODELSCOPE=True"), model: "DIR/work/rel"},

		{line: "rel --spec-model DIR/models/m", model: "DIR/work/rel", draft: "DIR/models/m"},
		{line: `rel -sc {"model":"org/hub","revision":"v1"}`, env: hub, model: "DIR/work/rel", draft: snapshot("DIR/hub", "org--hub", oldCommit) + " at v1"},
		{line: `rel -sc {"model":"org/hub"} --download-dir DIR/down`, env: append(hub, "HF_HUB_OFFLINE=1"), model: "DIR/work/rel", draft: snapshot("DIR/down", "org--hub", newCommit)},
		{line: `rel -sc {"method":"mtp","num_speculative_tokens":1}`, model: "DIR/work/rel", draft: "DIR/work/rel"},
		{line: `org/hub --revision v1 -sc {"method":"mtp","num_speculative_tokens":1}`, env: hub,
			model: snapshot("DIR/hub", "org--hub", oldCommit) + " at v1", draft: snapshot("DIR/hub", "org--hub", newCommit)},
		{line: `org/hub --revision v1 -sc {"method":"mtp","num_speculative_tokens":1}`, env: append(hub, "TRANSFORMERS_OFFLINE=yes"),
			model: snapshot("DIR/hub", "org--hub", oldCommit) + " at v1", draft: snapshot("DIR/hub", "org--hub", oldCommit) + " at v1"},
		{line: "DIR/none --spec-model rel", model: `find model "DIR/none": no such directory; tried ["DIR/none"]`, draft: `find model "DIR/none": no such directory; tried ["DIR/none"]`},
		{line: "DIR/models/spec --spec-model rel", model: speculatorsError("DIR/models/spec"), draft: speculatorsError("DIR/models/spec")},
		{line: "org/spec --download-dir DIR/down", env: hub, model: speculatorsError("org/spec")},
	} {
		t.Run(c.line+strings.Join(c.env, " "), func(t *testing.T) {
			t.Parallel()
			argv := strings.Fields(strings.ReplaceAll(c.line, "DIR", dir))
			e := engine(t, stage{Argv: argv, Env: c.env, Dir: dir + "/work"})
			if got := located(t, e, false, dir); got != c.model {
				t.Errorf("got %s, want %s", got, c.model)
			}
			if c.draft == "" {
				c.draft = "find the engine's model: the command line has no --speculative-config"
			}
			if got := located(t, e, true, dir); got != c.draft {
				t.Errorf("draft: got %s, want %s", got, c.draft)
			}
		})
	}
}

func speculatorsError(name string) string {
	return `find model "` + name + `": its config.json is in the format of speculators: the engine's model is the one that it names as the verifier; give the engine that one with --model, and this one in --speculative-config`
}

// The cache's record of a branch changed after the engine began, so the engine may have
// used the earlier commit.
func TestLocateMoved(t *testing.T) {
	t.Parallel()
	ref := "hub/models--org--m/refs/main"
	dir := folder(t, map[string]string{
		"hub/models--org--m/snapshots/" + oldCommit + "/": "",
		ref: oldCommit,
	})
	env := []string{"HF_HUB_CACHE=" + dir + "/hub"}
	first := "DIR/hub/models--org--m/snapshots/" + oldCommit
	e := engine(t, stage{Argv: []string{"org/m"}, Env: env, Dir: dir})
	if got := located(t, e, false, dir); got != first {
		t.Errorf("got %s, want %s", got, first)
	}
	imported(t, e)
	if err := os.WriteFile(filepath.Join(dir, ref), []byte(oldCommit), 0o644); err != nil {
		t.Fatal(err)
	}
	if got := located(t, e, false, dir); got != first {
		t.Errorf("written by the engine's own download: got %s, want %s", got, first)
	}
	if err := os.Mkdir(filepath.Join(dir, "hub/models--org--m/snapshots", newCommit), 0o755); err != nil {
		t.Fatal(err)
	}
	want := `find model "org/m": DIR/` + ref + " was written after the engine began, and there are several commits; give the engine the one that is meant with --revision"
	if got := located(t, e, false, dir); got != want {
		t.Errorf("got %s, want %s", got, want)
	}
	named := engine(t, stage{Argv: []string{"org/m", "--revision", oldCommit}, Env: env, Dir: dir})
	if got := located(t, named, false, dir); got != first+" at "+oldCommit {
		t.Errorf("got %s, want %s", got, first)
	}
}

// Locate distinguishes files that may not be read from files that don't exist.
func TestLocateUnreadable(t *testing.T) {
	dir := folder(t, map[string]string{"models/m/": "", "loop": "->loop"})
	e := engine(t, stage{Argv: []string{dir + "/loop"}, Dir: dir})
	_, err := e.Locate(false)
	var unreadable *Unreadable
	if !errors.As(err, &unreadable) || !errors.Is(err, unix.ELOOP) || unreadable.PID != e.PID {
		t.Errorf("got %v", err)
	}
	magic := engine(t, stage{Argv: []string{"/proc/self/cwd/models/m"}, Dir: dir})
	if _, err := magic.Locate(false); !errors.As(err, &unreadable) || !errors.Is(err, unix.ELOOP) {
		t.Errorf("got %v", err)
	}
	if os.Getuid() == 0 {
		return // root may read everything; TestReadHidden covers a reader that may not
	}
	if err := os.Chmod(dir+"/models", 0); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.Chmod(dir+"/models", 0o755) })
	closed := engine(t, stage{Argv: []string{dir + "/models/m"}, Dir: dir})
	if _, err := closed.Locate(false); !errors.As(err, &unreadable) || !errors.Is(err, fs.ErrPermission) {
		t.Errorf("got %v", err)
	}
}

// In another mount namespace a path may be another directory, or the same.
func TestLocateMounts(t *testing.T) {
	needRoot(t, "a mount namespace")
	dir := folder(t, map[string]string{"models/m/": "", "mine/m/": "", "same/": "", "gone/": ""})
	apart := stage{Mounts: true, Bind: [2]string{dir + "/mine", dir + "/models"}, Dir: dir}
	for name, want := range map[string]string{
		dir + "/models/m": "DIR/models/m own ",
		"models/m":        "DIR/models/m own ",
		dir + "/same":     "DIR/same",
		dir + "/gone":     "DIR/gone own ",
	} {
		s := apart
		s.Argv = []string{name}
		e := engine(t, s)
		if name == dir+"/gone" {
			// The directory exists in the engine's namespace, and this process sees another one.
			hide(t, dir+"/gone")
		}
		if got := located(t, e, false, dir); got != want {
			t.Errorf("%s: got %s, want %s", name, got, want)
		}
	}
	inode := func(path string) uint64 {
		var st unix.Stat_t
		if err := unix.Stat(path, &st); err != nil {
			t.Fatal(err)
		}
		return st.Ino
	}
	apart.Argv = []string{dir + "/models/m"}
	if p, err := engine(t, apart).Locate(false); err != nil || p.Inode != inode(dir+"/mine/m") {
		t.Errorf("got %+v, %v", p, err)
	}
	// vllm serve and its engine core see different files.
	c := start(t, stage{Argv: []string{"vllm", "serve", dir + "/models/m"}, Dir: dir},
		stage{Argv: []string{"VLLM::EngineCore"}, Mounts: true, Bind: apart.Bind})
	if e, err := Read(c.pids[1]); err != nil || !strings.HasSuffix(e.Model.None, "have different roots or mount namespaces") {
		t.Errorf("got %+v, %v", e, err)
	}
}

// hide covers a directory in this namespace, for the rest of a test.
func hide(t *testing.T, dir string) {
	t.Helper()
	if err := unix.Mount("none", dir, "tmpfs", 0, ""); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(dir, unix.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
}

// Absolute links inside of a root stay inside of it.
func TestLocateRoot(t *testing.T) {
	needRoot(t, "chroot")
	snapshot := "jail/hf/hub/models--org--m/snapshots/" + oldCommit
	dir := folder(t, map[string]string{
		"jail/models/m":                        "->/real/m",
		"jail/models/up":                       "->../../../../../real/m",
		"jail/real/m/config.json":              "->/blobs/config",
		"jail/blobs/config":                    "{}",
		"jail/models/spec/config.json":         "->/blobs/spec",
		"jail/blobs/spec":                      `{"speculators_config": 1}`,
		"jail/work/rel/":                       "",
		snapshot:                               "->/real/m",
		"jail/hf/hub/models--org--m/refs/main": "->/blobs/main",
		"jail/blobs/main":                      oldCommit,
		"jail/work/c.yaml":                     "->/blobs/c.yaml",
		"jail/blobs/c.yaml":                    "model: /models/m\n",
	})
	for _, mounts := range []bool{false, true} {
		for _, c := range []struct{ line, want string }{
			{"/models/m", "/models/m own "},
			{"/models/up", "/models/up own "},
			{"rel", "/work/rel own "},
			{"../models/m", "/models/m own "},
			{"org/m", "/hf/hub/models--org--m/snapshots/" + oldCommit + " own "},
			{"/models/spec", speculatorsError("/models/spec")},
			{"--config c.yaml", "/models/m own "},
			{dir + "/jail/models/m", `find model "DIR/jail/models/m": no such directory; tried ["DIR/jail/models/m"]`},
		} {
			e := engine(t, stage{Argv: strings.Fields(c.line), Env: []string{"HF_HOME=/hf"}, Root: dir + "/jail", Dir: "/work", Mounts: mounts})
			if got := located(t, e, false, dir); got != c.want || e.Cwd != "/work" {
				t.Errorf("%s, mounts %v: got %s in %s, want %s", c.line, mounts, got, e.Cwd, c.want)
			}
		}
	}
	var missing *weights.NotFound
	e := engine(t, stage{Argv: []string{"/models/none"}, Root: dir + "/jail", Dir: "/"})
	if _, err := e.Locate(false); !errors.As(err, &missing) {
		t.Errorf("got %v", err)
	}
}

// A removed working directory has no path.
func TestLocateWithoutCwd(t *testing.T) {
	dir := folder(t, map[string]string{"work/m/": "", "abs/": ""})
	gone := engine(t, stage{Argv: []string{"m"}, Dir: dir + "/work"})
	other := engine(t, stage{Argv: []string{dir + "/abs"}, Dir: dir + "/work"})
	if err := os.RemoveAll(dir + "/work"); err != nil {
		t.Fatal(err)
	}
	want := `find model "m": it is relative to the engine's working directory, to which "DIR/work" does not lead any more`
	if got := located(t, gone, false, dir); got != want {
		t.Errorf("got %s, want %s", got, want)
	}
	if got := located(t, other, false, dir); got != "DIR/abs" {
		t.Errorf("got %s", got)
	}
}
