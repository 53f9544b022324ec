// SPDX-FileCopyrightText: The wcache authors
// SPDX-License-Identifier: MIT

package weights

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"syscall"
	"testing"
)

// asOther calls f with the file system rights of a user who doesn't own the test's
// files, or, if the test may not change its user, with the owner's rights. It returns
// the owner's uid. f must not leave its goroutine.
func asOther(t *testing.T, f func()) {
	t.Helper()
	if os.Getuid() != 0 {
		f()
		return
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		runtime.LockOSThread() // never unlocked: the thread ends with the goroutine
		const nobody = 65534
		if err := errors.Join(syscall.Setfsgid(nobody), syscall.Setfsuid(nobody)); err != nil {
			t.Error(err)
			return
		}
		f()
	}()
	<-done
}

// Case T10: files of another user that may not be read stay unusable. The message names
// them with their owner, and a folder on the way that may not be entered as well.
func TestDenied(t *testing.T) {
	root, err := os.MkdirTemp("", "denied") // other users can't enter the parents of t.TempDir
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.Chmod(filepath.Join(root, "closed"), 0o700); _ = os.RemoveAll(root) })
	mode := func(path string, m fs.FileMode) {
		t.Helper()
		if err := os.Chmod(filepath.Join(root, path), m); err != nil {
			t.Fatal(err)
		}
	}
	for _, path := range []string{"m/model.safetensors", "m/" + ShardIndexName, "m/config.json", "closed/blobs/4e1c"} {
		write(t, filepath.Join(root, path), shard(nil))
	}
	symlink(t, "../m/model.safetensors", filepath.Join(root, "links/direct.safetensors"))
	symlink(t, "../closed/blobs/4e1c", filepath.Join(root, "links/model.safetensors"))
	age(t, root)
	for _, path := range []string{"m/model.safetensors", "m/" + ShardIndexName, "m/config.json", "closed"} {
		mode(path, 0o000)
	}
	for _, path := range []string{"", "m", "links"} {
		mode(path, 0o755)
	}
	have, err := survey(filepath.Join(root, "m"))
	if err != nil {
		t.Fatal(err)
	}
	asOther(t, func() {
		at := func(path string) string { return filepath.Join(root, path) }
		_, direct := openSame(at("m/model.safetensors"), have["model.safetensors"])
		_, linked := openSame(at("links/direct.safetensors"), have["model.safetensors"])
		_, index := readShardIndex(at("m/" + ShardIndexName))
		_, config := readConfig(at("m"))
		_, beyond := survey(at("links"))
		_, folder := survey(at("closed"))
		for _, c := range []struct {
			path, of, kind, mode, bits string
			err                        error
		}{
			{"m/model.safetensors", "m/model.safetensors", "file", "0000", "r", direct},
			{"links/direct.safetensors", "m/model.safetensors", "file", "0000", "r", linked},
			{"m/" + ShardIndexName, "m/" + ShardIndexName, "file", "0000", "r", index},
			{"m/config.json", "m/config.json", "file", "0000", "r", config},
			{"links/model.safetensors", "closed", "folder", "0000", "rx", beyond},
			{"closed", "closed", "folder", "0000", "rx", folder},
		} {
			want := fmt.Sprintf(`read weights "DIR/%s": may not be read by uid %d: the %s "DIR/%s" belongs to uid %d and has mode %s; let its owner run: chmod a+%s`,
				c.path, os.Geteuid(), c.kind, c.of, os.Getuid(), c.mode, c.bits)
			var unusable *Unusable
			if !errors.As(c.err, &unusable) || !errors.Is(c.err, fs.ErrPermission) || relative(c.err.Error(), root) != want {
				t.Errorf("%s: got %v, want an Unusable: %s", c.path, c.err, want)
			}
		}
	})
	other := errors.New("other")
	if err := denied(root, other); !errors.Is(err, other) {
		t.Errorf("another error became %v", err)
	}
}
