// SPDX-FileCopyrightText: The wcache authors
// SPDX-License-Identifier: MIT

package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/wcache/wcache/control"
	"github.com/wcache/wcache/internal/testmain"
)

// command gives a command's output and exit status, for a command that gives up soon.
func command(ctx context.Context, args ...string) (said string, exit int) {
	var out, errs bytes.Buffer
	a := &app{out: &out, err: &errs, env: noEnv, sysroot: "/", patience: 100 * time.Millisecond}
	exit = a.execute(ctx, args)
	return out.String() + errs.String(), exit
}

// C8, T1: a stopped daemon keeps its weights. Every command says that it doesn't answer, and
// how to make it go on.
func TestStoppedDaemon(t *testing.T) {
	dir := manualDir(t)
	socket := filepath.Join(dir, "s.sock")
	m := startManual(t, dir, nil, "serve", "--listen", socket, "--state", dir)
	m.says(t, "msg=serving")
	m.stop(t)
	defer m.signal(t, unix.SIGCONT)
	why := fmt.Sprintf("process %d is stopped, by SIGSTOP or by Ctrl-Z\n", m.Process.Pid)
	want := fmt.Sprintf("wcache: error: %s does not answer: %swcache: hint: kill -CONT %d continues it; nothing is lost\n", socket, why, m.Process.Pid)
	for name, before := range map[string]string{"status": "", "status -w": "", "explain": "", "evict --all": "", "warm /models": "", "version": "client " + ownVersion() + "\n"} {
		said, exit := command(t.Context(), append([]string{"--socket", socket}, strings.Fields(name)...)...)
		if diff := cmp.Diff(before+want, said); diff != "" || exit != exitFailed {
			t.Errorf("%s: exit %d (-want +got):\n%s", name, exit, diff)
		}
	}
	said, exit := command(t.Context(), "--socket", socket, "status", "--prometheus")
	if !strings.HasSuffix(said, "} 0\nwcache: "+socket+" does not answer: "+why) || exit != 0 {
		t.Errorf("metrics: exit %d\n%s", exit, said)
	}
	// The advice works.
	m.signal(t, unix.SIGCONT)
	testmain.Eventually(t, "it goes on", func() bool {
		_, exit := command(t.Context(), "--socket", socket, "status")
		return exit == 0
	})
}

// A hanging daemon looks the same to a client, but the cause isn't known.
func TestHangingDaemon(t *testing.T) {
	l, socket := listenControl(t)
	defer l.Close()
	want := fmt.Sprintf("wcache: error: %s does not answer: it has not answered within 100ms\nwcache: hint: wcache --socket %s doctor looks for why\n", socket, socket)
	for _, name := range []string{"status", "explain", "evict 7c", "warm /models"} {
		said, exit := command(t.Context(), append([]string{"--socket", socket}, strings.Fields(name)...)...)
		if diff := cmp.Diff(want, said); diff != "" || exit != exitFailed {
			t.Errorf("%s: exit %d (-want +got):\n%s", name, exit, diff)
		}
	}
}

// So does a daemon that the service manager starts in vain.
func TestStartInVain(t *testing.T) {
	dir := manualDir(t)
	socket := filepath.Join(dir, "vllm_weight_cache/0.sock")
	must(t, os.Mkdir(filepath.Dir(socket), 0o700))
	l, err := net.Listen("unix", socket)
	must(t, err)
	defer l.Close()
	env := map[string]string{"XDG_RUNTIME_DIR": dir}
	a := &app{gpu: "0", env: func(n string) string { return env[n] }}
	got := a.describe(a.start(t.Context(), 50*time.Millisecond))
	want := control.Error{Code: control.CodeFailed, Message: fmt.Sprintf("ask %q: it has not started within 50ms", socket), Hint: "systemctl --user status wcache@0.service says why"}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
}

// asNobody runs a command as a user without rights.
func asNobody(t *testing.T, args ...string) (said string, exit int) {
	t.Helper()
	const nobody = 65534
	self, err := os.Open("/proc/self/exe")
	must(t, err)
	defer self.Close()
	c := exec.CommandContext(t.Context(), "/proc/self/fd/3")
	c.Args, c.Dir, c.ExtraFiles = append([]string{"wcache"}, args...), "/", []*os.File{self}
	c.Env = []string{"GORACE=atexit_sleep_ms=0", "HOME=/nonexistent", "PATH=" + os.Getenv("PATH")}
	c.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: nobody, Gid: nobody}}
	out, err := c.CombinedOutput()
	if err != nil && !errors.As(err, new(*exec.ExitError)) {
		t.Fatal(err)
	}
	return string(out), c.ProcessState.ExitCode()
}

// A socket whose mode excludes its own user, another user's socket, and such folders.
func TestDeniedSocket(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("needs root, to be another user, and .ci/run is root; TestDenied of doctor has the words")
	}
	const nobody = 65534
	dir := manualDir(t)
	must(t, os.Chown(dir, nobody, nobody))
	socket := filepath.Join(dir, "s.sock")
	ctl := control.Path(socket)
	l, err := net.Listen("unix", ctl)
	must(t, err)
	defer l.Close()
	for _, tt := range []struct {
		name      string
		dir, file os.FileMode
		owner     int
		want      string
	}{
		{"mode 000", 0o700, 0, nobody, fmt.Sprintf("wcache: error: cannot reach %s: %s has mode 0000, which keeps its own user out\nwcache: hint: chmod 600 %s, which loses nothing\n", socket, ctl, ctl)},
		{"another user's", 0o700, 0o600, 0, fmt.Sprintf("wcache: error: cannot reach %s: %s is user 0's, and answers only that user\nwcache: hint: run this as that user, or start an instance of your own\n", socket, ctl)},
		{"a folder of mode 000", 0, 0o600, nobody, fmt.Sprintf("wcache: error: cannot reach %s: %s has mode 0000, which keeps its own user out\nwcache: hint: chmod 700 %s, which loses nothing\n", socket, dir, dir)},
		{"planted", 0o700, 0o666, nobody, fmt.Sprintf("wcache: error: connect to %q: user 0 listens there, and this is user 65534\nwcache: hint: an instance answers its own user: run this as that one, or name a socket of your own\n", ctl)},
	} {
		must(t, os.Chown(ctl, tt.owner, tt.owner), os.Chmod(ctl, tt.file), os.Chmod(dir, tt.dir))
		said, exit := asNobody(t, "--socket", socket, "status")
		must(t, os.Chmod(dir, 0o755))
		if diff := cmp.Diff(tt.want, said); diff != "" || exit != exitFailed {
			t.Errorf("%s: exit %d (-want +got):\n%s", tt.name, exit, diff)
		}
	}
	// Another user's waiting socket is not an idle instance of this user.
	must(t, l.Close())
	planted, err := net.Listen("unix", socket)
	must(t, err, os.Chmod(socket, 0o666))
	defer planted.Close()
	said, exit := asNobody(t, "--socket", socket, "status")
	want := fmt.Sprintf("wcache: error: cannot reach %s: %s is another user's\nwcache: hint: an instance answers its own user: run this as that one, or name a socket of your own\n", socket, socket)
	if diff := cmp.Diff(want, said); diff != "" || exit != exitNotRunning {
		t.Errorf("exit %d (-want +got):\n%s", exit, diff)
	}
}

// A socket whose file was removed is not idle: T3.
func TestRemovedSocket(t *testing.T) {
	dir := manualDir(t)
	socket := filepath.Join(dir, "vllm_weight_cache/0.sock")
	must(t, os.Mkdir(filepath.Dir(socket), 0o700))
	l, err := net.Listen("unix", socket)
	must(t, err)
	defer l.Close()
	must(t, os.RemoveAll(filepath.Dir(socket)))
	env := map[string]string{"XDG_RUNTIME_DIR": dir}
	var out, errs bytes.Buffer
	a := &app{out: &out, err: &errs, env: func(n string) string { return env[n] }}
	exit := a.execute(t.Context(), []string{"status"})
	want := fmt.Sprintf("wcache: error: cannot reach wcache@0: %s was removed, and a process still listens on it\n"+
		"wcache: hint: a daemon that made it by itself makes it again within seconds; else: systemctl --user restart wcache@0.socket, which keeps what a daemon holds by descriptors\n", socket)
	if diff := cmp.Diff(want, out.String()+errs.String()); diff != "" || exit != exitNotRunning {
		t.Errorf("exit %d (-want +got):\n%s", exit, diff)
	}
}
