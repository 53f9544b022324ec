// SPDX-FileCopyrightText: The wcache authors
// SPDX-License-Identifier: MIT

package weights

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/wcache/wcache/weights/safetensors"
)

const lfsPointer = "version https://git-lfs.github.com/spec/v1\noid sha256:4e1c" + "\nsize 4976698672\n"

// Case T11: the error names the format of a file that isn't a safetensors file.
func TestForeign(t *testing.T) {
	const pickled = "is a pickle, as torch.save writes; it has to be converted"
	const page = "is a page of a web server, such as an error or a login; fetch it again"
	for _, c := range []struct{ name, content, want string }{
		{"pointer", lfsPointer, "is a pointer of Git LFS to a file of 4976698672 bytes, which has not been fetched; run in its folder: git lfs pull"},
		{"pointer with extensions", "version https://git-lfs.github.com/spec/v1\next-0-foo sha256:1\noid sha256:4e1c\nsize 1\n",
			"is a pointer of Git LFS to a file of 1 bytes, which has not been fetched; run in its folder: git lfs pull"},
		{"page", "<!DOCTYPE html>\n<html><body>Sign in</body></html>", page},
		{"page after a byte order mark and space", "\ufeff \r\n<HTML lang=\"en\">", page},
		{"error of an object store", `<?xml version="1.0"?><Error><Code>AccessDenied</Code></Error>`, page},
		{"text of a server", "Invalid username or password.", `is a text that begins with "Invalid username or password."; fetch it again`},
		{"text of a server in JSON", `{"error":"Repository not found, or too long a text to show"}`, `is a text that begins with "{\"error\":\"Repository not found, or too l"; fetch it again`},
		{"text with a cut character", strings.Repeat(" ", sniffed-1) + "é", `is a text that begins with "\xc3"; fetch it again`},
		{"gzip", "\x1f\x8b\x08\x00" + strings.Repeat("x", 20), "is compressed with gzip; unpack it"},
		{"zstd", "\x28\xb5\x2f\xfd" + strings.Repeat("x", 20), "is compressed with zstd; unpack it"},
		{"xz", "\xfd7zXZ\x00" + strings.Repeat("x", 20), "is compressed with xz; unpack it"},
		{"bzip2", "BZh91AY&SY" + strings.Repeat("\xff", 20), "is compressed with bzip2; unpack it"},
		{"zip", "PK\x03\x04" + strings.Repeat("\x00", 20), "is a zip archive, as torch.save writes; it has to be converted"},
		{"GGUF", "GGUF\x03\x00\x00\x00" + strings.Repeat("\x00", 20), "is a GGUF file; it has to be converted"},
		{"pickle", "\x80\x02\x8a\x0al\xfc\x9cF\xf9 j\xa8P\x19.", pickled},
		{"pickle of protocol 4", "\x80\x04\x95" + strings.Repeat("\x00", 20), pickled},
		{"HDF5", "\x89HDF\r\n\x1a\n" + strings.Repeat("\x00", 20), "is an HDF5 file, as Keras writes; it has to be converted"},
		{"room for a download", strings.Repeat("\x00", 600), "begins with zeros, where a download has written nothing yet; the file is not complete, fetch it again"},
		{"noise", "\xff\xfe\xfd\xfc\xfb\xfa\xf9\xf8\xf7", "read safetensors header: its length of 17940646550795321087 bytes is over the format's limit of 100000000; the file is damaged or not complete, fetch it again"},
	} {
		t.Run(c.name, func(t *testing.T) {
			dir := model(t, map[string][]byte{"model.safetensors": []byte(c.content)})
			_, err := Open(dir)
			var unusable *Unusable
			var format *safetensors.FormatError
			want := `read weights "DIR/model.safetensors": ` + c.want
			if !errors.As(err, &unusable) || !errors.As(err, &format) || relative(err.Error(), dir) != want {
				t.Errorf("got %v, want an Unusable because of its format: %s", err, want)
			}
		})
	}
}

// The same for the files that describe the model.
func TestForeignJSON(t *testing.T) {
	for name, kind := range map[string]string{"config.json": "model", "hf_quant_config.json": "model", ShardIndexName: "weights"} {
		for content, want := range map[string]string{
			lfsPointer:                "is a pointer of Git LFS to a file of 4976698672 bytes, which has not been fetched; run in its folder: git lfs pull",
			"<html>":                  "is a page of a web server, such as an error or a login; fetch it again",
			"Entry not found":         `is a text that begins with "Entry not found"; fetch it again`,
			strings.Repeat("\x00", 9): "begins with zeros, where a download has written nothing yet; fetch it again",
		} {
			dir := model(t, map[string][]byte{"model.safetensors": shard(nil), name: []byte(content)})
			_, err := Open(dir)
			want := "read " + kind + ` "DIR/` + name + `": ` + want
			if err == nil || relative(err.Error(), dir) != want {
				t.Errorf("%s: got %v, want %s", name, err, want)
			}
		}
	}
}

func FuzzForeign(f *testing.F) {
	for _, s := range []string{lfsPointer, "<html>", "\x1f\x8b", "text", "\x00\x00", "\ufeff<?xml", "{}"} {
		f.Add([]byte(s))
	}
	valid, err := os.ReadFile(filepath.Join(checkpoints, "qwen3", "model.safetensors"))
	if err != nil {
		f.Fatal(err)
	}
	f.Add(valid[:sniffed])
	f.Fuzz(func(t *testing.T, b []byte) {
		b = b[:min(len(b), sniffed)]
		what := foreign(b)
		if what == "" {
			return
		}
		if _, err := safetensors.ReadHeader(bytes.NewReader(b), int64(len(b))); err == nil {
			t.Fatalf("a valid file %s", what)
		}
		if strings.ContainsAny(what, "\x00\x1b\n") {
			t.Fatalf("raw bytes in %q", what)
		}
	})
}
