// SPDX-FileCopyrightText: The wcache authors
// SPDX-License-Identifier: MIT

package client_test

import (
	"net"
	"os"
	"path/filepath"
	"testing"

	"github.com/wcache/wcache/client"
)

// T5: a listening socket is found by any spelling of its path, without connecting to it.
func TestListening(t *testing.T) {
	live := serve(t, func(net.Conn) { t.Error("somebody connected") })
	dir, name := filepath.Split(live)
	t.Chdir(dir)
	link, file := t.TempDir(), t.TempDir()
	if err := os.Symlink(dir, filepath.Join(link, "way")); err != nil {
		t.Fatal(err)
	}
	plain := filepath.Join(file, name)
	if err := os.WriteFile(plain, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	bound := filepath.Join(link, "way", "l.sock") // the name that was bound contains a link
	l, err := net.Listen("unix", bound)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	if err := os.Symlink(live, filepath.Join(link, "socket")); err != nil {
		t.Fatal(err)
	}
	for path, want := range map[string]bool{
		live: true, name: true, "./" + name: true, dir + "/" + name: true, dir + "./../" + filepath.Base(dir) + "//" + name: true,
		filepath.Join(link, "way", name): true, filepath.Join(link, "socket"): true,
		bound: true, filepath.Join(dir, "l.sock"): true, "l.sock": true,
		plain: false, stale(t): false, "/none": false, "": false, "none": false, filepath.Join(link, "way"): false,
	} {
		if got := client.Listening(path); got != want {
			t.Errorf("Listening(%q) = %v", path, got)
		}
		if client.Removed(path) {
			t.Errorf("Removed(%q)", path)
		}
	}
}

// A socket whose file or folder is gone is not idle: T3.
func TestRemoved(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "folder")
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(dir, "s.sock")
	l, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	check := func(what string, listening, removed bool) {
		t.Helper()
		for _, p := range []string{path, dir + "/../folder//s.sock"} {
			if got := client.Listening(p); got != listening {
				t.Errorf("%s: Listening(%q) = %v", what, p, got)
			}
			if got := client.Removed(p); got != removed {
				t.Errorf("%s: Removed(%q) = %v", what, p, got)
			}
		}
	}
	check("there", true, false)
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	check("file removed", false, true)
	if err := os.Remove(dir); err != nil {
		t.Fatal(err)
	}
	check("folder removed", false, true)
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	check("closed", false, false)
}
