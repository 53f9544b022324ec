// SPDX-FileCopyrightText: The wcache authors
// SPDX-License-Identifier: MIT

package resolve

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/wcache/wcache/fingerprint"
	"github.com/wcache/wcache/weights/index"
)

// answered is an index that gives one answer.
type answered struct{ index.Answer }

func (a *answered) Lookup(context.Context, string) (index.Answer, error) { return a.Answer, nil }
func (a *answered) Current(_ string, version uint64) bool                { return version == a.Version }
func (a *answered) Gone(string) []index.Gone                             { return a.Answer.Gone }

// knows is an answer with these directories.
func knows(dirs ...string) *answered {
	a := &answered{index.Answer{Version: 7}}
	for _, d := range dirs {
		a.Dirs = append(a.Dirs, index.Dir{Path: d})
	}
	return a
}

// Each reason for certainty is found, and the strongest one wins.
func TestChoose(t *testing.T) {
	root := t.TempDir()
	a, b := model(t, root, "llama", "a"), model(t, root, "llama", "b")
	retouch(t, filepath.Join(b, "model-00003-of-00004.safetensors"))
	same := model(t, root, "llama", "same")
	link := filepath.Join(root, "current")
	if err := os.Symlink(b, link); err != nil {
		t.Fatal(err)
	}
	hub := filepath.Join(root, "hub")
	one, two := strings.Repeat("1", 40), strings.Repeat("2", 40)
	snapshot := func(commit string) string { return filepath.Join(hub, "models--o--n", "snapshots", commit) }
	for commit, from := range map[string]string{one: a, two: b} {
		if err := os.CopyFS(snapshot(commit), os.DirFS(from)); err != nil {
			t.Fatal(err)
		}
	}
	ref := filepath.Join(hub, "models--o--n", "refs", "main")
	if err := os.MkdirAll(filepath.Dir(ref), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(ref, []byte(two), 0o600); err != nil {
		t.Fatal(err)
	}
	key := recorded(t, "llama-tp1r0")
	revision := func(r string) fingerprint.Key { return set(t, key, "revision", r) }
	told := func(commit, repo string) fingerprint.Key {
		return set(t, key, "revision", fingerprint.Tuple{commit, nil, repo, "model"})
	}
	cut := model(t, root, "llama", "cut")
	if err := os.WriteFile(filepath.Join(cut, "config.json"), []byte(`{"bias": null`), 0o600); err != nil {
		t.Fatal(err)
	}
	partial := knows(a)
	partial.Roots = []index.Root{{Path: "/models", State: index.Partial, Reason: "it has over 5 folders"}}
	hung := knows(a)
	hung.Roots = []index.Root{{Path: "/net", State: index.Hung, Reason: "it does not answer"}}
	once := knows(a)
	once.Roots = []index.Root{{Path: "/net", State: index.Hung, Reason: "it does not answer", Whole: true}}
	now := time.Now()
	gone := knows(a)
	gone.Answer.Gone = []index.Gone{{Path: "/models/gone", At: now}}
	forgotten := knows(a)
	forgotten.Answer.Gone = []index.Gone{{Path: "/models/gone", At: now.Add(-index.GoneFor)}}
	torn := knows(a)
	torn.Unsure = []index.Unsure{{Path: snapshot(one), Err: errors.New("it is being written")}}
	fled := knows(a)
	fled.Answer.Gone = []index.Gone{{Path: snapshot(one), At: now}}
	unsure := knows(a)
	unsure.Unsure = []index.Unsure{{Path: "/models/x", Err: errors.New("it is being written")}}
	settles := func(dir string) string {
		return "start the engine as: vllm serve " + dir + `; or name the one that is meant in wcache.toml: pins = ["` + dir + `"]`
	}

	for _, c := range []struct {
		name    string
		o       Options
		key     fingerprint.Key
		started *Started
		dir     string
		sure    Sure
		err     error
	}{
		{name: "the engine says so", o: Options{Index: knows(a, b), Pins: []string{a}}, started: &Started{Dir: link}, dir: b, sure: ByEngine},
		{name: "the only one", o: Options{Index: knows(a)}, dir: a, sure: ByOnly},
		{name: "the only one, found twice", o: Options{Index: knows(b, link)}, dir: b, sure: ByOnly},
		{name: "the only one, strictly", o: Options{Index: knows(a), Strict: true}, err: &Refusal{
			Field: "checkpoint", Hint: settles(a),
			Reason: "it is not certain that " + a + ` is meant: identify = "strict" wants the engine, a revision or a pin to say which directory is meant`,
		}},
		{name: "all equal", o: Options{Index: knows(a, same)}, dir: a, sure: ByContent},
		{name: "all equal, strictly", o: Options{Index: knows(a, same), Strict: true}, err: &Refusal{
			Field: "checkpoint", Hint: settles(a),
			Reason: "it is not certain which directory is meant (" + a + ", " + same + `): identify = "strict" wants the engine, a revision or a pin to say which directory is meant`,
		}},
		{name: "a pin that is a link", o: Options{Index: knows(a, b), Pins: []string{link}, Strict: true}, dir: b, sure: ByPin},
		{name: "two pins", o: Options{Index: knows(a, b, same), Pins: []string{a, b}}, err: &Refusal{
			Field: "checkpoint", Hint: settles(a), Reason: "2 model directories have the same headers and different weights: " + a + ", " + b,
		}},
		{name: "a branch", o: Options{Index: knows(snapshot(one), snapshot(two)), Strict: true}, key: revision("main"), dir: snapshot(two), sure: ByRevision},
		{name: "a commit", o: Options{Index: knows(snapshot(one), snapshot(two)), Pins: []string{snapshot(two)}}, key: revision(one), dir: snapshot(one), sure: ByRevision},
		{name: "a revision that is not here", o: Options{Index: knows(snapshot(one))}, key: revision("main"), err: &Refusal{
			Field: "revision", Reason: snapshot(one) + ` is not revision "main"`, Hint: "fetch that revision into a folder that is below roots in wcache.toml",
		}},
		{name: "a commit that the hub has told", o: Options{Index: knows(snapshot(one), snapshot(two)), Strict: true}, key: told(one, "o/n"), dir: snapshot(one), sure: ByRevision},
		{name: "a commit of another repository", o: Options{Index: knows(snapshot(one))}, key: told(one, "o/m"), err: &Refusal{
			Field: "revision", Reason: snapshot(one) + ` is not revision "` + one + `"`, Hint: "fetch that revision into a folder that is below roots in wcache.toml",
		}},
		{name: "a model id, and a commit that the hub has told", o: Options{Index: knows(), Roots: []string{hub}}, key: set(t, told(one, "o/n"), "checkpoint", "o/n"), dir: snapshot(one), sure: ByName},
		{name: "an engine whose branch has moved since", o: Options{Index: knows()}, key: told(one, "o/n"), started: &Started{Dir: snapshot(two)}, dir: snapshot(one), sure: ByEngine},
		{name: "an engine whose commit is gone", o: Options{Index: knows()}, key: told(strings.Repeat("3", 40), "o/n"), started: &Started{Dir: snapshot(two)}, err: &Refusal{
			Field: "revision", Hint: "start the engine again, or fetch the model again",
			Reason: "the engine has commit " + strings.Repeat("3", 40) + ", whose snapshot can't be used: stat " + snapshot(strings.Repeat("3", 40)) + ": no such file or directory",
		}},
		{name: "an engine whose draft is of another repository", o: Options{Index: knows()}, key: told(one, "o/m"), started: &Started{Dir: snapshot(two)}, dir: snapshot(two), sure: ByEngine},
		{name: "no revision", o: Options{Index: knows(snapshot(one), snapshot(two))}, err: &Refusal{
			Field: "checkpoint", Hint: settles(snapshot(one)),
			Reason: "2 model directories have the same headers and different weights: " + snapshot(one) + ", " + snapshot(two),
		}},
		{name: "a root that is not searched whole", o: Options{Index: partial}, err: &Refusal{
			Field: "checkpoint", Hint: settles(a), Reason: "it is not certain that " + a + " is meant: root /models is not searched whole: it has over 5 folders",
		}},
		{name: "a root that hangs", o: Options{Index: hung}, err: &Uncertain{
			Hint: settles(a), Reason: "it is not certain that " + a + " is meant: root /net is not searched whole: it does not answer",
		}},
		{name: "a root that hangs, and was known whole", o: Options{Index: once}, dir: a, sure: ByOnly},
		{name: "one that is gone, and an engine that began before", o: Options{Index: gone, Began: now.Add(-time.Second)}, err: &Refusal{
			Field: "checkpoint", Hint: settles(a),
			Reason: "it is not certain that " + a + " is meant: /models/gone had the same headers until " + now.Format(time.TimeOnly) + ", and the engine may have read them there",
		}},
		{name: "one that is gone, and an engine of which that isn't known", o: Options{Index: gone}, err: &Refusal{
			Field: "checkpoint", Hint: settles(a),
			Reason: "it is not certain that " + a + " is meant: /models/gone had the same headers until " + now.Format(time.TimeOnly) + ", and the engine may have read them there",
		}},
		{name: "a pin, and the revision's snapshot is being written", o: Options{Index: torn, Pins: []string{a}}, key: revision(one), err: &Uncertain{
			Hint:   settles(a),
			Reason: "it is not certain that " + a + " is meant: a directory that may be meant can't be read now: " + snapshot(one) + ": it is being written",
		}},
		{name: "a pin, and another revision's snapshot is being written", o: Options{Index: torn, Pins: []string{a}}, key: revision(two), dir: a, sure: ByPin},
		{name: "a pin, and the revision's snapshot is gone", o: Options{Index: fled, Pins: []string{a}}, key: revision(one), err: &Refusal{
			Field: "checkpoint", Hint: settles(a),
			Reason: "it is not certain that " + a + " is meant: " + snapshot(one) + " had the same headers until " + now.Format(time.TimeOnly) + ", and the engine may have read them there",
		}},
		{name: "a pin, and the revision's snapshot was gone before", o: Options{Index: fled, Pins: []string{a}, Began: now.Add(time.Second)}, key: revision(one), dir: a, sure: ByPin},
		{name: "one that is gone, and a pin", o: Options{Index: gone, Pins: []string{a}}, dir: a, sure: ByPin},
		{name: "one that was gone when the engine began", o: Options{Index: gone, Began: now.Add(time.Second)}, dir: a, sure: ByOnly},
		{name: "one that is gone for long", o: Options{Index: forgotten}, dir: a, sure: ByOnly},
		{name: "a root that hangs, and a pin", o: Options{Index: hung, Pins: []string{a}}, dir: a, sure: ByPin},
		{name: "a directory that is being written", o: Options{Index: unsure}, err: &Uncertain{
			Hint: settles(a), Reason: "it is not certain that " + a + " is meant: a directory that may be meant can't be read now: /models/x: it is being written",
		}},
		{name: "a directory that is being written, and the engine", o: Options{Index: unsure}, started: &Started{Dir: a}, dir: a, sure: ByEngine},
		{name: "a twin whose configuration can't be read", o: Options{Index: knows(a, cut)}, err: &Uncertain{Hint: settles(a)}},
		{name: "nothing but what can't be read", o: Options{Index: &answered{index.Answer{Unsure: unsure.Unsure}}}, err: &Uncertain{
			Hint: settles("DIR"), Reason: "no model directory is certain to be meant: a directory that may be meant can't be read now: /models/x: it is being written",
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			if len(c.key.Fields()) == 0 {
				c.key = key
			}
			choice, err := Choose(t.Context(), c.o, c.key, c.started)
			if c.err != nil {
				var passes *Uncertain
				if errors.As(err, &passes) && strings.Contains(passes.Reason, "config.json") {
					passes.Reason = "" // worded by package weights
				}
				if diff := cmp.Diff(c.err, err); diff != "" {
					t.Errorf("error (-want +got):\n%s", diff)
				}
				return
			}
			if err != nil || choice.Dir != c.dir || choice.Sure != c.sure {
				t.Errorf("got %s by %q, %v; want %s by %q", choice.Dir, choice.Sure, err, c.dir, c.sure)
			}
		})
	}
}

// A choice is made again if something that it depends on has changed.
func TestStill(t *testing.T) {
	root := t.TempDir()
	a, b := model(t, root, "llama", "a"), model(t, root, "llama", "b")
	link := filepath.Join(root, "pin")
	relink := func(to string) {
		t.Helper()
		_ = os.Remove(link) // there may be none
		if err := os.Symlink(to, link); err != nil {
			t.Fatal(err)
		}
	}
	relink(a)
	x := knows(a, b)
	o := Options{Index: x, Pins: []string{link}}
	key := recorded(t, "llama-tp1r0")
	choose := func() Choice {
		t.Helper()
		c, err := Choose(t.Context(), o, key, nil)
		if err != nil {
			t.Fatal(err)
		}
		return c
	}
	c := choose()
	if !c.Still(o) {
		t.Error("nothing has changed")
	}
	relink(b)
	if c.Still(o) {
		t.Error("the pin leads elsewhere")
	}
	if c = choose(); c.Dir != b || !c.Still(o) {
		t.Errorf("got %s", c.Dir)
	}
	x.Version++
	if c.Still(o) {
		t.Error("the index has another answer")
	}
	o.Pins = nil
	if c = choose(); c.Sure != ByContent || !c.Still(o) {
		t.Errorf("got %s by %s", c.Dir, c.Sure)
	}
	x.Answer.Gone = []index.Gone{{Path: "/models/gone", At: time.Now()}}
	o.Began = time.Now().Add(time.Minute)
	if c = choose(); !c.Still(o) {
		t.Error("one was gone before the engine began")
	}
	o.Began = time.Time{}
	if c.Still(o) {
		t.Error("an engine may mean one that is gone, and the choice was another's")
	}
	x.Answer.Gone = nil
	o.Strict = true
	if c.Still(o) {
		t.Error("it is not enough any more")
	}
	said, err := Choose(t.Context(), o, key, &Started{Dir: a})
	if err != nil || said.Still(o) {
		t.Errorf("what an engine says is read each time: %v", err)
	}
}

// If files were replaced after the engine started, the error says so: the key no longer
// fits the directory that the engine was started with.
func TestBlame(t *testing.T) {
	root := t.TempDir()
	a := model(t, root, "llama", "a")
	o := Options{Index: knows()}
	key := set(t, recorded(t, "llama-tp1r0"), "checkpoint", strings.Repeat("0", 32))
	choice, err := Choose(t.Context(), o, key, &Started{Name: "./a", Dir: a, By: "vllm serve (pid 5)"})
	if err != nil {
		t.Fatal(err)
	}
	_, err = Plan(o, key, choice.Dir)
	wantRefusal(t, choice.Blame(err), &Refusal{
		Field: "checkpoint",
		Reason: "vllm serve (pid 5) was started with ./a, and the files there are not those that the engine has read: the engine has " +
			strings.Repeat("0", 32) + ", " + a + " gives d0b480a03b1c2a44061558d5eab5335f: the names or headers of the safetensors files differ",
		Hint: "start the engine again",
	})
}
