// SPDX-FileCopyrightText: The wcache authors
// SPDX-License-Identifier: MIT

package weights

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/wcache/wcache/weights/safetensors"
)

// now sets the times of files to the present, as if they had just been written.
func now(t *testing.T, paths ...string) {
	t.Helper()
	for _, path := range paths {
		if err := os.Chtimes(path, time.Now(), time.Now()); err != nil {
			t.Fatal(err)
		}
	}
}

// Case T11: a file isn't loaded while a download's own files lie beside it. The error
// passes while the download writes, and lasts if the download was abandoned.
func TestControlFiles(t *testing.T) {
	const index = `{"weight_map":{"a":"model-1.safetensors","b":"model-2.safetensors"}}`
	good := shard(map[string]byte{"x": 1})
	whole := map[string][]byte{"model-1.safetensors": good, "model-2.safetensors": good}
	indexed := map[string][]byte{"model-1.safetensors": good, "model-2.safetensors": good, "extra.safetensors": good, ShardIndexName: []byte(index)}
	for _, c := range []struct {
		name  string
		files map[string][]byte
		part  string
		of    string // "" if it doesn't matter
	}{
		{"aria2", whole, "model-2.safetensors.aria2", "model-2.safetensors"},
		{"hub", whole, "model-2.safetensors.incomplete", "model-2.safetensors"},
		{"Firefox", whole, "model-2.safetensors.part", "model-2.safetensors"},
		{"Chromium", whole, "model-2.safetensors.crdownload", "model-2.safetensors"},
		{"Safari", whole, "model-2.safetensors.download", "model-2.safetensors"},
		{"script", whole, "model-2.safetensors.tmp", "model-2.safetensors"},
		{"rsync", whole, ".model-2.safetensors.Xa81bQ", "model-2.safetensors"},
		{"shard that isn't there yet", whole, "model-3.safetensors.part", "model-3.safetensors"},
		{"configuration", whole, "config.json.part", "config.json"},
		{"index", whole, "model.safetensors.index.json.aria2", ShardIndexName},
		{"shard of the index", indexed, "model-1.safetensors.aria2", "model-1.safetensors"},
		{"file that isn't loaded", indexed, "extra.safetensors.aria2", ""},
		{"file of tokenizers", whole, "tokenizer.json.part", ""},
		{"other hidden file", whole, ".model-2.safetensors.lock", ""},
		{"nothing's ending", whole, ".aria2", ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			dir := model(t, c.files)
			path := filepath.Join(dir, c.part)
			write(t, path, nil)
			_, err := Open(dir)
			var unfinished *Unfinished
			want := fmt.Sprintf(`read weights "DIR/%s": is being fetched, as %q beside it shows; wait until that is gone`, c.of, c.part)
			switch {
			case c.of == "":
				if err != nil {
					t.Errorf("got %v", err)
				}
			case !errors.As(err, &unfinished) || relative(err.Error(), dir) != want:
				t.Errorf("got %v, want an Unfinished: %s", err, want)
			}
			age(t, dir)
			_, err = Open(dir)
			var unusable *Unusable
			want = fmt.Sprintf(`read weights "DIR/%s": was not fetched to its end, as %q beside it shows; fetch the rest, or remove that file if this one is whole`, c.of, c.part)
			if c.of != "" && (!errors.As(err, &unusable) || relative(err.Error(), dir) != want) {
				t.Errorf("an hour later: got %v, want an Unusable: %s", err, want)
			}
			if err := os.Remove(path); err != nil {
				t.Fatal(err)
			}
			if _, err := Open(dir); err != nil {
				t.Errorf("without it: %v", err)
			}
		})
	}
}

// A write to the file itself counts, and not only one to the file beside it; of several
// files, the error names the one that is being written.
func TestControlFilesAndTimes(t *testing.T) {
	dir := model(t, map[string][]byte{"a.safetensors": shard(nil), "a.safetensors.aria2": nil, "b.safetensors": shard(nil), "b.safetensors.aria2": nil})
	now(t, filepath.Join(dir, "b.safetensors"))
	want := `read weights "DIR/b.safetensors": is being fetched, as "b.safetensors.aria2" beside it shows; wait until that is gone`
	if _, err := Open(dir); err == nil || relative(err.Error(), dir) != want {
		t.Errorf("got %v, want %s", err, want)
	}
	future := time.Now().Add(240 * time.Hour)
	if err := os.Chtimes(filepath.Join(dir, "b.safetensors"), future, future); err != nil {
		t.Fatal(err)
	}
	var unusable *Unusable
	if _, err := Open(dir); !errors.As(err, &unusable) {
		t.Errorf("a time to come: got %v, want an Unusable", err)
	}
}

func index30(missing ...int) map[string][]byte {
	var entries []string
	files := make(map[string][]byte)
	for i := 1; i <= 30; i++ {
		name := fmt.Sprintf("model-%05d-of-00030.safetensors", i)
		entries = append(entries, fmt.Sprintf(`"x%d":%q`, i, name))
		files[name] = shard(map[string]byte{fmt.Sprintf("x%d", i): 1})
	}
	for _, i := range missing {
		delete(files, fmt.Sprintf("model-%05d-of-00030.safetensors", i))
	}
	files[ShardIndexName] = []byte(`{"weight_map":{` + strings.Join(entries, ",") + `}}`)
	return files
}

// Case W4: the error for an unfinished snapshot says how many shards are missing, and
// how many of them are being downloaded: as blobs of the repository, in the folder of a
// download without a cache, or beside the others.
func TestUnfinishedSnapshot(t *testing.T) {
	const (
		commit  = "snapshots/0123456789012345678901234567890123456789"
		hash    = "00000000000000000000000000000000000000000000000000000000000000"
		list    = `["model-00007-of-00030.safetensors" "model-00008-of-00030.safetensors" "model-00009-of-00030.safetensors"]`
		passing = `read weights "DIR/model.safetensors.index.json": unfinished snapshot: 3 of 30 shards are missing, %d are being downloaded; wait until they are there`
		lasting = `read weights "DIR/model.safetensors.index.json": unfinished snapshot: 3 of 30 shards are missing: ` + list + `; fetch the model again`
	)
	for _, c := range []struct {
		name  string
		parts []string // relative to the repository
		want  string
	}{
		{"nothing is fetched", nil, lasting},
		{"blobs", []string{"blobs/" + hash + "01.incomplete", "blobs/" + hash + "02.incomplete"}, fmt.Sprintf(passing, 2)},
		{"one blob by two programs", []string{"blobs/" + hash + "01.0a1b2c3d.incomplete", "blobs/" + hash + "01.4e5f6a7b.incomplete"}, fmt.Sprintf(passing, 1)},
		{"more blobs than shards", []string{"blobs/1.incomplete", "blobs/2.incomplete", "blobs/3.incomplete", "blobs/4.incomplete"}, fmt.Sprintf(passing, 3)},
		{"blobs that are whole", []string{"blobs/" + hash + "01"}, lasting},
		{"download without a cache", []string{commit + "/.cache/huggingface/download/Zm9v." + hash + "01.incomplete"}, fmt.Sprintf(passing, 1)},
		{"beside the others", []string{commit + "/model-00008-of-00030.safetensors.part", commit + "/.model-00009-of-00030.safetensors.a1B2c3"}, fmt.Sprintf(passing, 2)},
		{"of another file", []string{commit + "/tokenizer.json.part"}, lasting},
	} {
		t.Run(c.name, func(t *testing.T) {
			repo := filepath.Join(t.TempDir(), "models--org--name")
			dir := filepath.Join(repo, commit)
			if err := os.MkdirAll(filepath.Dir(dir), 0o700); err != nil {
				t.Fatal(err)
			}
			if err := os.Rename(model(t, index30(7, 8, 9)), dir); err != nil {
				t.Fatal(err)
			}
			for _, part := range c.parts {
				write(t, filepath.Join(repo, part), []byte("part"))
			}
			link := filepath.Join(t.TempDir(), "link")
			symlink(t, dir, link)
			for _, path := range []string{dir, link} {
				_, err := Open(path)
				var unfinished *Unfinished
				if err == nil || relative(err.Error(), path) != c.want || errors.As(err, &unfinished) == (c.want == lasting) {
					t.Errorf("got %v (%T), want %s", err, err, c.want)
				}
			}
			age(t, repo)
			var unusable *Unusable
			if _, err := Open(dir); !errors.As(err, &unusable) || relative(err.Error(), dir) != lasting {
				t.Errorf("an hour later: got %v, want %s", err, lasting)
			}
		})
	}
}

// A snapshot whose only shard doesn't exist yet.
func TestUnfinishedSnapshotWithoutIndex(t *testing.T) {
	dir := model(t, nil)
	write(t, filepath.Join(dir, "model.safetensors.crdownload"), nil)
	write(t, filepath.Join(dir, "tokenizer.json.crdownload"), nil)
	var unfinished *Unfinished
	want := `read weights "DIR": unfinished snapshot: no shard is there yet, 1 files are being downloaded; wait until they are there`
	if _, err := Open(dir); !errors.As(err, &unfinished) || relative(err.Error(), dir) != want {
		t.Errorf("got %v, want %s", err, want)
	}
}

// The error for a file that is shorter than its header says tells how much is missing,
// and whether it may still come.
func TestTruncated(t *testing.T) {
	good := shard(map[string]byte{"x": 1, "y": 2, "z": 3})
	for _, c := range []struct {
		name    string
		content []byte
		want    string
	}{
		{"data", good[:len(good)-2], "read safetensors header: 2 bytes are missing at the end of the file: its tensors take 3, and 1 are there"},
		{"header", good[:20], fmt.Sprintf("read safetensors header: its length of %d bytes runs past the end of a file of 20", good[0])},
		{"length", good[:4], "read safetensors header: a file of 4 bytes has no room for the header's length"},
		{"nothing", nil, "read safetensors header: a file of 0 bytes has no room for the header's length"},
		{"room", make([]byte, 100), "begins with zeros, where a download has written nothing yet"},
	} {
		dir := model(t, map[string][]byte{"model.safetensors": c.content})
		path := filepath.Join(dir, "model.safetensors")
		var format *safetensors.FormatError
		var unusable *Unusable
		var unfinished *Unfinished

		_, err := Open(dir)
		want := `read weights "DIR/model.safetensors": ` + c.want + "; the file is not complete, fetch it again"
		if !errors.As(err, &unusable) || !errors.As(err, &format) || relative(err.Error(), dir) != want {
			t.Errorf("%s: got %v, want an Unusable: %s", c.name, err, want)
		}
		now(t, path)
		_, err = Open(dir)
		want = `read weights "DIR/model.safetensors": ` + c.want + "; it was written a moment ago, wait until it is whole"
		if !errors.As(err, &unfinished) || !errors.As(err, &format) || relative(err.Error(), dir) != want {
			t.Errorf("%s, just written: got %v, want an Unfinished: %s", c.name, err, want)
		}
	}
}

// Damage lasts, however fresh the file is.
func TestDamagedIsNotUnfinished(t *testing.T) {
	dir := model(t, map[string][]byte{"model.safetensors": append(shard(nil), 1)})
	now(t, filepath.Join(dir, "model.safetensors"))
	var unusable *Unusable
	want := `read weights "DIR/model.safetensors": read safetensors header: the tensors cover 0 bytes of data, the file has 1; the file is damaged or not complete, fetch it again`
	if _, err := Open(dir); !errors.As(err, &unusable) || relative(err.Error(), dir) != want {
		t.Errorf("got %v, want %s", err, want)
	}
}

func FuzzPartOf(f *testing.F) {
	for _, s := range []string{"a.aria2", ".a.123456", ".aria2", "a", "..1234567", ".a.tmp", ".model.safetensors.Xa81bQ.part"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, name string) {
		of, ok := partOf(name)
		if ok != (of != "") || ok && (len(of) >= len(name) || !strings.Contains(name, of)) {
			t.Fatalf("partOf(%q) = %q, %v", name, of, ok)
		}
	})
}

func TestPartOf(t *testing.T) {
	got := make(map[string]string)
	for _, name := range []string{"a.aria2", ".a.123456", "..123456", ".a.12345", ".a.b1.456", ".aria2", "a.TMP", "a.part.aria2", ".a.part"} {
		of, _ := partOf(name)
		got[name] = of
	}
	want := map[string]string{
		"a.aria2": "a", ".a.123456": "a", "..123456": "", ".a.12345": "", ".a.b1.456": "", ".aria2": "",
		"a.TMP": "", "a.part.aria2": "a.part", ".a.part": ".a",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}
