// SPDX-FileCopyrightText: The wcache authors
// SPDX-License-Identifier: MIT

package doctor

import (
	"context"
	"os"
	"strconv"
	"strings"
)

// lingering looks for the mark that loginctl makes.
func (m *Machine) lingering() Result {
	if !m.exists("var/lib/systemd/linger", m.User) {
		return result("lingering", Warn, "loginctl enable-linger", "off: the weights go at your last logout")
	}
	return result("lingering", OK, "", "on: the weights stay when you log out")
}

// ptrace looks at Yama: from 2 on no process of this user may take descriptors
// of another (Documentation/admin-guide/LSM/Yama.rst). Under 1 the daemon allows
// it by prctl.
func (m *Machine) ptrace() Result {
	scope := m.read("proc/sys/kernel/yama/ptrace_scope")
	switch scope {
	case "", "0", "1":
		return result("ptrace scope", OK, "", "engines can take handles from the daemon")
	}
	return result("ptrace scope", Fail, "sysctl kernel.yama.ptrace_scope=1; 3 lasts until the machine is restarted", "%s: engines can't take handles from the daemon", scope)
}

// container names the container that this is run in, "" for none that is known.
func (m *Machine) container() string {
	for file, name := range map[string]string{"run/.containerenv": "podman", ".dockerenv": "Docker"} {
		if m.exists(file) {
			return name
		}
	}
	return m.read("run/systemd/container") // systemd-nspawn and others
}

// pidNamespace looks whether the daemon's number is the same here and there. An
// engine is told a number and a descriptor, and opens that process.
func (m *Machine) pidNamespace(d *Daemon) Result {
	const check = "pid namespace"
	const mend = "start the container with --pid=host (podman, docker) or hostPID: true (Kubernetes)"
	switch in := m.container(); {
	case d != nil && d.Peer != d.PID:
		return result(check, Fail, mend, "the daemon, process %d, is in another one: engines started here can't take its handles", d.PID)
	case d == nil && in != "":
		return result(check, Warn, mend+", and pass the folder of "+m.Socket, "this is a container of %s: engines here reach a daemon outside only in its pid namespace", in)
	case d == nil:
		return result(check, OK, "", "no container; engines in one need --pid=host")
	}
	return result(check, OK, "", "the daemon, process %d, can be seen from here", d.PID)
}

// userNamespace looks whether numbers of users are the same here and for the
// daemon, who serves its own user only.
func (m *Machine) userNamespace(s service) Result {
	const check = "user namespace"
	if s.props["PrivateUsers"] == "yes" {
		return result(check, Fail, edit+"PrivateUsers=no, and without the sandbox options that imply it", "the service has one of its own: engines can't take handles from it")
	}
	const every = "4294967295" // /proc/self/uid_map of the first namespace
	part := strings.Fields(m.read("proc/self/uid_map"))
	if len(part) == 3 && part[0] == "0" && part[1] == "0" && part[2] == every || len(part) == 0 {
		return result(check, OK, "", "users have the same numbers as everywhere")
	}
	for i := 0; i+2 < len(part); i += 3 {
		inside, outside, n := number(part[i]), number(part[i+1]), number(part[i+2])
		if at := m.UID - inside; at >= 0 && at < n {
			if outside+at == m.UID {
				return result(check, OK, "", "user %d is user %d outside, too", m.UID, m.UID)
			}
			return result(check, Warn, "podman run --userns=keep-id, or docker run --user with the daemon's uid and no userns-remap", "user %d is user %d outside: a daemon of another user there refuses it", m.UID, outside+at)
		}
	}
	return result(check, Fail, "podman run --userns=keep-id", "user %d is nobody outside", m.UID)
}

func number(s string) int {
	n, _ := strconv.Atoi(s) // the kernel writes digits
	return n
}

// meminfo is an amount of /proc/meminfo, in bytes.
func (m *Machine) meminfo(name string) int64 {
	for line := range strings.Lines(m.read("proc/meminfo")) {
		if key, value, _ := strings.Cut(line, ":"); key == name {
			return int64(number(strings.TrimSuffix(strings.TrimSpace(value), " kB"))) << 10
		}
	}
	return 0
}

// room holds the largest model against the memory that it would be loaded into.
// What is held can make room, as far as no engine uses it.
func (m *Machine) room(ctx context.Context, free, total int64, d *Daemon) Result {
	const check = "free memory"
	name, bytes, err := m.Largest(ctx)
	var held int64
	if d != nil {
		held = d.Held
	}
	switch {
	case err != nil:
		return result(check, Warn, "see whether the folders of roots in wcache.toml answer: ls", "models could not be looked for: %v", err)
	case name == "":
		return result(check, OK, "", "%s; no model is known yet", amount(free))
	case bytes > total:
		return result(check, Warn, "--tensor-parallel-size shares it out to several GPUs", "%s takes %s, more than there is at all: %s", name, amount(bytes), amount(total))
	case bytes > free+held:
		return result(check, Warn, "wcache --gpu "+m.Instance+" status shows who uses it", "%s, the largest model that is known, takes %s, and %s are free", name, amount(bytes), amount(free))
	case bytes > free:
		return result(check, OK, "", "%s; %s takes %s, for which what is held would make room", amount(free), name, amount(bytes))
	}
	return result(check, OK, "", "%s; %s, the largest model that is known, takes %s", amount(free), name, amount(bytes))
}

// tempDir looks whether the folder for temporary files, in which engines look by
// default, is the one in which the daemon's sockets are.
func (m *Machine) tempDir(s service) Result {
	const check = "temporary files"
	pid := s.pid()
	if pid == 0 {
		return result(check, OK, "", "not compared with the service's: it doesn't run")
	}
	here, err := os.Stat(m.path("tmp"))
	there, err2 := os.Stat(m.path("proc", strconv.Itoa(pid), "root/tmp"))
	switch {
	case err != nil:
		return result(check, Fail, "mkdir -m 1777 /tmp", "%v", err)
	case err2 == nil && !os.SameFile(here, there):
		return result(check, Warn, `give engines --model-loader-extra-config '{"socket_dir": "`+socketDir(m.Socket)+`"}'`, "/tmp is another one here than for the service, as with PrivateTmp=: engines look there for its sockets in vain")
	}
	return result(check, OK, "", "/tmp is the service's, too")
}

func socketDir(socket string) string { return socket[:strings.LastIndexByte(socket, '/')] }
