// SPDX-FileCopyrightText: The wcache authors
// SPDX-License-Identifier: MIT

// Package doctor looks for what keeps an instance from working, or from keeping
// its weights, and says what mends it. It changes nothing and starts nothing.
package doctor

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"

	"github.com/wcache/wcache/config"
)

// State is how a check ended.
type State string

// The states: Warn is for what works now and loses weights or time later.
const (
	OK   State = "ok"
	Warn State = "warn"
	Fail State = "fail"
)

// Result is a check's end, for people.
type Result struct {
	State State  `json:"state"`
	Check string `json:"check"`
	Text  string `json:"text"`
	Mend  string `json:"mend,omitempty"` // a command or an edit, "" where all is well
}

// Machine is where the checks look. All fields but Root are needed.
type Machine struct {
	Instance string
	Socket   string // the instance's own
	UID      int
	User     string
	Env      func(string) string
	Config   []string // configuration files, in the order in which they are read
	Root     string   // holds proc and var, "" is /
	// Systemctl runs "systemctl --user" and gives what it printed.
	Systemctl func(ctx context.Context, args ...string) (string, error)
}

// Run makes all checks, in the order in which one depends on another.
func Run(ctx context.Context, m Machine) []Result {
	results := []Result{m.configuration(), m.runtimeDir(), m.manager(ctx)}
	if results[2].State == OK {
		results = append(results, m.socketUnit(ctx), m.service(ctx), m.store(ctx))
	}
	return append(results, m.socketFile(), m.lingering(), m.ptrace())
}

// Failed counts the results of a state.
func Failed(list []Result, s State) int {
	n := 0
	for _, r := range list {
		if r.State == s {
			n++
		}
	}
	return n
}

func result(check string, s State, mend, format string, args ...any) Result {
	return Result{State: s, Check: check, Text: fmt.Sprintf(format, args...), Mend: mend}
}

func (m *Machine) configuration() Result {
	const check = "configuration"
	if _, err := config.Load(m.Config, m.Instance, m.Env); err != nil {
		return result(check, Fail, "edit the file; systemctl --user reload wcache@"+m.Instance+".service", "%v", err)
	}
	var found []string
	for _, p := range m.Config {
		if _, err := os.Stat(p); err == nil {
			found = append(found, p)
		}
	}
	if len(found) == 0 {
		return result(check, OK, "", "no file, all defaults")
	}
	return result(check, OK, "", "%s", strings.Join(found, ", "))
}

func (m *Machine) runtimeDir() Result {
	const check = "runtime directory"
	dir := m.Env("XDG_RUNTIME_DIR")
	if dir == "" {
		dir = fmt.Sprintf("/run/user/%d", m.UID)
		if _, err := os.Stat(dir); err != nil {
			return result(check, Fail, "log in as this user (ssh, not su), or: loginctl enable-linger", "XDG_RUNTIME_DIR is not set and %s isn't there", dir)
		}
		return result(check, Warn, "export XDG_RUNTIME_DIR="+dir, "XDG_RUNTIME_DIR is not set; %s is there", dir)
	}
	if fault := private(dir, m.UID); fault != "" {
		return result(check, Fail, "log in anew, or: loginctl enable-linger", "%s %s", dir, fault)
	}
	return result(check, OK, "", "%s", dir)
}

// private says what is wrong with a directory that only this user may enter.
func private(dir string, uid int) string {
	st, err := os.Lstat(dir)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return "isn't there"
	case err != nil:
		return err.Error()
	case !st.IsDir():
		return "is no directory, and engines follow no links"
	case int(st.Sys().(*syscall.Stat_t).Uid) != uid:
		return "is another user's"
	case st.Mode().Perm()&0o077 != 0:
		return fmt.Sprintf("has mode %04o and lets others in", st.Mode().Perm())
	}
	return ""
}

func (m *Machine) manager(ctx context.Context) Result {
	out, err := m.Systemctl(ctx, "show", "-P", "Version")
	if err != nil {
		return result("user manager", Fail, "loginctl enable-linger, or run wcache serve --listen PATH without it", "can't be reached: %v", err)
	}
	return result("user manager", OK, "", "systemd %s", out)
}

// show gives properties of a unit by name.
func (m *Machine) show(ctx context.Context, unit string, names ...string) (map[string]string, error) {
	out, err := m.Systemctl(ctx, "show", "-p", strings.Join(names, ","), unit)
	if err != nil {
		return nil, err
	}
	props := make(map[string]string)
	for line := range strings.Lines(out) {
		if name, value, ok := strings.Cut(strings.TrimSpace(line), "="); ok {
			props[name] = value
		}
	}
	return props, nil
}

func (m *Machine) socketUnit(ctx context.Context) Result {
	const check = "socket unit"
	unit := "wcache@" + m.Instance + ".socket"
	p, err := m.show(ctx, unit, "LoadState", "UnitFileState", "ActiveState", "Result")
	enable := "systemctl --user enable --now " + unit
	switch {
	case err != nil:
		return result(check, Fail, "", "%v", err)
	case p["LoadState"] != "loaded":
		return result(check, Fail, "install wcache's package, or copy systemd/ to ~/.config/systemd/user; systemctl --user daemon-reload", "%s is %s", unit, p["LoadState"])
	case p["ActiveState"] == "failed":
		return result(check, Fail, "systemctl --user reset-failed 'wcache*'; systemctl --user restart "+unit, "%s has failed: %s", unit, p["Result"])
	case p["ActiveState"] != "active":
		return result(check, Fail, enable, "%s is %s", unit, p["ActiveState"])
	case p["UnitFileState"] != "enabled":
		return result(check, Warn, enable, "%s listens, and is %s: not after the next login", unit, p["UnitFileState"])
	}
	return result(check, OK, "", "%s is enabled and listening", unit)
}

func (m *Machine) service(ctx context.Context) Result {
	const check = "service"
	unit := "wcache@" + m.Instance + ".service"
	p, err := m.show(ctx, unit, "ActiveState", "Result", "StatusText", "NRestarts")
	switch {
	case err != nil:
		return result(check, Fail, "", "%v", err)
	case p["ActiveState"] == "failed":
		return result(check, Fail, "journalctl --user -u "+unit+"; systemctl --user reset-failed 'wcache*'; systemctl --user restart wcache@"+m.Instance+".socket", "%s has failed: %s", unit, p["Result"])
	case p["NRestarts"] != "0" && p["NRestarts"] != "":
		return result(check, Warn, "journalctl --user -u "+unit, "%s is %s and was restarted %s times after it died", unit, p["ActiveState"], p["NRestarts"])
	case p["StatusText"] != "":
		return result(check, OK, "", "%s: %s", p["ActiveState"], p["StatusText"])
	}
	return result(check, OK, "", "%s; the first connection starts it", p["ActiveState"])
}

// leastStored is two descriptors for each of a few models and one for each of a
// few dozen engines.
const leastStored = 64

func (m *Machine) store(ctx context.Context) Result {
	const check = "fd store"
	unit := "wcache@" + m.Instance + ".service"
	p, err := m.show(ctx, unit, "FileDescriptorStoreMax", "LimitNOFILESoft")
	if err != nil {
		return result(check, Fail, "", "%v", err)
	}
	most, err := strconv.Atoi(p["FileDescriptorStoreMax"])
	edit := "systemctl --user edit wcache@.service"
	if err != nil || most < leastStored {
		return result(check, Fail, edit+": [Service] FileDescriptorStoreMax=2048", "it keeps %q descriptors: weights would not outlive the daemon", p["FileDescriptorStoreMax"])
	}
	if soft, err := strconv.Atoi(p["LimitNOFILESoft"]); err == nil && soft <= most {
		return result(check, Warn, edit+": [Service] LimitNOFILE=8192:524288", "it keeps %d descriptors, and the service starts with at most %d open files", most, soft)
	}
	return result(check, OK, "", "it keeps up to %d descriptors", most)
}

func (m *Machine) socketFile() Result {
	const check = "socket"
	enable := "systemctl --user enable --now wcache@" + m.Instance + ".socket"
	st, err := os.Lstat(m.Socket)
	if err != nil {
		return result(check, Fail, enable, "%s isn't there", m.Socket)
	}
	if fault := private(filepath.Dir(m.Socket), m.UID); fault != "" {
		return result(check, Fail, "chmod 700 "+filepath.Dir(m.Socket), "%s %s", filepath.Dir(m.Socket), fault)
	}
	restart := "systemctl --user restart wcache@" + m.Instance + ".socket"
	switch {
	case st.Mode().Type() != fs.ModeSocket:
		return result(check, Fail, "remove it; "+restart, "%s is no socket", m.Socket)
	case int(st.Sys().(*syscall.Stat_t).Uid) != m.UID:
		return result(check, Fail, "have it removed; "+restart, "%s is another user's", m.Socket)
	case st.Mode().Perm()&0o077 != 0:
		return result(check, Fail, restart, "%s has mode %04o and lets others in", m.Socket, st.Mode().Perm())
	}
	return result(check, OK, "", "%s, mode %04o", m.Socket, st.Mode().Perm())
}

// lingering looks for the mark that loginctl makes.
func (m *Machine) lingering() Result {
	if _, err := os.Stat(filepath.Join("/", m.Root, "var/lib/systemd/linger", m.User)); err != nil {
		return result("lingering", Warn, "loginctl enable-linger", "off: the weights go at your last logout")
	}
	return result("lingering", OK, "", "on: the weights stay when you log out")
}

// ptrace looks at Yama: from 2 on no process of this user may take descriptors
// of another (Documentation/admin-guide/LSM/Yama.rst).
func (m *Machine) ptrace() Result {
	b, err := os.ReadFile(filepath.Join("/", m.Root, "proc/sys/kernel/yama/ptrace_scope"))
	scope := strings.TrimSpace(string(b))
	if err == nil && scope != "0" && scope != "1" {
		return result("ptrace scope", Fail, "sysctl kernel.yama.ptrace_scope=1", "%s: engines can't take handles from the daemon", scope)
	}
	return result("ptrace scope", OK, "", "engines can take handles from the daemon")
}
