// SPDX-FileCopyrightText: The wcache authors
// SPDX-License-Identifier: MIT

package doctor

import (
	"errors"
	"fmt"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/wcache/wcache/config"
)

// reach checks what an engine needs to take descriptors out of the daemon: what ptrace(2)
// allows, and what daemon/peer.go checks with each request.
func (m *Machine) reach(d *Daemon, s service, handles string) []Result {
	if handles == m.without() {
		return []Result{m.seen(d, handles), m.userNamespace(s, handles, false), result("handles", OK, "", "with handles = %q engines take nothing from the daemon's process", handles)}
	}
	take, taken := m.take(d)
	confinement := m.confinement(d, taken)
	if confinement.State == Fail {
		take.Mend = confinement.Mend + m.otherwise()
	}
	return []Result{m.ptrace(), m.seen(d, handles), m.userNamespace(s, handles, taken), take, confinement}
}

// without is the value of handles with which engines don't reach into the daemon's
// process.
func (m *Machine) without() string {
	if m.Instance == Host {
		return config.HandlesValue
	}
	return config.HandlesLegacy
}

// otherwise is the advice for engines that can't reach the daemon.
func (m *Machine) otherwise() string {
	how := fmt.Sprintf(", or set handles = %q in wcache.toml (systemctl --user reload %s)", m.without(), m.unitName("service"))
	if m.without() == config.HandlesLegacy {
		how += ", which loads models again and frees them whenever the daemon ends"
	}
	return how
}

// ptrace checks Yama: from 2 on no process of this user may take descriptors from another
// (Documentation/admin-guide/LSM/Yama.rst). Under 1 the daemon allows it by prctl.
func (m *Machine) ptrace() Result {
	scope := m.read("proc/sys/kernel/yama/ptrace_scope")
	switch scope {
	case "", "0", "1":
		return result("ptrace scope", OK, "", "engines can take handles from the daemon")
	}
	//diag doctor SCOPE
	// The setting of Yama, a security module of the kernel, forbids a process to take descriptors
	// of another. Set `kernel.yama.ptrace_scope` to 0 or 1.
	return result("ptrace scope", Fail, "sysctl kernel.yama.ptrace_scope=1 as root (3 can't be lowered without a restart of the machine, which frees what all instances hold)"+m.otherwise(), "%s: engines can't take handles from the daemon", scope).as(PtraceForbidden)
}

// container names the container in which this process runs, "" if none is known.
func (m *Machine) container() string {
	for file, name := range map[string]string{"run/.containerenv": "Podman", ".dockerenv": "Docker"} {
		if m.exists(file) {
			return name
		}
	}
	return m.read("run/systemd/container") // systemd-nspawn and others
}

// seen checks whether the daemon's pid is the same here and in its own namespace. An engine
// gets a pid and a descriptor number, and opens that process. Handles without it work if
// the daemon sees the engine's process, as a host sees a container's.
func (m *Machine) seen(d *Daemon, handles string) Result {
	const check = "pid namespace"
	const mend = "start the container with --pid=host (Podman, Docker) or hostPID: true (Kubernetes)"
	switch in := m.container(); {
	case d != nil && d.Peer == 0 && handles == m.without():
		return result(check, OK, "", "the daemon, process %d, is in another pid namespace, which handles = %q allows", d.PID, handles)
	case d != nil && d.Peer != d.PID:
		//diag doctor NUMBER
		// The daemon has another pid namespace than this command, so an engine here would look for
		// its memory in the wrong process. Start the container with `--pid=host`.
		return result(check, Fail, mend+m.otherwise(), "the daemon, process %d, is in another pid namespace: engines started here can't take its handles", d.PID).as(PidNamespace)
	case d == nil && in != "":
		//diag doctor KIND
		// A container has a pid namespace of its own. Start it with `--pid=host` or, in Kubernetes,
		// `hostPID: true`; see Containers in wcache@.service(8).
		return result(check, Warn, mend+", and mount the folder of "+m.Socket, "this is a container of %s: engines here can use a daemon outside only if both are in one pid namespace", in).as(Container)
	case d == nil:
		return result(check, OK, "", "no container; engines in one need --pid=host")
	}
	return result(check, OK, "", "the daemon, process %d, can be seen from here", d.PID)
}

// userNamespace checks whether this is the machine's own user namespace, in which the
// host's daemons run. In another one engines can't take their descriptors, even if it
// gives users the same numbers. shared tells that a descriptor could be taken.
func (m *Machine) userNamespace(s service, handles string, shared bool) Result {
	const check = "user namespace"
	const mend = "run the daemon in this user namespace too, as in one pod; or start the container as root without a user namespace (podman --userns=host, docker without userns-remap)"
	const every = "4294967295" // /proc/self/uid_map of the first namespace
	part := strings.Fields(m.read("proc/self/uid_map"))
	switch {
	case shared:
		return result(check, OK, "", "the daemon's, too")
	case s.props["PrivateUsers"] == "yes" && handles != m.without():
		//diag doctor
		// An option of the service such as `PrivateUsers=` has given it a user namespace. Remove
		// the option from the drop-in.
		return result(check, Fail, edit+"PrivateUsers=no, and without the sandbox options that imply it; "+m.renewal(s)+m.otherwise(), "the service has a user namespace of its own: engines can't take handles from it").as(UserNamespaceService)
	case len(part) == 3 && part[0] == "0" && part[1] == "0" && part[2] == every || len(part) == 0:
		return result(check, OK, "", "the machine's own")
	}
	for i := 0; i+2 < len(part); i += 3 {
		inside, outside, n := number(part[i]), number(part[i+1]), number(part[i+2])
		switch at := m.UID - inside; {
		case at < 0 || at >= n:
		case outside+at != m.UID:
			//diag doctor NUMBER NUMBER
			// The user namespace of this container maps the user to another one, whom the daemon
			// refuses. Start the container with `--userns=host`, or run the daemon inside it.
			return result(check, Warn, mend, "not the machine's own: user %d here is user %d outside, and a daemon there refuses that user", m.UID, outside+at).as(UserNamespace)
		case handles == m.without():
			return result(check, OK, "", "not the machine's own, which handles = %q allows", handles)
		default:
			//diag doctor
			// This container has a user namespace of its own, and the kernel lets no process take
			// descriptors from another namespace, even where both give users the same numbers.
			// Start the container without it.
			return result(check, Warn, mend+m.otherwise(), "not the machine's own: a daemon outside refuses engines that run here").as(UserNamespace)
		}
	}
	//diag doctor NUMBER
	// The user namespace of this container does not map the user. Start the container with
	// `--userns=host`, or run the daemon inside it.
	return result(check, Fail, mend, "not the machine's own: user %d has no number outside", m.UID).as(UserNamespaceUnmapped)
}

// confinement checks whether SELinux or AppArmor may forbid an engine that is started here
// to reach the daemon. A container's profile, such as docker-default or container_t, lets
// its processes look only into processes of the same profile.
func (m *Machine) confinement(d *Daemon, taken bool) Result {
	const check = "confinement"
	here := contextOf(m.Root, "self")
	if d == nil || d.Peer != d.PID {
		if here == "" {
			return result(check, OK, "", "none by SELinux or AppArmor")
		}
		//diag doctor PROFILE
		// SELinux or AppArmor confines this process, as in a container, and forbids to look into
		// processes outside. Start the container without the profile; see Containers in
		// wcache@.service(8).
		return result(check, Warn, unconfine(here, ""), "%s: this may keep engines here from the handles of a daemon outside", here).as(Confined)
	}
	there := contextOf(m.Root, strconv.Itoa(d.PID))
	switch {
	case here == there && here == "":
		return result(check, OK, "", "none by SELinux or AppArmor")
	case here == there:
		return result(check, OK, "", "%s, as the daemon", here)
	case taken:
		return result(check, OK, "", "%s, and the daemon %s, which allows taking handles", named(here), named(there))
	}
	//diag doctor PROFILE PROFILE
	// A container's security profile lets its processes look only into those of the same profile.
	// Start both with the same profile; see Containers in wcache@.service(8).
	return result(check, Fail, unconfine(here, there), "engines here run as %s and the daemon as %s: they can't take its handles", named(here), named(there)).as(ConfinedApart)
}

// named describes a security context.
func named(context string) string {
	if context == "" {
		return "unconfined"
	}
	return context
}

// unconfine is the advice that lets a container's processes reach processes outside.
// SELinux's contexts have colons, AppArmor's don't.
func unconfine(here, there string) string {
	how := "--security-opt apparmor=unconfined (Docker, Podman), or a profile that allows ptrace between engines and the daemon"
	if strings.Contains(here+there, ":") {
		how = "--security-opt label=disable (Podman, Docker), or a policy that lets engines reach the daemon"
	}
	who := "start the engine's container with "
	if here == "" {
		who = "start the daemon's container again, which frees what it holds, with "
	}
	return who + how + "; see wcache@.service(8), Containers"
}

// take takes a descriptor as an engine does, if a daemon runs: only that reveals a seccomp
// profile.
func (m *Machine) take(d *Daemon) (r Result, taken bool) {
	const check = "handles"
	if d == nil || d.Peer != d.PID {
		return result(check, OK, "", "not tried: no daemon answers that can be seen from here"), false
	}
	err := m.Take(d.PID)
	if err == nil {
		return result(check, OK, "", "a descriptor could be taken from the daemon, as engines do"), true
	}
	mend := "run engines and the daemon in one user namespace, with the same group and the same capabilities; in a container with a seccomp profile that allows pidfd_getfd (docker run --cap-add SYS_PTRACE)"
	if errors.Is(err, unix.ENOSYS) {
		mend = "use Linux 5.6 or later, and in a container a seccomp profile that allows pidfd_getfd (docker run --cap-add SYS_PTRACE)"
	}
	//diag doctor REASON
	// `wcache doctor` tried to take a descriptor as engines do, and the kernel refused. The daemon
	// has another group, more capabilities or another user namespace, or a seccomp profile forbids
	// pidfd_getfd(2); change that one.
	return result(check, Fail, mend+m.otherwise(), "none can be taken from the daemon: %v", err).as(DescriptorNotTaken), false
}
