// SPDX-FileCopyrightText: The wcache authors
// SPDX-License-Identifier: MIT

package packagetest

import (
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/wcache/wcache/internal/testmain"
)

// The users: the test bed's, and a second one who is logged in, too.
var (
	ada = user{"wctest", 1901}
	bob = user{"wcother", 1902}
)

// secondUser logs bob in, as lingering does.
func secondUser(t *testing.T) {
	t.Helper()
	root(t, "useradd", "--uid", "1902", "--create-home", bob.name)
	root(t, "loginctl", "enable-linger", bob.name)
	testmain.Eventually(t, "bob's user manager", func() bool {
		state := bob.run("systemctl", "--user", "is-system-running")
		return state == "running" || state == "degraded"
	})
	t.Cleanup(func() {
		root(t, "loginctl", "disable-linger", bob.name)
		testmain.Eventually(t, "bob's logout", func() bool { return exec.Command("userdel", "--remove", bob.name).Run() == nil })
	})
}

// manager is how a kind of package is handled.
type manager struct {
	name             string
	install, upgrade func(t *testing.T, pkg string)
	remove, purge    func(t *testing.T) // purge: nil if a removal is one
	kept             []string           // by a removal
}

var deb = manager{
	name:    "deb",
	install: func(t *testing.T, pkg string) { apt(t, "install", pkg) },
	upgrade: func(t *testing.T, pkg string) { apt(t, "install", pkg) },
	remove:  func(t *testing.T) { apt(t, "remove", "wcache") },
	purge:   func(t *testing.T) { apt(t, "purge", "wcache") },
	kept: []string{
		"drwxr-xr-x /etc/wcache", "-rw-r--r-- /etc/wcache/wcache.toml",
		"-rw-r--r-- /var/lib/dpkg/info/wcache.list", "-rwxr-xr-x /var/lib/dpkg/info/wcache.postrm",
	},
}

func apt(t *testing.T, args ...string) {
	t.Helper()
	out := root(t, "apt-get", append([]string{"-y", "--no-install-recommends", "-o", "APT::Sandbox::User=root"}, args...)...)
	for _, line := range strings.Split(out, "\n") {
		if strings.HasPrefix(line, "W:") || strings.Contains(line, "warning:") || strings.Contains(line, "ailed") {
			t.Errorf("apt-get %s: %s", strings.Join(args, " "), line)
		}
	}
}

var rpm = manager{
	name:    "rpm",
	install: func(t *testing.T, pkg string) { quiet(t, "-i", pkg) },
	upgrade: func(t *testing.T, pkg string) { quiet(t, "-U", pkg) },
	remove:  func(t *testing.T) { quiet(t, "-e", "wcache") },
}

// quiet runs rpm on a Debian system, where its database has no libc.
func quiet(t *testing.T, args ...string) {
	t.Helper()
	if out := root(t, "rpm", append([]string{"--nodeps", "--force-debian"}, args...)...); out != "" {
		t.Errorf("rpm %s says:\n%s", strings.Join(args, " "), out)
	}
}

func TestDeb(t *testing.T) { lifecycle(t, deb) }

func TestRPM(t *testing.T) {
	needRPM(t)
	lifecycle(t, rpm)
}

// Where systemd has its helper for packages, the helper enables and disables units;
// elsewhere the presets decide, if one names this unit.
func TestRPMEnables(t *testing.T) {
	needRPM(t)
	const (
		preset = "/etc/systemd/user-preset/50-test.preset"
		helper = "/usr/lib/systemd/systemd-update-helper"
		calls  = "/run/helper-calls"
	)
	tests := []struct {
		name, file, text string
		mode             os.FileMode
		enabled          []string
		calls            string
	}{
		{"no presets", "", "", 0, nil, ""},
		{"disabled by preset", preset, "disable *\n", 0o644, nil, ""},
		{"enabled by preset", preset, "enable wcache@.socket\ndisable *\n", 0o644,
			[]string{"/etc/systemd/user/sockets.target.wants/wcache@0.socket"}, ""},
		{"helper", helper, "#!/bin/sh\necho \"$@\" >>" + calls + "\n", 0o755, nil,
			"install-user-units wcache@.socket\nremove-user-units wcache@.socket\n"},
	}
	before := files(t)
	for _, test := range tests {
		if test.file != "" {
			if err := os.MkdirAll(filepath.Dir(test.file), 0o755); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(test.file, []byte(test.text), test.mode); err != nil {
				t.Fatal(err)
			}
		}
		rpm.install(t, pkg(t, "old", "rpm"))
		rpm.upgrade(t, pkg(t, "new", "rpm"))
		if diff := cmp.Diff(test.enabled, enabled(t)); diff != "" {
			t.Errorf("%s: enabled (-want +got):\n%s", test.name, diff)
		}
		rpm.remove(t)
		if left := enabled(t); left != nil {
			t.Errorf("%s: left enabled: %v", test.name, left)
		}
		got, _ := os.ReadFile(calls) // none: not called
		if diff := cmp.Diff(test.calls, string(got)); diff != "" {
			t.Errorf("%s: calls of the helper (-want +got):\n%s", test.name, diff)
		}
		if test.file != "" {
			if err := os.Remove(test.file); err != nil {
				t.Fatal(err)
			}
		}
	}
	left := without(without(files(t), before), []string{"drwxr-xr-x /etc/systemd/user-preset", "drwxr-xr-x /etc/systemd/user/sockets.target.wants"})
	if len(left) > 0 {
		t.Errorf("left behind: %v", left)
	}
}

// needRPM also makes the folder that every rpm system has from its package "filesystem".
func needRPM(t *testing.T) {
	t.Helper()
	if _, err := exec.LookPath("rpm"); err != nil {
		t.Skip("no rpm on this system")
	}
	if err := os.MkdirAll("/usr/share/licenses", 0o755); err != nil {
		t.Fatal(err)
	}
}

// pkg returns the path of a package in a folder of the stage, "old" or "new".
func pkg(t *testing.T, age, kind string) string {
	t.Helper()
	found, err := filepath.Glob(filepath.Join(stage(), age, "*."+kind))
	if err != nil || len(found) != 1 {
		t.Fatalf("packages in %s: %v, %v", age, found, err)
	}
	return found[0]
}

// With only the package: after a user enables it, an engine gets an answer, its weights
// outlive an upgrade, and the removal leaves nothing.
func lifecycle(t *testing.T, m manager) {
	secondUser(t)
	before := files(t)
	homes := append(below(t, ada.home()), below(t, bob.home())...)

	m.install(t, pkg(t, "old", m.name))
	for _, u := range []user{ada, bob} {
		if got := u.run("systemctl", "--user", "is-enabled", "wcache@0.socket", socket); got != "disabled\ndisabled" {
			t.Errorf("%s, after the installation: %s", u.name, got)
		}
		if got := u.systemctl(t, "list-units", "--all", "--no-legend", "wcache*"); got != "" {
			t.Errorf("%s, after the installation:\n%s", u.name, got)
		}
	}
	if left := enabled(t); left != nil {
		t.Errorf("enabled for all by the installation: %v", left)
	}
	// This system has no library of NVIDIA; with -z now the program would end here.
	if got, want := ada.must(t, "wcache", "version"), "client 0.0.9\nwcache: wcache@0 is not running"; got != want {
		t.Errorf("version: %q, not %q", got, want)
	}

	for _, u := range []user{ada, bob} {
		u.configure(t)
		u.systemctl(t, "enable", "--now", socket)
	}
	engine := ada.attach(t)
	if out, err := bob.engine().CombinedOutput(); err != nil {
		t.Fatalf("bob's engine: %v\n%s", err, out)
	}
	was := ada.status(t)
	if was.Version.Daemon != "0.0.9" || len(was.Entries) != 1 || was.Counts.Loads != 1 || len(was.Entries[0].Engines) != 1 {
		t.Fatalf("before the upgrade: %+v", was)
	}

	m.upgrade(t, pkg(t, "new", m.name))
	is := ada.status(t)
	if is.PID != was.PID || is.Version.Daemon != "0.0.9" || is.Version.Client == "0.0.9" {
		t.Errorf("the upgrade restarted the daemon, or did nothing: process %d, %+v", is.PID, is.Version)
	}
	if diff := cmp.Diff(was.Entries, is.Entries); diff != "" {
		t.Errorf("the upgrade changed what is held (-before +after):\n%s", diff)
	}
	if got := ada.property(t, "NeedDaemonReload", service); got != "no" {
		t.Error("the user's manager still has the old units")
	}
	// The restart that "wcache version" advises keeps the weights, and the engine doesn't
	// notice it.
	if got := ada.run("wcache", "--gpu", "host", "version"); !strings.Contains(got, "systemctl --user restart "+service) {
		t.Errorf("no hint from version:\n%s", got)
	}
	ada.systemctl(t, "restart", service)
	if out, err := ada.engine().CombinedOutput(); err != nil {
		t.Errorf("after the restart: %v\n%s", err, out)
	}
	testmain.Eventually(t, "the second engine's end to be seen", func() bool {
		is = ada.status(t)
		return len(is.Entries) == 1 && len(is.Entries[0].Engines) == 1
	})
	if is.PID == was.PID || is.Version.Daemon != is.Version.Client || is.Counts.Loads != 0 || is.Counts.Hits != 1 {
		t.Errorf("after the restart: process %d, %+v, %+v", is.PID, is.Version, is.Counts)
	}
	if !is.Entries[0].Loaded.Equal(was.Entries[0].Loaded) || is.Entries[0].Engines[0].PID != engine.cmd.Process.Pid {
		t.Errorf("after the restart: %+v\nbefore: %+v", is.Entries[0], was.Entries[0])
	}
	select {
	case <-engine.ended:
		t.Error("the engine lost its daemon")
	default:
	}

	// The removal also disables what the administrator enabled.
	root(t, "systemctl", "--global", "enable", socket)

	m.remove(t)
	if left := processes(t); left != nil {
		t.Errorf("running after the removal: %v", left)
	}
	for _, u := range []user{ada, bob} {
		if got := u.systemctl(t, "list-units", "--all", "--no-legend", "--state=active", "wcache*"); got != "" {
			t.Errorf("%s, after the removal:\n%s", u.name, got)
		}
	}
	if m.purge != nil {
		kept := append(m.kept, "Lrwxrwxrwx /etc/systemd/user/sockets.target.wants/"+socket+" /usr/lib/systemd/user/wcache@.socket")
		left := without(without(files(t), before), []string{"drwxr-xr-x /etc/systemd/user/sockets.target.wants"})
		if diff := cmp.Diff(sorted(kept), sorted(left)); diff != "" {
			t.Errorf("kept by the removal (-want +got):\n%s", diff)
		}
		m.purge(t)
	}
	if diff := cmp.Diff(before, files(t)); diff != "" {
		t.Errorf("left behind (-before +after):\n%s", diff)
	}
	// Files of users and of their daemons stay; links of enabled units go with the
	// package.
	left := without(append(below(t, ada.home()), below(t, bob.home())...), homes)
	left = slices.DeleteFunc(left, func(path string) bool {
		return strings.HasSuffix(path, "/.config/wcache/wcache.toml") || strings.Contains(path, "/.local/state/wcache/")
	})
	if len(left) > 0 {
		t.Errorf("left in home folders: %v", left)
	}
	if got := ada.run("systemctl", "--user", "is-system-running"); got != "running" {
		t.Errorf("the user's manager is %s:\n%s", got, ada.run("systemctl", "--user", "--failed"))
	}
	for _, dir := range []string{".config/wcache", ".local/state/wcache"} {
		if err := os.RemoveAll(filepath.Join(ada.home(), dir)); err != nil {
			t.Fatal(err)
		}
	}
}

// enabled lists the units of the package that are enabled for all users.
func enabled(t *testing.T) []string {
	t.Helper()
	links, err := filepath.Glob("/etc/systemd/user/*.wants/wcache*")
	if err != nil {
		t.Fatal(err)
	}
	return links
}

func sorted(list []string) []string {
	list = slices.Clone(list)
	slices.Sort(list)
	return list
}
