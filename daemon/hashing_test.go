// SPDX-FileCopyrightText: The wcache authors
// SPDX-License-Identifier: MIT

package daemon

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/wcache/wcache/client"
	"github.com/wcache/wcache/config"
	"github.com/wcache/wcache/control"
	"github.com/wcache/wcache/internal/testmain"
	"github.com/wcache/wcache/loader"
	"github.com/wcache/wcache/manifest"
	"github.com/wcache/wcache/stamp"
)

func stampOf(path string) (stamp.Stamp, error) {
	info, err := stamp.Of(path)
	return info.Stamp, err
}

const revision = "0123456789abcdef0123456789abcdef01234567"

// hubModel makes a model a/NAME of a Hugging Face cache. Its weights have the right name
// or, where that is given, another. It gives the snapshot and the path of the blob.
func hubModel(t *testing.T, hub, name, sum string) (snapshot, blob string) {
	t.Helper()
	repo := filepath.Join(hub, "models--a--"+name)
	snapshot = filepath.Join(repo, "snapshots", revision)
	do(t, os.MkdirAll(snapshot, 0o700), os.MkdirAll(filepath.Join(repo, "refs"), 0o700), os.MkdirAll(filepath.Join(repo, "blobs"), 0o700))
	do(t, os.WriteFile(filepath.Join(repo, "refs", "main"), []byte(revision), 0o600))
	for _, file := range []string{"config.json", "model.safetensors"} {
		b, err := os.ReadFile(filepath.Join(checkpoints, name, file))
		do(t, err)
		to := "8b0bc6a3f0b4a5b8a64ea0ea2ae3ee0e0f6b9a4c" // as git names small files
		if file == "model.safetensors" {
			to = fmt.Sprintf("%x", sha256.Sum256(b))
			if sum != "" {
				to = sum
			}
			blob = filepath.Join(repo, "blobs", to)
		}
		do(t, os.WriteFile(filepath.Join(repo, "blobs", to), b, 0o600), os.Symlink("../../blobs/"+to, filepath.Join(snapshot, file)))
	}
	return snapshot, blob
}

// Digests come by themselves, of each entry, and are on record: a next process has
// them, too.
func TestHashing(t *testing.T) {
	t.Parallel()
	store := newFDStore(t)
	i := startStored(t, store)
	dir := model(t, private(t), "llama", "m")
	warmed(t, i, control.Warm{Model: dir})
	warmed(t, i, control.Warm{Model: dir, TPSize: 2})
	whole := func(i *instance) bool {
		entries := i.status(t).Entries
		for _, e := range entries {
			if e.Files == nil || e.Files.Count != 6 || e.Files.Digests != 6 {
				return false
			}
		}
		return len(entries) == 2
	}
	testmain.Eventually(t, "all digests", func() bool { return whole(i) })
	want := map[string]string{}
	for _, f := range filesIn(t, dir, "", false) {
		want[f.Name] = f.SHA256
	}
	check := func(list []manifest.Entry) {
		t.Helper()
		for _, e := range list {
			got := map[string]string{}
			for _, f := range e.Files {
				got[f.Name] = f.SHA256
			}
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("digests (-want +got):\n%s", diff)
			}
		}
	}
	check(i.cache.Records())
	do(t, i.stop())
	m, err := manifest.Load(i.o.Manifest)
	do(t, err)
	check(m.Entries)
	next := restart(t, i, store)
	if !whole(next) {
		t.Errorf("the next process has %+v", next.status(t).Entries)
	}
}

// Case W3: a file of a Hugging Face cache that isn't what its name says is never served
// with verify = "load", and found afterwards with "idle", where the status names it for
// as long as it is held.
func TestDamagedBlob(t *testing.T) {
	t.Parallel()
	wrong := strings.Repeat("0a", 32)
	hub := private(t)
	snapshot, blob := hubModel(t, hub, "llama_tied", wrong)
	sound, _ := hubModel(t, hub, "qwen2", "")
	b, err := os.ReadFile(blob)
	do(t, err)
	path := filepath.Join(snapshot, "model.safetensors")
	text := fmt.Sprintf("check %q: its sha256 is %x and its name in the Hugging Face cache says %s: it is damaged or not complete", path, sha256.Sum256(b), wrong)
	roots := func(s *setup) { s.Config.Roots = []string{snapshot, sound} }
	t.Run("load", func(t *testing.T) {
		i := start(t, func(s *setup) {
			roots(s)
			s.Config.Verify = config.VerifyLoad
		})
		wantAnswer(t, engineAsk(t, i.target, getState(t, key(t, "llama_tied-tp1r0"))), "mismatch: checkpoint; load model: "+text+" ("+loader.FetchAgain+")")
		_, err := client.Do(t.Context(), i.control, control.Request{Method: control.MethodWarm, Warm: &control.Warm{Model: snapshot}}, nil)
		var no *control.Error
		if !errors.As(err, &no) || no.Message != "load model: "+text || no.Hint != loader.FetchAgain {
			t.Errorf("warm: %v", err)
		}
		wantAnswer(t, engineAsk(t, i.target, getState(t, key(t, "qwen2-tp1r0"))), "ok")
		s := i.status(t)
		if len(s.Entries) != 1 || s.Entries[0].Files.Digests != 2 || s.Counts.Failed != 2 || s.Counts.Refused != 1 || s.Counts.Loads != 1 {
			t.Errorf("%d entries, %+v", len(s.Entries), s.Counts)
		}
		r, err := client.Do(t.Context(), i.control, control.Request{Method: control.MethodMisses}, nil)
		do(t, err)
		if m := r.Misses[len(r.Misses)-1]; m.Reason != control.MissRefused || m.Field != "checkpoint" || m.Hint != loader.FetchAgain {
			t.Errorf("miss %+v", m)
		}
	})
	t.Run("idle", func(t *testing.T) {
		i := start(t, roots)
		e := warmed(t, i, control.Warm{Model: snapshot})
		warmed(t, i, control.Warm{Model: sound})
		warmed(t, i, control.Warm{Model: snapshot, TPSize: 2})
		testmain.Eventually(t, "the status names it once", func() bool { return cmp.Equal([]string{text + " (" + loader.FetchAgain + ")"}, i.status(t).Problems) })
		testmain.Eventually(t, "its entries say so", func() bool {
			var damaged []string
			for _, e := range i.status(t).Entries {
				damaged = append(damaged, strings.Join(e.Files.Damaged, " "))
			}
			return cmp.Equal([]string{"model.safetensors", "", "model.safetensors"}, damaged)
		})
		wantAnswer(t, engineAsk(t, i.target, getState(t, key(t, "llama_tied-tp1r0"))), "ok") // it is what the engine would load
		got, err := verified(t.Context(), i, e.Key)
		do(t, err)
		if len(got) != 1 || got[0].State != control.StateDiffers || got[0].Message != text || got[0].Hint != loader.FetchAgain || got[0].Dropped || got[0].Difference != nil ||
			got[0].Files[1].State != control.StateDamaged || got[0].Files[1].Hub != wrong {
			t.Errorf("verified: %+v", got)
		}
		if n := strings.Count(i.log.String(), "file is damaged"); n != 1 {
			t.Errorf("the log says it %d times", n)
		}
	})
}

// Files that can't be hashed are said so once, and keep the others from nothing.
func TestHashingGivesUp(t *testing.T) {
	t.Parallel()
	i := start(t, unhurried)
	root := private(t)
	gone := model(t, root, "llama_tied", "gone")
	warmed(t, i, control.Warm{Model: gone})
	do(t, os.Remove(filepath.Join(gone, "model.safetensors")))
	left := model(t, root, "qwen2", "left")
	warmed(t, i, control.Warm{Model: left})
	do(t, i.configure(func(c *config.Config) { c.Verify = config.VerifyIdle }, nil))
	testmain.Eventually(t, "digests of the other", func() bool { return i.status(t).Entries[1].Files.Digests == 2 })
	i.hashing.wake()
	warmed(t, i, control.Warm{Model: left, TPSize: 2})
	testmain.Eventually(t, "digests of a third", func() bool { return i.status(t).Entries[2].Files.Digests == 2 })
	if n := strings.Count(i.log.String(), "files are not hashed"); n != 1 {
		t.Errorf("the log says it %d times", n)
	}
}

// Nothing is hashed while something is loaded, and what was begun ends.
func TestHashingPauses(t *testing.T) {
	h := newHashing(nil)
	job, end, ok := h.begin(t.Context())
	if !ok {
		t.Fatal("it doesn't begin")
	}
	first := h.pause()
	if !errors.Is(context.Cause(job), errBusy) {
		t.Errorf("the job goes on: %v", context.Cause(job))
	}
	end()
	second := h.pause()
	first()
	if _, _, ok := h.begin(t.Context()); ok {
		t.Error("it begins beside the second load")
	}
	<-h.more
	second()
	<-h.more // which is when to try again
	job, end, ok = h.begin(t.Context())
	if !ok || job.Err() != nil {
		t.Errorf("it doesn't begin again: %v", ok)
	}
	end()

	e := manifest.Entry{ID: "a"}
	h.giveUp(e)
	if again := (manifest.Entry{ID: "a", Loaded: time.Unix(1, 0)}); !h.hopeless(e) || h.hopeless(again) {
		t.Error("what is loaded again is given up, too")
	}
	for n := range maxGivenUp {
		h.giveUp(manifest.Entry{ID: fmt.Sprint(n)})
	}
	if len(h.givenUp) > maxGivenUp {
		t.Errorf("%d are remembered", len(h.givenUp))
	}
}
