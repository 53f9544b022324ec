// SPDX-FileCopyrightText: The wcache authors
// SPDX-License-Identifier: MIT

package weights

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func environment(vars map[string]string) func(string) string {
	return func(name string) string { return vars[name] }
}

func TestHubCaches(t *testing.T) {
	for _, c := range []struct {
		vars map[string]string
		want []string
	}{
		{map[string]string{"HOME": "/h"}, []string{"/h/.cache/huggingface/hub"}},
		{map[string]string{"HOME": "/h", "XDG_CACHE_HOME": "/x"}, []string{"/x/huggingface/hub"}},
		{map[string]string{"HOME": "/h", "XDG_CACHE_HOME": "/x", "HF_HOME": "/hf"}, []string{"/hf/hub"}},
		{map[string]string{"HOME": "/h", "HF_HOME": "~/hf"}, []string{"/h/hf/hub"}},
		{map[string]string{"HF_HOME": "/hf", "HUGGINGFACE_HUB_CACHE": "/old"}, []string{"/old"}},
		{map[string]string{"HF_HOME": "/hf", "HUGGINGFACE_HUB_CACHE": "/old", "HF_HUB_CACHE": "/hub/"}, []string{"/hub"}},
		{map[string]string{"HF_HUB_CACHE": "$BIG/${USER}/$UNSET/hub", "BIG": "/big", "USER": "me"}, []string{"/big/me/$UNSET/hub"}},
		{map[string]string{"HF_HUB_CACHE": "/hub", "TRANSFORMERS_CACHE": "/tf"}, []string{"/hub", "/tf"}},
		{map[string]string{"HF_HUB_CACHE": "/hub", "TRANSFORMERS_CACHE": "/hub/"}, []string{"/hub"}},
		{nil, nil}, // without a home directory there is no cache, and the working directory is not one
		{map[string]string{"HOME": "h", "HF_HUB_CACHE": "~/hub", "TRANSFORMERS_CACHE": "tf"}, nil},
		{map[string]string{"HF_HUB_CACHE": "hub", "TRANSFORMERS_CACHE": "/tf"}, []string{"/tf"}},
	} {
		if diff := cmp.Diff(c.want, HubCaches(environment(c.vars))); diff != "" {
			t.Errorf("%v: %s", c.vars, diff)
		}
	}
}

const (
	oldCommit = "0123456789abcdef0123456789abcdef01234567"
	newCommit = "89abcdef0123456789abcdef0123456789abcdef"
)

// Cases W5 and W13.
func TestLocate(t *testing.T) {
	dir := t.TempDir()
	hub := dir + "/hub"
	for _, sub := range []string{
		"/hub/models--org--model/snapshots/" + oldCommit,
		"/hub/models--org--model/snapshots/" + newCommit,
		"/hub/models--gpt2/snapshots/" + oldCommit,
		"/hub/models--org--unrecorded/snapshots/" + oldCommit,
		"/tf/models--org--legacy/snapshots/" + oldCommit,
		"/models/llama",
	} {
		if err := os.MkdirAll(dir+sub, 0o700); err != nil {
			t.Fatal(err)
		}
	}
	write(t, hub+"/models--org--model/refs/main", []byte(newCommit))
	write(t, hub+"/models--org--model/refs/refs/pr/1", []byte(oldCommit+"\n"))
	write(t, hub+"/models--org--model/refs/broken", []byte("../../../../models"))
	write(t, hub+"/models--org--model/refs/gone", []byte(strings.Repeat("a", 40)))
	write(t, hub+"/models--gpt2/refs/main", []byte(oldCommit))
	write(t, hub+"/models--org--file/snapshots/"+oldCommit, nil)
	write(t, dir+"/tf/models--org--legacy/refs/main", []byte(oldCommit))
	write(t, dir+"/models/file", nil)
	env := environment(map[string]string{"HF_HUB_CACHE": hub, "TRANSFORMERS_CACHE": dir + "/tf"})

	relativePath := "is neither an absolute path nor a model id; relative paths depend on the engine's working directory, so give it the absolute one"
	ref := func(repo, revision string) string { return "DIR/hub/models--" + repo + "/refs/" + revision }
	snapshot := func(repo, commit string) string { return "DIR/hub/models--" + repo + "/snapshots/" + commit }
	legacy := func(repo, revision string) string { return "DIR/tf/models--" + repo + "/refs/" + revision }

	for _, c := range []struct {
		name, revision string
		want           string // the directory, or the error
		tried          []string
	}{
		{dir + "/models/llama", "", "DIR/models/llama", []string{"DIR/models/llama"}},
		{dir + "/models/llama/", "", "DIR/models/llama", []string{"DIR/models/llama"}},
		{dir + "/models/../models//llama/.", "", "DIR/models/llama", []string{"DIR/models/llama"}},
		{dir + "/models/none", "", "no such directory", []string{"DIR/models/none"}},
		{dir + "/models/file", "", "is a file; give the directory that it is in", []string{"DIR/models/file"}},
		{"./llama", "", relativePath, nil},
		{"../llama", "", relativePath, nil},
		{"models/llama/", "", relativePath, nil},
		{"a/b/c", "", relativePath, nil},
		{"~/llama", "", relativePath, nil},
		{"", "", relativePath, nil},
		{"org/..", "", relativePath, nil},
		{"org/a--b", "", relativePath, nil},

		{"org/model", "", snapshot("org--model", newCommit), []string{ref("org--model", "main"), snapshot("org--model", newCommit)}},
		{"gpt2", "main", snapshot("gpt2", oldCommit), []string{ref("gpt2", "main"), snapshot("gpt2", oldCommit)}},
		{"org/model", "refs/pr/1", snapshot("org--model", oldCommit), []string{ref("org--model", "refs/pr/1"), snapshot("org--model", oldCommit)}},
		{"org/model", oldCommit, snapshot("org--model", oldCommit), []string{snapshot("org--model", oldCommit)}},
		{"org/legacy", "", "DIR/tf/models--org--legacy/snapshots/" + oldCommit,
			[]string{ref("org--legacy", "main"), legacy("org--legacy", "main"), "DIR/tf/models--org--legacy/snapshots/" + oldCommit}},
		{"org/none", "", "is not in the cache; fetch the model", []string{ref("org--none", "main"), legacy("org--none", "main")}},
		{"org/model", "v2", "the cache does not record which commit the revision is; give one of the commits that are there: " + oldCommit + ", " + newCommit,
			[]string{ref("org--model", "v2"), legacy("org--model", "v2")}},
		{"org/unrecorded", "", "the cache does not record which commit the revision is; give one of the commits that are there: " + oldCommit,
			[]string{ref("org--unrecorded", "main"), legacy("org--unrecorded", "main")}},
		{"org/model", "gone", "its snapshot is not in the cache; fetch the model",
			[]string{ref("org--model", "gone"), snapshot("org--model", strings.Repeat("a", 40)), legacy("org--model", "gone")}},
		{"org/file", oldCommit, "its snapshot is not a directory; fetch the model again",
			[]string{snapshot("org--file", oldCommit), "DIR/tf/models--org--file/snapshots/" + oldCommit}},
		{"org/model", "broken", `"DIR/hub/models--org--model/refs/broken" holds no commit; fetch the model again`,
			[]string{ref("org--model", "broken"), legacy("org--model", "broken")}},
		{"org/model", "../../models", "its revision is not a branch, tag or commit", nil},
		{"org/model", "/etc/passwd", "its revision is not a branch, tag or commit", nil},
	} {
		t.Run(strings.ReplaceAll(relative(c.name, dir)+"@"+c.revision, "/", "_"), func(t *testing.T) {
			got, tried, err := Locate(c.name, c.revision, env, nil)
			for i := range tried {
				tried[i] = relative(tried[i], dir)
			}
			if diff := cmp.Diff(c.tried, tried); diff != "" {
				t.Error(diff)
			}
			if got = relative(got, dir); filepath.IsAbs(c.want) || strings.HasPrefix(c.want, "DIR") {
				if got != c.want || err != nil {
					t.Errorf("got %q and %v, want %q", got, err, c.want)
				}
				return
			}
			var missing *NotFound
			if !errors.As(err, &missing) || relative(missing.Reason, dir) != c.want {
				t.Fatalf("got %q and %v, want %s", got, err, c.want)
			}
			if missing.Name != c.name || missing.Revision != c.revision && !filepath.IsAbs(c.name) {
				t.Errorf("got %+v", missing)
			}
		})
	}
}

// Case T9: ids are found in each root that is a Hugging Face cache, such as the
// --download-dir of engines.
func TestLocateInRoots(t *testing.T) {
	dir := t.TempDir()
	for _, model := range []struct{ cache, repo, commit string }{
		{"/hub", "org--everywhere", oldCommit},
		{"/hub", "org--moved", oldCommit},
		{"/downloads", "org--everywhere", oldCommit},
		{"/downloads", "org--moved", newCommit},
		{"/downloads", "org--there", newCommit},
		{"/more", "org--there", newCommit},
		{"/more", "org--two", oldCommit},
		{"/downloads", "org--two", newCommit},
	} {
		folder := dir + model.cache + "/models--" + model.repo
		if err := os.MkdirAll(folder+"/snapshots/"+model.commit, 0o700); err != nil {
			t.Fatal(err)
		}
		write(t, folder+"/refs/main", []byte(model.commit))
	}
	if err := os.MkdirAll(dir+"/downloads/models--org--half", 0o700); err != nil {
		t.Fatal(err)
	}
	env := environment(map[string]string{"HF_HUB_CACHE": dir + "/hub"})
	roots := []string{dir + "/none", dir + "/hub/", dir + "/downloads", dir + "/more"}
	at := func(cache, repo, commit string) string {
		return "DIR/" + cache + "/models--org--" + repo + "/snapshots/" + commit
	}
	for _, c := range []struct{ name, want string }{
		{"org/everywhere", at("hub", "everywhere", oldCommit)},
		{"org/there", at("downloads", "there", newCommit)},
		{"org/moved", `find model "org/moved": caches have different commits of it; give the directory, one of ` + at("hub", "moved", oldCommit) + ", " + at("downloads", "moved", newCommit)},
		{"org/two", `find model "org/two": caches have different commits of it; give the directory, one of ` + at("downloads", "two", newCommit) + ", " + at("more", "two", oldCommit)},
		{"org/half", `find model "org/half": is not in the cache; fetch the model; tried ["DIR/hub/models--org--half/refs/main" "DIR/downloads/models--org--half/refs/main"]`},
		{"org/none", `find model "org/none": is not in the cache; fetch the model; tried ["DIR/hub/models--org--none/refs/main"]`},
	} {
		got, _, err := Locate(c.name, "", env, roots)
		if err != nil {
			got = err.Error()
		}
		if got = relative(got, dir); got != c.want {
			t.Errorf("%s: got %s, want %s", c.name, got, c.want)
		}
	}
}

func TestNotFoundSaysWhatWasTried(t *testing.T) {
	err := &NotFound{Name: "org/model", Revision: "v2", Reason: "is not in the cache", Tried: []string{"/a", "/b"}}
	want := `find model "org/model" at revision "v2": is not in the cache; tried ["/a" "/b"]`
	if err.Error() != want {
		t.Errorf("got %s, want %s", err, want)
	}
}
