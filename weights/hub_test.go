// SPDX-FileCopyrightText: The wcache authors
// SPDX-License-Identifier: MIT

package weights

import (
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// A snapshot's links carry the digests that the hub gave. Git's digests, which are
// SHA-1, don't count.
func TestHubDigest(t *testing.T) {
	const (
		sha256 = "9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08"
		sha1   = "da39a3ee5e6b4b0d3255bfef95601890afd80709"
	)
	repo := t.TempDir()
	dir := filepath.Join(repo, "snapshots", sha1)
	link := func(name, to string) { symlink(t, to, filepath.Join(dir, name)) }
	for _, blob := range []string{"blobs/" + sha256, "blobs/" + sha1, "blobs/" + sha256 + ".1", "other/" + sha256} {
		write(t, filepath.Join(repo, blob), shard(map[string]byte{blob: 1}))
	}
	config := open(t, copyModel(t, "llama")).Path
	write(t, filepath.Join(dir, "plain.safetensors"), shard(map[string]byte{"plain": 1}))
	link("relative.safetensors", "../../blobs/"+sha256)
	link("absolute.safetensors", filepath.Join(repo, "blobs", sha256))
	link("git.safetensors", "../../blobs/"+sha1)
	link("longer.safetensors", "../../blobs/"+sha256+".1")
	link("elsewhere.safetensors", "../../other/"+sha256)
	link("config.json", filepath.Join(config, "config.json"))
	age(t, repo)
	got := make(map[string]string)
	for _, f := range open(t, dir).Load {
		got[f.Base] = f.SHA256
	}
	want := map[string]string{
		"plain.safetensors": "", "relative.safetensors": sha256, "absolute.safetensors": sha256,
		"git.safetensors": "", "longer.safetensors": "", "elsewhere.safetensors": "",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}
