// SPDX-FileCopyrightText: The wcache authors
// SPDX-License-Identifier: MIT

package main

import (
	"bytes"
	"errors"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"strconv"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// For a user without a known home directory, no file of the working directory is read, and
// none is written there.
func TestHomeless(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("needs root, to be a user of whom nothing is known, and .ci/run is root; TestPath and TestPaths are about the same")
	}
	const stranger = 54321
	if _, err := user.LookupId(strconv.Itoa(stranger)); err == nil {
		t.Skip("user 54321 is known here")
	}
	dir := manualDir(t)
	self, err := os.Open("/proc/self/exe")
	must(t, err, os.MkdirAll(filepath.Join(dir, ".config/wcache"), 0o755), os.Chmod(dir, 0o755))
	defer self.Close()
	write(t, filepath.Join(dir, ".config/wcache/wcache.toml"), "bugdet = 1\n")
	must(t, os.Chmod(filepath.Join(dir, ".config/wcache/wcache.toml"), 0o644), os.Chown(dir, stranger, stranger))
	run := func(args ...string) (string, int) {
		t.Helper()
		c := exec.CommandContext(t.Context(), "/proc/self/fd/3")
		c.Args, c.Dir = append([]string{"wcache"}, args...), dir
		c.Env = []string{"GORACE=atexit_sleep_ms=0", "XDG_RUNTIME_DIR=" + dir}
		c.ExtraFiles = []*os.File{self}
		c.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: stranger, Gid: stranger}}
		out, err := c.CombinedOutput()
		var exit *exec.ExitError
		if err != nil && !errors.As(err, &exit) {
			t.Fatal(err)
		}
		return string(bytes.ReplaceAll(out, []byte(dir), []byte("DIR"))), c.ProcessState.ExitCode()
	}
	out, exit := run("serve", "--listen", "s/host.sock")
	want := "wcache: error: find state folder: no home directory is known, and XDG_STATE_HOME is not set\n" +
		"wcache: hint: set HOME or XDG_STATE_HOME, or give --state FOLDER\n"
	if diff := cmp.Diff(want, out); diff != "" || exit != exitConfig {
		t.Errorf("serve exits %d (-want +got):\n%s", exit, diff)
	}
	out, exit = run("--gpu", "host", "doctor")
	if exit != exitFailed || !bytes.Contains([]byte(out), []byte("ok     configuration       no file, all defaults\n")) {
		t.Errorf("doctor exits %d:\n%s", exit, out)
	}
	out, exit = run("explain", "owner/model")
	want = "wcache: error: find model \"owner/model\": no Hugging Face cache is known, as there is no home directory; set HOME or HF_HUB_CACHE\n"
	if diff := cmp.Diff(want, out); diff != "" || exit != exitFailed {
		t.Errorf("explain exits %d (-want +got):\n%s", exit, diff)
	}
	files, err := filepath.Glob(filepath.Join(dir, "*"))
	must(t, err)
	if diff := cmp.Diff([]string{filepath.Join(dir, ".config")}, files); diff != "" {
		t.Errorf("files -want +got:\n%s", diff)
	}
}
