// SPDX-FileCopyrightText: The wcache authors
// SPDX-License-Identifier: MIT

package listeners

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/wcache/wcache/daemon"
	"github.com/wcache/wcache/internal/testmain"
)

func TestMain(m *testing.M) { testmain.Run(m) }

// private is a folder with a name that is short enough for sockets.
func private(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "wcache")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	return dir
}

// Engines would be asked on the control socket, or draft models served as targets.
func TestNamed(t *testing.T) {
	dir := private(t)
	in, err := Open([]string{dir + "/0.sock", dir + "/b.sock"}, []string{dir + "/d.sock"})
	if err != nil {
		t.Fatal(err)
	}
	type listener struct {
		Path string
		Role daemon.Role
	}
	var got []listener
	for _, l := range in.Listeners {
		got = append(got, listener{filepath.Base(l.Addr().String()), l.Role})
		if err := l.Close(); err != nil {
			t.Error(err)
		}
	}
	in.Release()
	want := []listener{{"0.sock", daemon.Target}, {"b.sock", daemon.Target}, {"d.sock", daemon.Draft}, {"0.control", daemon.Control}}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
	if len(in.Kept) > 0 {
		t.Errorf("kept %v", in.Kept)
	}
}

// A server that has failed to start would keep sockets from the next one.
func TestFailed(t *testing.T) {
	t.Setenv("LISTEN_PID", "")
	if _, err := Open(nil, nil); !errors.Is(err, ErrNone) {
		t.Errorf("without sockets: %v", err)
	}
	first := private(t) + "/0.sock"
	if _, err := Open([]string{first, "/" + strings.Repeat("x", 200)}, nil); err == nil {
		t.Fatal("a path that is too long is listened on")
	}
	in, err := Open([]string{first}, nil)
	if err != nil {
		t.Fatal(err)
	}
	for _, l := range in.Listeners {
		if err := l.Close(); err != nil {
			t.Error(err)
		}
	}
	in.Release()
}
