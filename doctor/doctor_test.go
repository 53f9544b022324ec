// SPDX-FileCopyrightText: The wcache authors
// SPDX-License-Identifier: MIT

package doctor

import (
	"context"
	"errors"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/wcache/wcache/internal/testmain"
)

func TestMain(m *testing.M) { testmain.Run(m) }

// answers are what systemctl says, by its last argument and "-P" or "-p".
type answers map[string]string

func (a answers) run(_ context.Context, args ...string) (string, error) {
	last := args[len(args)-1]
	out, ok := a[last]
	if !ok {
		return "", errors.New("Failed to connect to bus")
	}
	return out, nil
}

// healthy is a machine where all is well.
func healthy(t *testing.T) (Machine, answers, map[string]string) {
	t.Helper()
	root, err := os.MkdirTemp("", "doctor") // a socket's path is short
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(root) })
	run := filepath.Join(root, "run")
	for _, d := range []string{run, filepath.Join(root, "var/lib/systemd/linger"), filepath.Join(root, "proc/sys/kernel/yama")} {
		if err := os.MkdirAll(d, 0o700); err != nil {
			t.Fatal(err)
		}
	}
	put(t, filepath.Join(root, "var/lib/systemd/linger/ada"), "")
	put(t, filepath.Join(root, "proc/sys/kernel/yama/ptrace_scope"), "1\n")
	socket := filepath.Join(run, "0.sock")
	l, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	if err := os.Chmod(socket, 0o600); err != nil {
		t.Fatal(err)
	}
	env := map[string]string{"XDG_RUNTIME_DIR": run}
	a := answers{
		"Version":           "252",
		"wcache@0.socket":   "LoadState=loaded\nUnitFileState=enabled\nActiveState=active\nResult=success",
		"wcache@0.service":  "ActiveState=active\nResult=success\nStatusText=empty\nNRestarts=0\nFileDescriptorStoreMax=2048\nLimitNOFILESoft=8192",
		"unused by a check": "",
	}
	return Machine{
		Instance: "0", Socket: socket, UID: os.Getuid(), User: "ada", Env: func(n string) string { return env[n] },
		Config: []string{filepath.Join(root, "wcache.toml")}, Root: root, Systemctl: a.run,
	}, a, env
}

func put(t *testing.T, path, text string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

func TestHealthy(t *testing.T) {
	m, _, env := healthy(t)
	want := []Result{
		{OK, "configuration", "no file, all defaults", ""},
		{OK, "runtime directory", env["XDG_RUNTIME_DIR"], ""},
		{OK, "user manager", "systemd 252", ""},
		{OK, "socket unit", "wcache@0.socket is enabled and listening", ""},
		{OK, "service", "active: empty", ""},
		{OK, "fd store", "it keeps up to 2048 descriptors", ""},
		{OK, "socket", m.Socket + ", mode 0600", ""},
		{OK, "lingering", "on: the weights stay when you log out", ""},
		{OK, "ptrace scope", "engines can take handles from the daemon", ""},
	}
	if diff := cmp.Diff(want, Run(t.Context(), m)); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
}

// Each check is made to fail once; the rest stays well.
func TestFaults(t *testing.T) {
	tests := []struct {
		name  string
		spoil func(t *testing.T, m *Machine, a answers, env map[string]string)
		want  Result
	}{
		{"configuration", func(t *testing.T, m *Machine, _ answers, _ map[string]string) { put(t, m.Config[0], "bugdet = 1\n") },
			Result{Fail, "configuration", `read configuration: CONFIG:1: unknown key "bugdet"`, "edit the file; systemctl --user reload wcache@0.service"}},
		{"runtime directory", func(_ *testing.T, _ *Machine, _ answers, env map[string]string) {
			env["XDG_RUNTIME_DIR"] = "/nonexistent"
		},
			Result{Fail, "runtime directory", "/nonexistent isn't there", "log in anew, or: loginctl enable-linger"}},
		{"no manager", func(_ *testing.T, _ *Machine, a answers, _ map[string]string) { delete(a, "Version") },
			Result{Fail, "user manager", "can't be reached: Failed to connect to bus", "loginctl enable-linger, or run wcache serve --listen PATH without it"}},
		{"no unit", func(_ *testing.T, _ *Machine, a answers, _ map[string]string) {
			a["wcache@0.socket"] = "LoadState=not-found"
		},
			Result{Fail, "socket unit", "wcache@0.socket is not-found", "install wcache's package, or copy systemd/ to ~/.config/systemd/user; systemctl --user daemon-reload"}},
		{"start limit of the socket", func(_ *testing.T, _ *Machine, a answers, _ map[string]string) {
			a["wcache@0.socket"] = "LoadState=loaded\nActiveState=failed\nResult=trigger-limit-hit"
		}, Result{Fail, "socket unit", "wcache@0.socket has failed: trigger-limit-hit", "systemctl --user reset-failed 'wcache*'; systemctl --user restart wcache@0.socket"}},
		{"not listening", func(_ *testing.T, _ *Machine, a answers, _ map[string]string) {
			a["wcache@0.socket"] = "LoadState=loaded\nActiveState=inactive"
		}, Result{Fail, "socket unit", "wcache@0.socket is inactive", "systemctl --user enable --now wcache@0.socket"}},
		{"not enabled", func(_ *testing.T, _ *Machine, a answers, _ map[string]string) {
			a["wcache@0.socket"] = "LoadState=loaded\nUnitFileState=disabled\nActiveState=active"
		}, Result{Warn, "socket unit", "wcache@0.socket listens, and is disabled: not after the next login", "systemctl --user enable --now wcache@0.socket"}},
		{"start limit of the service", func(_ *testing.T, _ *Machine, a answers, _ map[string]string) {
			a["wcache@0.service"] = strings.NewReplacer("ActiveState=active", "ActiveState=failed", "Result=success", "Result=start-limit-hit").Replace(a["wcache@0.service"])
		}, Result{Fail, "service", "wcache@0.service has failed: start-limit-hit", "journalctl --user -u wcache@0.service; systemctl --user reset-failed 'wcache*'; systemctl --user restart wcache@0.socket"}},
		{"restarts", func(_ *testing.T, _ *Machine, a answers, _ map[string]string) {
			a["wcache@0.service"] = strings.Replace(a["wcache@0.service"], "NRestarts=0", "NRestarts=3", 1)
		}, Result{Warn, "service", "wcache@0.service is active and was restarted 3 times after it died", "journalctl --user -u wcache@0.service"}},
		{"no store", func(_ *testing.T, _ *Machine, a answers, _ map[string]string) {
			a["wcache@0.service"] = strings.Replace(a["wcache@0.service"], "Max=2048", "Max=0", 1)
		}, Result{Fail, "fd store", `it keeps "0" descriptors: weights would not outlive the daemon`, "systemctl --user edit wcache@.service: [Service] FileDescriptorStoreMax=2048"}},
		{"few open files", func(_ *testing.T, _ *Machine, a answers, _ map[string]string) {
			a["wcache@0.service"] = strings.Replace(a["wcache@0.service"], "Soft=8192", "Soft=1024", 1)
		}, Result{Warn, "fd store", "it keeps 2048 descriptors, and the service starts with at most 1024 open files", "systemctl --user edit wcache@.service: [Service] LimitNOFILE=8192:524288"}},
		{"socket's mode", func(t *testing.T, m *Machine, _ answers, _ map[string]string) {
			if err := os.Chmod(m.Socket, 0o666); err != nil {
				t.Fatal(err)
			}
		}, Result{Fail, "socket", "SOCKET has mode 0666 and lets others in", "systemctl --user restart wcache@0.socket"}},
		{"no socket", func(_ *testing.T, m *Machine, _ answers, _ map[string]string) { m.Socket += "x" },
			Result{Fail, "socket", "SOCKETx isn't there", "systemctl --user enable --now wcache@0.socket"}},
		{"lingering", func(_ *testing.T, m *Machine, _ answers, _ map[string]string) { m.User = "eve" },
			Result{Warn, "lingering", "off: the weights go at your last logout", "loginctl enable-linger"}},
		{"ptrace scope", func(t *testing.T, m *Machine, _ answers, _ map[string]string) {
			put(t, filepath.Join(m.Root, "proc/sys/kernel/yama/ptrace_scope"), "2\n")
		}, Result{Fail, "ptrace scope", "2: engines can't take handles from the daemon", "sysctl kernel.yama.ptrace_scope=1"}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			m, a, env := healthy(t)
			socket := m.Socket
			tt.spoil(t, &m, a, env)
			var wrong []Result
			for _, r := range Run(t.Context(), m) {
				if r.State != OK {
					r.Text = strings.NewReplacer(m.Config[0], "CONFIG", socket, "SOCKET").Replace(r.Text)
					wrong = append(wrong, r)
				}
			}
			if diff := cmp.Diff([]Result{tt.want}, wrong); diff != "" {
				t.Errorf("-want +got:\n%s", diff)
			}
		})
	}
}
