// SPDX-FileCopyrightText: The wcache authors
// SPDX-License-Identifier: MIT

package index

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/wcache/wcache/internal/testmain"
	"github.com/wcache/wcache/weights"
)

// The next look-up shows each change, and the earlier version isn't current any more.
func TestChanges(t *testing.T) {
	root, out := t.TempDir(), t.TempDir()
	hash, other := hashOf(one), hashOf(map[string]string{"model.safetensors": "b"})
	a, b := shard("a", "1"), shard("b", "1")
	write(t, root+"/m/model.safetensors", a)
	write(t, out+"/blob-a", a)
	write(t, out+"/blob-b", b)
	write(t, out+"/twin/model.safetensors", a)
	x := start(t, Options{}, root+"/", root+"/later")
	var before Answer
	step := func(what string, do func() error, want ...string) {
		t.Helper()
		must(t, do())
		if x.Current(hash, before.Version) {
			t.Errorf("%s: the version of before is current", what)
		}
		before = lookup(t, x, hash)
		got := strings.ReplaceAll(strings.ReplaceAll(text(before, ""), root, "ROOT"), out, "OUT")
		same(t, what, got, want...)
	}
	nothing := func() error { return nil }
	step("at first", nothing, "dir ROOT/m")
	step("data written in place", func() error { return overwrite(root+"/m/model.safetensors", shard("a", "2")) }, "dir ROOT/m")
	step("header written in place", func() error { return overwrite(root+"/m/model.safetensors", b) })
	if got := lookup(t, x, other); len(got.Dirs) != 1 {
		t.Errorf("the new header is not found: %s", text(got, root))
	}
	step("replaced", func() error {
		write(t, root+"/new", a)
		return os.Rename(root+"/new", root+"/m/model.safetensors")
	}, "dir ROOT/m")
	step("half a shard", func() error { return os.Truncate(root+"/m/model.safetensors", 20) },
		`unsure ROOT/m: read weights "ROOT/m/model.safetensors": read safetensors header: its length of 53 bytes runs past the end of a file of 20; it was written a moment ago, wait until it is whole`)
	step("a linked shard", func() error {
		must(t, os.Symlink(out+"/blob-a", root+"/link"))
		return os.Rename(root+"/link", root+"/m/model.safetensors")
	}, "dir ROOT/m")
	step("what it leads to is replaced", func() error { return os.Rename(out+"/blob-b", out+"/blob-a") })
	step("and is gone", func() error { return os.Remove(out + "/blob-a") },
		`unsure ROOT/m: read weights "ROOT/m/model.safetensors": is a symlink to "OUT/blob-a", which does not exist; fetch the model again`)
	step("and is back", func() error { return os.WriteFile(out+"/blob-a", a, 0o600) }, "dir ROOT/m")
	step("its folder is moved", func() error { return os.Rename(out, out+"-moved") },
		`unsure ROOT/m: read weights "ROOT/m/model.safetensors": is a symlink to "OUT/blob-a", which does not exist; fetch the model again`)
	step("and back", func() error { return os.Rename(out+"-moved", out) }, "dir ROOT/m")
	step("a twin is linked", func() error { return os.Symlink(out+"/twin", root+"/twin") }, "dir ROOT/m", "dir ROOT/twin")
	step("and written by another hard link", func() error {
		must(t, os.Link(out+"/twin/model.safetensors", out+"/hard"))
		return overwrite(out+"/hard", b)
	}, "dir ROOT/m")
	step("and moved in", func() error {
		must(t, os.Remove(root+"/twin"))
		must(t, overwrite(out+"/hard", a))
		return os.Rename(out+"/twin", root+"/m/twin")
	}, "dir ROOT/m", "dir ROOT/m/twin")
	step("the folder above is moved", func() error { return os.Rename(root+"/m", root+"/n") }, "dir ROOT/n", "dir ROOT/n/twin")
	step("a shard more", func() error { return os.WriteFile(root+"/n/model-2.safetensors", a, 0o600) }, "dir ROOT/n/twin")
	step("an index without it", func() error {
		return os.WriteFile(root+"/n/"+weights.ShardIndexName, []byte(`{"weight_map":{"x":"model.safetensors"}}`), 0o600)
	}, "dir ROOT/n", "dir ROOT/n/twin")
	step("an index that leads nowhere", func() error {
		must(t, os.Remove(root+"/n/"+weights.ShardIndexName))
		return os.Symlink("nowhere", root+"/n/"+weights.ShardIndexName)
	}, "dir ROOT/n/twin", `unsure ROOT/n: read weights "ROOT/n/model.safetensors.index.json": is a symlink to "nowhere", which does not exist; fetch the model again`)
	step("an index over the limit", func() error {
		must(t, os.Remove(root+"/n/"+weights.ShardIndexName))
		must(t, os.WriteFile(root+"/n/"+weights.ShardIndexName, nil, 0o600))
		return os.Truncate(root+"/n/"+weights.ShardIndexName, weights.MaxShardIndex+1)
	}, "dir ROOT/n/twin", `unsure ROOT/n: read weights "ROOT/n/model.safetensors.index.json": is over the limit of 67108864 bytes`)
	step("all gone", func() error { return os.RemoveAll(root + "/n") })
	step("a root that appears", func() error { write(t, root+"/later/model.safetensors", a); return nil }, "dir ROOT/later")
	step("the root is gone", func() error { return os.RemoveAll(root) })
	step("and a link in its place", func() error {
		must(t, os.RemoveAll(out))
		write(t, out+"/m/model.safetensors", a)
		return os.Symlink(out, root)
	}, "dir ROOT/m")
	step("which is switched", func() error {
		write(t, out+"/v2/model.safetensors", b)
		must(t, os.Symlink(out+"/v2", root+"-new"))
		return os.Rename(root+"-new", root)
	})
	step("a file in its place", func() error { must(t, os.Remove(root)); return os.WriteFile(root, a, 0o600) })
	must(t, os.Remove(root))
}

func overwrite(path string, b []byte) error {
	f, err := os.OpenFile(path, os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	if _, err := f.WriteAt(b, 0); err != nil {
		return err
	}
	return f.Close()
}

// The edition of a directory changes with every file that may decide what vLLM loads,
// and with no other file.
func TestEdition(t *testing.T) {
	dir := t.TempDir()
	hash := hashOf(one)
	write(t, dir+"/m/model.safetensors", shard("a", "1"))
	x := start(t, Options{}, dir)
	before := lookup(t, x, hash)
	step := func(what string, changes bool, do func() error) {
		t.Helper()
		must(t, do())
		now := lookup(t, x, hash)
		if len(now.Dirs) != 1 || (now.Dirs[0].Edition != before.Dirs[0].Edition) != changes || (now.Version != before.Version) != changes {
			t.Errorf("%s: from %+v to %+v", what, before, now)
		}
		before = now
	}
	step("data", true, func() error { return overwrite(dir+"/m/model.safetensors", shard("a", "2")) })
	step("config.json", true, func() error { return os.WriteFile(dir+"/m/config.json", []byte("{}"), 0o600) })
	step("its contents", true, func() error { return os.WriteFile(dir+"/m/config.json", []byte("{ }"), 0o600) })
	step("params.json", true, func() error { return os.WriteFile(dir+"/m/params.json", []byte("{}"), 0o600) })
	step("README", false, func() error { return os.WriteFile(dir+"/m/README.md", nil, 0o600) })
	step("a tokenizer", false, func() error { return os.WriteFile(dir+"/m/tokenizer.json", nil, 0o600) })
	step("another folder", false, func() error { return os.Mkdir(dir+"/m/runs", 0o700) })
	step("another model", false, func() error { write(t, dir+"/n/model.safetensors", shard("b", "1")); return nil })
	step("of that, a config.json", false, func() error { return os.WriteFile(dir+"/n/config.json", nil, 0o600) })
}

// A write through a shared mapping shows when the file is closed.
func TestMapped(t *testing.T) {
	dir := t.TempDir()
	path := dir + "/model.safetensors"
	write(t, path, shard("a", "1"))
	x := start(t, Options{}, dir)
	hash := hashOf(one)
	before := lookup(t, x, hash)
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	must(t, err)
	b, err := unix.Mmap(int(f.Fd()), 0, len(shard("a", "1")), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	must(t, err)
	b[bytes.IndexByte(b, '"')+1] = 'b'
	must(t, unix.Munmap(b))
	must(t, f.Close())
	if x.Current(hash, before.Version) {
		t.Error("current after the header was written")
	}
	same(t, "mapped", text(lookup(t, x, hash), dir))
	same(t, "mapped", text(lookup(t, x, hashOf(map[string]string{"model.safetensors": "b"})), dir), "dir DIR")
}

// A download makes no other hash unsure, and its files are read at most once per
// gathering time.
func TestDownload(t *testing.T) {
	dir := t.TempDir()
	hash := hashOf(one)
	write(t, dir+"/held/model.safetensors", shard("a", "1"))
	count := new(counted)
	const gather = 20 * time.Millisecond
	x := start(t, Options{system: count, Gather: gather}, dir)
	lookup(t, x, hash)
	hub := dir + "/models--a--b"
	must(t, os.MkdirAll(hub+"/blobs", 0o700))
	write(t, dir+"/new/config.json", []byte("{}"))
	write(t, dir+"/new/model-1.safetensors", shard("a", "1"))
	lookup(t, x, hash)
	half, err := os.OpenFile(dir+"/new/model-2.safetensors", os.O_CREATE|os.O_WRONLY, 0o600)
	must(t, err)
	blob, err := os.OpenFile(hub+"/blobs/0123.incomplete", os.O_CREATE|os.O_WRONLY, 0o600)
	must(t, err)
	big := shard("big", strings.Repeat("x", 1<<20))
	before := lookup(t, x, hash)
	began, reads := time.Now(), count.count()
	for i := 0; i+1000 <= len(big); i += 1000 {
		_, err := half.Write(big[i : i+1000])
		must(t, err)
		_, err = blob.Write(big[i : i+1000])
		must(t, err)
		if !x.Current(hash, before.Version) {
			t.Fatalf("not current after %d bytes of another model", i)
		}
	}
	must(t, half.Close())
	must(t, blob.Close())
	// Each reading takes the length and the header.
	if n, most := count.count()-reads, 2*(int(time.Since(began)/gather)+2); n > most {
		t.Errorf("headers were read %d times, at most %d was expected", n, most)
	}
	if a := lookup(t, x, hash); a.Version != before.Version {
		t.Errorf("another answer after the download of another model: %s", text(a, dir))
	}
}

// Many more events than the kernel keeps.
func TestOverflow(t *testing.T) {
	dir := t.TempDir()
	hash := hashOf(one)
	write(t, dir+"/a/model.safetensors", shard("a", "1"))
	write(t, dir+"/b/model.safetensors", shard("b", "1"))
	x := start(t, Options{}, dir)
	before := lookup(t, x, hash)
	same(t, "before", text(before, dir), "dir DIR/a")
	x.mu.Lock() // no events are taken over
	text1, err := os.ReadFile("/proc/sys/fs/inotify/max_queued_events")
	must(t, err)
	var limit int
	_, err = fmt.Sscan(string(text1), &limit)
	must(t, err)
	for i := range limit + 10 {
		must(t, os.WriteFile(fmt.Sprintf("%s/%d", dir, i%2), nil, 0o600))
		must(t, os.Remove(fmt.Sprintf("%s/%d", dir, i%2)))
	}
	must(t, overwrite(dir+"/a/model.safetensors", shard("b", "1")))
	must(t, overwrite(dir+"/b/model.safetensors", shard("a", "1")))
	write(t, dir+"/c/d/model.safetensors", shard("a", "1"))
	x.mu.Unlock()
	if x.Current(hash, before.Version) {
		t.Error("current after events were lost")
	}
	same(t, "after", text(lookup(t, x, hash), dir), "dir DIR/b", "dir DIR/c/d")
}

// A folder that this user may not read makes its root partial, until it can be read.
func TestUnreadable(t *testing.T) {
	dir := t.TempDir()
	must(t, os.Chmod(dir, 0o755))
	for p := filepath.Dir(dir); p != "/tmp" && p != "/"; p = filepath.Dir(p) {
		if info, err := os.Stat(p); err == nil && info.Mode().Perm()&0o055 != 0o055 {
			must(t, os.Chmod(p, info.Mode().Perm()|0o055))
		}
	}
	hash := hashOf(one)
	for _, name := range []string{"open", "locked", "shard"} {
		write(t, dir+"/"+name+"/model.safetensors", shard("a", "1"))
		must(t, os.Chmod(dir+"/"+name, 0o755))
		must(t, os.Chmod(dir+"/"+name+"/model.safetensors", 0o644))
	}
	must(t, os.Chmod(dir+"/locked", 0o700))
	must(t, os.Chmod(dir+"/shard/model.safetensors", 0o600))
	if os.Geteuid() != 0 {
		must(t, os.Chmod(dir+"/locked", 0))
		must(t, os.Chmod(dir+"/shard/model.safetensors", 0))
	}
	x := start(t, Options{system: unprivileged{}, addWatch: unprivilegedWatch, PollEvery: time.Hour}, dir)
	shardUnsure := `unsure DIR/shard: read weights "DIR/shard/model.safetensors": permission denied`
	same(t, "locked", text(lookup(t, x, hash), dir), "dir DIR/open", shardUnsure, "root DIR partial: DIR/locked: permission denied")
	must(t, os.Chmod(dir+"/shard/model.safetensors", 0o644))
	same(t, "a shard unlocked", text(lookup(t, x, hash), dir), "dir DIR/open", "dir DIR/shard", "root DIR partial: DIR/locked: permission denied")
	must(t, os.Chmod(dir+"/locked", 0o755))
	same(t, "all unlocked", text(lookup(t, x, hash), dir), "dir DIR/locked", "dir DIR/open", "dir DIR/shard")
	must(t, os.Chmod(dir+"/open", 0o311))
	same(t, "a folder locked", text(lookup(t, x, hash), dir), "dir DIR/locked", "dir DIR/shard", "root DIR partial: DIR/open: permission denied")
	must(t, os.Chmod(dir+"/open", 0o755))
	same(t, "and unlocked", text(lookup(t, x, hash), dir), "dir DIR/locked", "dir DIR/open", "dir DIR/shard")
	must(t, os.Chmod(dir+"/open/model.safetensors", 0o200))
	same(t, "a shard locked", text(lookup(t, x, hash), dir), "dir DIR/locked", "dir DIR/shard", `unsure DIR/open: read weights "DIR/open/model.safetensors": permission denied`)
}

// Files on a mounted file system count, and those that the mount hides don't.
func TestMounting(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("only root may mount; TestMounts covers what is made of the kernel's list")
	}
	dir := t.TempDir()
	hash := hashOf(one)
	write(t, dir+"/r/a/model.safetensors", shard("a", "1"))
	must(t, os.MkdirAll(dir+"/r/b", 0o700))
	write(t, dir+"/other/c/model.safetensors", shard("a", "1"))
	must(t, os.Symlink(dir+"/other", dir+"/r/link"))
	x := start(t, Options{}, dir+"/r")
	var before Answer
	step := func(what string, err error, want ...string) {
		t.Helper()
		must(t, err)
		if x.Current(hash, before.Version) {
			t.Errorf("%s: the version of before is current", what)
		}
		before = lookup(t, x, hash)
		same(t, what, text(before, dir), want...)
	}
	mount := func(path string) error {
		err := unix.Mount("test", path, "tmpfs", 0, "size=1m")
		t.Cleanup(func() { _ = unix.Unmount(path, unix.MNT_DETACH) })
		return err
	}
	step("at first", nil, "dir DIR/r/a", "dir DIR/r/link/c")
	step("over a model", mount(dir+"/r/a"), "dir DIR/r/link/c")
	write(t, dir+"/r/a/deep/model.safetensors", shard("a", "1"))
	must(t, os.Mkdir(dir+"/r/a/lost+found", 0o700))
	step("in it", nil, "dir DIR/r/a/deep", "dir DIR/r/link/c")
	step("over what a link leads to", mount(dir+"/other/c"), "dir DIR/r/a/deep")
	step("over the root", mount(dir+"/r"))
	step("not over the root", unix.Unmount(dir+"/r", 0), "dir DIR/r/a/deep")
	step("not over the model", unix.Unmount(dir+"/r/a", 0), "dir DIR/r/a")
	step("not over the link", unix.Unmount(dir+"/other/c", 0), "dir DIR/r/a", "dir DIR/r/link/c")
	must(t, unix.Mount(dir+"/r", dir+"/r/b", "", unix.MS_BIND, ""))
	t.Cleanup(func() { _ = unix.Unmount(dir+"/r/b", unix.MNT_DETACH) })
	same(t, "a folder bound below itself", text(lookup(t, x, hash), dir), "dir DIR/r/a", "dir DIR/r/link/c")
}

// Look-ups and changes run at once, for the race detector; afterwards the answer is right.
func TestConcurrent(t *testing.T) {
	n := uint64(time.Now().UnixNano())
	t.Logf("seed %d", n)
	w := newWorld(t, n)
	x := start(t, Options{}, w.oracle.roots...)
	w.oracle.ask(w.hashes)
	for _, hash := range w.hashes {
		lookup(t, x, hash)
	}
	done := make(chan struct{})
	var group sync.WaitGroup
	for i := range 4 {
		group.Go(func() {
			file := filepath.Join(w.top, fmt.Sprint("saved", i))
			for {
				select {
				case <-done:
					return
				default:
				}
				for _, hash := range w.hashes {
					x.Current(hash, lookup(t, x, hash).Version)
				}
				x.Roots()
				x.Models(t.Context())
				if err := x.Save(file); err != nil {
					t.Error(err)
				}
				x.Add(w.top + "/nothing")
				if i == 0 {
					x.SetRoots(w.oracle.roots[:1])
					x.SetRoots(w.oracle.roots)
				}
			}
		})
	}
	for range 500 {
		w.act()
	}
	close(done)
	group.Wait()
	now := w.oracle.ask(w.hashes)
	for _, hash := range w.hashes {
		if bad := w.oracle.compare(lookup(t, x, hash), now[hash]); bad != "" {
			t.Errorf("seed %d, hash %s: %s", n, hash, bad)
		}
	}
	testmain.Eventually(t, "what was added is forgotten", func() bool { return len(x.Roots()) == 2 })
}
