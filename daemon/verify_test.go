// SPDX-FileCopyrightText: The wcache authors
// SPDX-License-Identifier: MIT

package daemon

import (
	"context"
	"crypto/sha256"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"golang.org/x/sys/unix"

	"github.com/wcache/wcache/cache"
	"github.com/wcache/wcache/client"
	"github.com/wcache/wcache/config"
	"github.com/wcache/wcache/control"
	"github.com/wcache/wcache/device"
	"github.com/wcache/wcache/internal/fd"
	"github.com/wcache/wcache/manifest"
)

// unhurried is an instance that hashes nothing by itself.
func unhurried(s *setup) { s.Config.Verify = config.VerifyOff }

// warmed loads a model directory and gives its entry.
func warmed(t *testing.T, i *instance, w control.Warm) control.Entry {
	t.Helper()
	r, err := client.Do(t.Context(), i.control, control.Request{Method: control.MethodWarm, Warm: &w}, nil)
	if err != nil {
		t.Fatal(err)
	}
	return *r.Entry
}

// verified asks for a verification.
func verified(ctx context.Context, i *instance, targets ...string) ([]control.Verified, error) {
	r, err := client.Do(ctx, i.control, control.Request{Method: control.MethodVerify, Verify: &control.Verify{Targets: targets}}, nil)
	if err != nil {
		return nil, err
	}
	return r.Verified, nil
}

// wantVerified compares what a verification of everything finds.
func wantVerified(t *testing.T, i *instance, want ...control.Verified) {
	t.Helper()
	got, err := verified(t.Context(), i)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, got, cmpopts.IgnoreFields(control.Verified{}, "Seconds", "Fingerprint"), cmpopts.EquateEmpty()); diff != "" {
		t.Errorf("verified (-want +got):\n%s", diff)
	}
}

// filesIn is what a verification finds of the files of a directory that are as they
// have to be.
func filesIn(t *testing.T, dir, state string, recorded bool) []control.VerifiedFile {
	t.Helper()
	var list []control.VerifiedFile
	paths, err := filepath.Glob(filepath.Join(dir, "*")) // which is sorted
	do(t, err)
	for _, path := range paths {
		b, err := os.ReadFile(path)
		do(t, err)
		f := control.VerifiedFile{Name: filepath.Base(path), State: state, SHA256: fmt.Sprintf("%x", sha256.Sum256(b))}
		if recorded {
			f.Recorded = f.SHA256
		}
		list = append(list, f)
	}
	return list
}

// held is the one entry that an instance holds.
func (i *instance) held(t *testing.T) manifest.Entry {
	t.Helper()
	records := i.cache.Records()
	if len(records) != 1 {
		t.Fatalf("%d entries are held", len(records))
	}
	return records[0]
}

// corrupt has the instance hold, in place of its one entry, the same with another byte.
func (i *instance) corrupt(t *testing.T, at int64) {
	t.Helper()
	r := i.held(t)
	h, err := i.cache.Hold(r.ID)
	do(t, err)
	s := h.Segment()
	b := make([]byte, s.Bytes)
	_, err = unix.Pread(s.Pieces[0].Int(), b, 0)
	do(t, err)
	b[at] ^= 0x10
	segment, err := fd.Sealed("wcache-segment", b)
	do(t, err)
	table, err := i.tableOf(h)
	do(t, err)
	h.Release()
	do(t, i.cache.Evict(r.ID, true))
	do(t, i.cache.Adopt(&cache.Contents{
		Table: h.Table(), TableFD: table, Segment: device.Whole(segment, s.Bytes), Record: r,
	}))
}

// tableOf makes a file of an entry's table.
func (i *instance) tableOf(h *cache.Hold) (*fd.FD, error) {
	b, err := h.Table().Encode()
	if err != nil {
		return nil, err
	}
	return fd.Sealed("wcache-table", b)
}

// What was loaded is what its files hold, whole and a rank of it, cast, and while
// engines map it; the digests are on record from then on, of each entry.
func TestVerify(t *testing.T) {
	t.Parallel()
	dir := model(t, private(t), "llama", "m")
	i := start(t, func(s *setup) {
		unhurried(s)
		s.Config.Roots = []string{dir}
	})
	a := warmed(t, i, control.Warm{Model: dir})
	b := warmed(t, i, control.Warm{Model: dir, TPSize: 2, TPRank: 1})
	c := warmed(t, i, control.Warm{Model: dir, DType: "float16"})
	want := func(state string, recorded bool) (list []control.Verified) {
		for n, e := range []control.Entry{a, b, c} {
			state, recorded := state, recorded
			if n > 0 {
				state, recorded = control.StateEqual, true // by the first of them
			}
			bytes := i.entryOf(t, e.Key).Bytes
			list = append(list, control.Verified{Key: e.Key, Model: dir, State: control.StateEqual, Bytes: bytes, Files: filesIn(t, dir, state, recorded)})
		}
		return list
	}
	engine := startProcess(t, "engine", i.target)
	engine.send(t, getState(t, set(t, a.Fingerprint, "is_draft", false)))
	if got := engine.line(t); got != "ok" {
		t.Fatal(got)
	}
	if f := i.status(t).Entries[0].Files; f.Count != 6 || f.Digests != 0 || len(f.Damaged) != 0 {
		t.Errorf("before it status says %+v", f)
	}
	wantVerified(t, i, want(control.StateNew, false)...)
	for _, e := range i.status(t).Entries {
		if f := e.Files; f.Count != 6 || f.Digests != 6 || len(f.Damaged) != 0 {
			t.Errorf("after it status says %+v", f)
		}
	}
	wantVerified(t, i, want(control.StateEqual, true)...)
	engine.kill()
}

// entryOf is the record of a key's one entry.
func (i *instance) entryOf(t *testing.T, key string) manifest.Entry {
	t.Helper()
	for _, r := range i.cache.Records() {
		if r.Key.ID() == key {
			return r
		}
	}
	t.Fatalf("nothing of the key %s is held", key)
	return manifest.Entry{}
}

// A byte of memory that isn't the file's is found and named, and is not served any
// more: the next request loads the model again.
func TestVerifyMemory(t *testing.T) {
	t.Parallel()
	i := start(t, unhurried)
	dir := model(t, private(t), "qwen2", "m")
	e := warmed(t, i, control.Warm{Model: dir})
	const at = 100_000
	i.corrupt(t, at)
	got, err := verified(t.Context(), i, e.Key[:8])
	do(t, err)
	if len(got) != 1 || got[0].Difference == nil {
		t.Fatalf("got %+v", got)
	}
	d := *got[0].Difference
	if d.Bytes != 1 || d.Tensors != 1 || d.Memory != d.File^0x10 || d.Tensor == "" || d.Offset < 0 {
		t.Errorf("difference %+v", d)
	}
	message := fmt.Sprintf("memory differs from its files: byte %d of tensor %q is %#02x, the files give %#02x; 1 bytes of 1 tensors differ", d.Offset, d.Tensor, d.Memory, d.File)
	want := control.Verified{
		Key: e.Key, Model: dir, State: control.StateDiffers, Bytes: 210080, Dropped: true, Message: message,
		Hint: "it is loaded again for the next engine; those that have mapped it have to be restarted", Difference: &d,
		Files: filesIn(t, dir, control.StateNew, false),
	}
	if diff := cmp.Diff(want, got[0], cmpopts.IgnoreFields(control.Verified{}, "Seconds", "Fingerprint")); diff != "" {
		t.Errorf("verified (-want +got):\n%s", diff)
	}
	if !strings.Contains(i.log.String(), "memory differs from its files") {
		t.Error("the log says nothing")
	}
	wantVerified(t, i)
	warmed(t, i, control.Warm{Model: dir})
	got, err = verified(t.Context(), i, dir)
	do(t, err)
	if len(got) != 1 || got[0].State != control.StateEqual {
		t.Errorf("loaded again: %+v", got)
	}
}

// putBack gives a file its old time of modification.
func putBack(t *testing.T, path string, change func()) {
	t.Helper()
	st, err := os.Stat(path)
	do(t, err)
	change()
	do(t, os.Chtimes(path, st.ModTime(), st.ModTime()))
}

// A file that has changed since the load says nothing of the memory, which stays as it
// is; one that was only touched counts as the same from then on.
func TestVerifyFiles(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name    string
		change  func(t *testing.T, path string)
		message string
	}{
		{"rewritten", rewriteFile, "check file PATH: was written"},
		{"rewritten, time put back", func(t *testing.T, path string) { putBack(t, path, func() { rewrite(t, path) }) },
			"check file PATH: was written, or its attributes were changed, and its contents differ"},
		{"cut short", func(t *testing.T, path string) { do(t, os.Truncate(path, 1000)) }, "check file PATH: had 193088 bytes, has 1000"},
		{"gone", func(t *testing.T, path string) { do(t, os.Remove(path)) }, "check file PATH: is gone"},
		{"touched", func(t *testing.T, path string) { do(t, os.Chmod(path, 0o640)) }, ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			i := start(t, unhurried)
			dir := model(t, private(t), "qwen2", "m")
			e := warmed(t, i, control.Warm{Model: dir})
			path := filepath.Join(dir, "model.safetensors")
			tt.change(t, path)
			got, err := verified(t.Context(), i, e.Key)
			do(t, err)
			want := control.Verified{Key: e.Key, Model: dir, State: control.StateChanged, Bytes: 210080, Hint: "the next request for it loads it again"}
			want.Message = strings.ReplaceAll(tt.message, "PATH", fmt.Sprintf("%q", path))
			if tt.message == "" {
				want.State, want.Hint = control.StateEqual, ""
			}
			if diff := cmp.Diff([]control.Verified{want}, got, cmpopts.IgnoreFields(control.Verified{}, "Seconds", "Fingerprint", "Files", "Difference")); diff != "" {
				t.Errorf("verified (-want +got):\n%s", diff)
			}
			if r := i.held(t); tt.message == "" && recordOf(r).Stale() != nil || tt.message != "" && recordOf(r).Stale() == nil {
				t.Errorf("afterwards its files are stale: %v", recordOf(r).Stale())
			}
		})
	}
}

func rewriteFile(t *testing.T, path string) { rewrite(t, path) }

// A file that has other bytes with all of its times, as after a fault of the disk, is
// told from memory that is wrong: the memory is what was loaded, and stays.
func TestVerifyRottenFile(t *testing.T) {
	t.Parallel()
	i := start(t, func(s *setup) { s.Config.Verify = config.VerifyLoad })
	dir := model(t, private(t), "qwen2", "m")
	e := warmed(t, i, control.Warm{Model: dir})
	was := filesIn(t, dir, control.StateEqual, true)
	path := filepath.Join(dir, "model.safetensors")
	putBack(t, path, func() { rewrite(t, path) })
	h, err := i.cache.Hold(i.held(t).ID)
	do(t, err)
	h.Renew(restamped(t, h.Record())) // the stamps say that nothing has written to it
	h.Release()
	files := filesIn(t, dir, control.StateEqual, true)
	files[1].State, files[1].Recorded = control.StateDiffers, was[1].SHA256
	got, err := verified(t.Context(), i)
	do(t, err)
	want := control.Verified{
		Key: e.Key, Model: dir, State: control.StateDiffers, Bytes: 210080, Files: files,
		Message: fmt.Sprintf("the sha256 of %s is %s and was %s before, though nothing has written to it: a disk or a cable fails", path, files[1].SHA256, was[1].SHA256),
		Hint:    seeDisk,
	}
	if diff := cmp.Diff([]control.Verified{want}, got, cmpopts.IgnoreFields(control.Verified{}, "Seconds", "Fingerprint", "Difference")); diff != "" {
		t.Errorf("verified (-want +got):\n%s", diff)
	}
	if got[0].Difference == nil || i.held(t).Files[1].SHA256 != was[1].SHA256 {
		t.Errorf("difference %+v, on record is %+v", got[0].Difference, i.held(t).Files)
	}
}

// restamped is the record of files as they are now.
func restamped(t *testing.T, e manifest.Entry) []manifest.File {
	t.Helper()
	files := slices.Clone(e.Files)
	for n, f := range files {
		info, err := stampOf(filepath.Join(e.Dir, f.Name))
		do(t, err)
		files[n].Stamp = info
	}
	return files
}
