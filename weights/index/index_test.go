// SPDX-FileCopyrightText: The wcache authors
// SPDX-License-Identifier: MIT

package index

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// Case W1: every directory of a hash is named.
func TestLookupNamesEveryDirectory(t *testing.T) {
	root, err := filepath.Abs(checkpoints)
	must(t, err)
	x := start(t, Options{}, root)
	for hash, want := range map[string][]string{
		llamaHash:               {"llama", "llama_consolidated"},
		mistralHash:             {"llama_tied_extra_head", "llama_untied_same_head", "mistral", "rope_linear", "v4cfg_default", "v4cfg_llama3", "v4cfg_minimal"},
		qwen3Hash:               {"qwen3"},
		strings.Repeat("0", 32): nil,
	} {
		var lines []string
		for _, name := range want {
			lines = append(lines, "dir DIR/"+name)
		}
		same(t, hash, text(lookup(t, x, hash), root), lines...)
	}
	for _, bad := range []string{"", "llama", "0123", strings.Repeat("0", 40), strings.Repeat("g", 32), strings.ToUpper(llamaHash)} {
		if got, err := x.Lookup(t.Context(), bad); err == nil {
			t.Errorf("%q: got %v", bad, got)
		}
	}
}

var one = map[string]string{"model.safetensors": "a"}

// Every folder below a root counts.
func TestWalk(t *testing.T) {
	root, other := t.TempDir(), t.TempDir()
	source := filepath.Join(other, "source")
	write(t, source+"/model.safetensors", shard("a", "1"))
	for _, sub := range []string{
		"plain", "owner/name", "plain/inside/checkpoint-500", ".hidden/.more", "too/deep/by/far/and/further",
		"models--org--name/snapshots/0123", "models--org--name/blobs/no", "models--org--name/refs/no",
		"datasets--org--name/no", "spaces--org--name/no", "named.safetensors",
	} {
		must(t, os.CopyFS(filepath.Join(root, sub), os.DirFS(source)))
	}
	must(t, os.Symlink(source, root+"/z-linked"))
	must(t, os.Symlink("z-linked", root+"/z-linked-again"))
	must(t, os.Symlink(root, root+"/loop"))
	must(t, os.Symlink("../plain", root+"/owner/a-link"))
	must(t, os.Symlink("nothing", root+"/dangling"))
	must(t, os.Symlink("itself", root+"/itself"))
	hash := hashOf("1", one)
	all := []string{
		"dir DIR/.hidden/.more", "dir DIR/models--org--name/snapshots/0123", "dir DIR/named.safetensors", "dir DIR/owner/name", "dir DIR/plain",
		"dir DIR/plain/inside/checkpoint-500", "dir DIR/too/deep/by/far/and/further", "dir DIR/z-linked",
	}
	for _, c := range []struct {
		name  string
		roots []string
		want  []string
	}{
		{"none", nil, nil},
		{"a folder", []string{root}, all},
		{"a folder, one below it, and a link", []string{root, root + "/plain/", root + "/loop"}, all},
		{"a model directory", []string{root + "/plain"}, []string{"dir DIR/plain", "dir DIR/plain/inside/checkpoint-500"}},
		{"a Hugging Face model", []string{root + "/models--org--name"}, []string{"dir DIR/models--org--name/snapshots/0123"}},
		{"nothing", []string{root + "/nothing", root + "/plain/model.safetensors"}, nil},
	} {
		x := start(t, Options{}, c.roots...)
		same(t, c.name, text(lookup(t, x, hash), root), c.want...)
		x.Close()
	}
}
