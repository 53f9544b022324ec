// SPDX-FileCopyrightText: The wcache authors
// SPDX-License-Identifier: MIT

package doctor

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/wcache/wcache/systemd/generator"
)

func (m *Machine) runtimeDir() Result {
	const check = "runtime directory"
	dir := m.Env("XDG_RUNTIME_DIR")
	if dir == "" {
		dir = fmt.Sprintf("/run/user/%d", m.UID)
		if !m.exists(dir) {
			//diag doctor DIRECTORY
			// The user is not logged in, as after su(1), and does not linger, so that no service of
			// the user runs. Log in, or run `loginctl enable-linger`.
			return result(check, Fail, "log in as this user (ssh or machinectl shell, not su), or: loginctl enable-linger; in a container mount the folder of "+m.Socket, "XDG_RUNTIME_DIR is not set and %s isn't there", dir).as(RuntimeDirMissing)
		}
		//diag doctor DIRECTORY
		// Programs that read the variable look for sockets elsewhere. Set it to the directory of
		// the message.
		return result(check, Warn, "export XDG_RUNTIME_DIR="+dir, "XDG_RUNTIME_DIR is not set; %s is there", dir).as(RuntimeDirUnset)
	}
	if c, fault, mend := private(dir, m.UID, folder{RuntimeDirMissing, RuntimeDirUnsafe, RuntimeDirClosed}); fault != "" {
		return result(check, Fail, mend, "%s %s", dir, fault).as(c)
	}
	return result(check, OK, "", "%s", dir)
}

// folder are the codes of a directory that is not there, that others could change, and that
// its own user can't use.
type folder struct{ missing, unsafe, closed Code }

// private says what is wrong with a directory that only this user may enter, and what
// mends it.
func private(dir string, uid int, f folder) (c Code, fault, mend string) {
	st, err := os.Lstat(dir)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return f.missing, "isn't there", "log in as this user, or: loginctl enable-linger"
	case err != nil:
		return f.closed, err.Error(), "namei -l " + dir + " shows who may enter the folders above it"
	case !st.IsDir():
		return f.unsafe, "is no directory, and engines follow no links", "remove it, or name what it leads to"
	case owner(st) != uid:
		return f.unsafe, whose(owner(st)), "run this as its user (su keeps the variables of another user); in a container as its user and its group"
	case st.Mode().Perm()&0o077 != 0:
		return f.unsafe, fmt.Sprintf("has mode %04o and lets others in", st.Mode().Perm()), "chmod 700 " + dir
	case st.Mode().Perm()&0o700 != 0o700:
		return f.closed, fmt.Sprintf("has mode %04o, which keeps its own user out", st.Mode().Perm()), "chmod 700 " + dir
	}
	return "", "", ""
}

func owner(st fs.FileInfo) int { return int(st.Sys().(*syscall.Stat_t).Uid) } // what os gives on Linux

// whose says that a file belongs to another user.
func whose(uid int) string {
	const unmapped = 65534 // overflowuid: the user has no number in this namespace
	if uid == unmapped {
		return "belongs to a user who has no number here, as in a container with other uids"
	}
	return fmt.Sprintf("is user %d's", uid)
}

func (m *Machine) socketFile(s service) Result {
	const check = "socket"
	dir := filepath.Dir(m.Socket)
	if _, err := os.Lstat(dir); err == nil { // else its socket isn't there
		if c, fault, mend := private(dir, m.UID, folder{SocketMissing, SocketDirUnsafe, SocketDirClosed}); fault != "" {
			return result(check, Fail, mend, "%s %s", dir, fault).as(c)
		}
	}
	st, err := os.Lstat(m.Socket)
	switch {
	case err != nil && s.listens:
		//diag doctor SOCKET
		// The file of the socket was removed, and the service manager does not notice. Restart the
		// socket unit.
		return result(check, Fail, m.relisten(s), "%s was removed: the socket unit listens on it, and no engine can connect", m.Socket).as(SocketRemoved)
	case err != nil && s.byHand():
		//diag doctor SOCKET NUMBER
		// The file of the socket was removed, and the daemon that was started by hand makes it
		// again within seconds. Wait; if it stays so, start that daemon again.
		return result(check, Fail, "wait some seconds; else "+m.renewal(s), "%s was removed; process %d, which was started by hand, makes it again", m.Socket, s.answers).as(SocketRemoved)
	case err != nil:
		//diag doctor SOCKET
		// The instance's socket does not exist, as its socket unit is not enabled or was stopped.
		// Run `systemctl --user enable --now` with the unit's name.
		return result(check, Fail, m.enable(), "%s isn't there", m.Socket).as(SocketMissing)
	case st.Mode().Type() != fs.ModeSocket:
		//diag doctor SOCKET
		// Another kind of file has the socket's path. Remove the file and restart the socket unit.
		return result(check, Fail, "remove the file; "+m.relisten(s), "%s is not a socket", m.Socket).as(SocketNotASocket)
	case owner(st) != m.UID:
		return result(check, Fail, "have that user remove it; "+m.relisten(s), "%s %s", m.Socket, whose(owner(st))).as(SocketForeign)
	case st.Mode().Perm()&0o077 != 0:
		//diag doctor SOCKET MODE
		// The socket or its folder lets other users ask for weights, so engines refuse it. Run the
		// `chmod` of the advice.
		return result(check, Fail, "chmod 600 "+m.Socket, "%s has mode %04o and lets others in", m.Socket, st.Mode().Perm()).as(SocketModeOpen)
	case st.Mode().Perm()&0o600 != 0o600:
		return result(check, Fail, "chmod 600 "+m.Socket, "%s has mode %04o, which keeps its own user out", m.Socket, st.Mode().Perm()).as(SocketModeClosed)
	}
	if pid := m.lockHolder(m.Socket); s.other(pid) {
		//diag doctor SOCKET PROCESS
		// Another program listens on the instance's socket. End it if you may lose what it holds,
		// and restart the socket unit.
		return result(check, Fail, m.endOther(pid)+m.relisten(s), "%s is served by %s, which is not this instance's daemon", m.Socket, m.process(pid)).as(SocketServedByOther)
	}
	return result(check, OK, "", "%s, mode %04o", m.Socket, st.Mode().Perm())
}

// endOther is the first part of the advice that takes a path back from another daemon.
func (m *Machine) endOther(pid int) string {
	return fmt.Sprintf("end process %d, which frees what it holds; ", pid)
}

// enginePaths checks the paths where engines look by default: whether the generator has
// made the unit listen there, and no other process does.
func (m *Machine) enginePaths(g generator.Machine, uuid string, s service) Result {
	const check = "engine paths"
	reload := "systemctl --user daemon-reload; " + m.relisten(s)
	own := filepath.Dir(m.Socket)
	given := `, or give engines --model-loader-extra-config '{"socket_dir": "` + own + `"}'`
	var listened, missing []string
	for _, p := range g.EnginePaths(uuid) {
		pid := m.lockHolder(p.Path)
		switch {
		case s.other(pid):
			//diag doctor PATH PROCESS
			// Another weight cache, mostly vLLM's own daemon, listens where engines look by
			// default. End it if you may lose what it holds, or give engines the instance's
			// `socket_dir`.
			return result(check, Fail, m.endOther(pid)+reload+given, "%s is served by %s: engines get their answers from it and not from wcache", p.Path, m.process(pid)).as(EnginePathTaken)
		case p.Draft:
		case strings.Contains("\n"+s.listen, "\n"+p.Path+" ("):
			listened = append(listened, p.Path)
		case p.Problem != "":
			//diag doctor PATH REASON
			// The generator found this default path of engines unusable, for the given reason. Mend
			// it and run `systemctl --user daemon-reload`, or give engines the instance's
			// `socket_dir`.
			return result(check, Warn, "mend that; "+reload+given, "%s can't be listened on: %s", p.Path, p.Problem).as(EnginePathUnusable)
		default:
			missing = append(missing, p.Path)
		}
	}
	switch {
	case s.props == nil:
		return result(check, OK, "", "no other daemon listens there; without a user manager wcache listens only where --listen says")
	case len(missing) > 0:
		//diag doctor PATH NUMBER NUMBER
		// The generator did not know the GPU when it ran, or the socket unit was started before.
		// Run `systemctl --user daemon-reload`, and restart the socket unit.
		return result(check, Warn, reload+given, "engines look at %s, where the socket unit does not listen (%d of %d paths)", missing[0], len(missing), len(missing)+len(listened)).as(EnginePathNotListened)
	}
	return result(check, OK, "", "the socket unit listens on all %d paths where engines look", len(listened))
}

// lockHolder is the process that holds the lock which vLLM's daemon, and this one, take for
// a socket: 0 if there is none. The kernel's list has lines such as
// "1: FLOCK  ADVISORY  WRITE 4711 fe:00:262146 0 EOF".
func (m *Machine) lockHolder(socket string) int {
	var st unix.Stat_t
	if err := unix.Lstat(socket+".lock", &st); err != nil {
		return 0
	}
	file := fmt.Sprintf("%02x:%02x:%d", unix.Major(st.Dev), unix.Minor(st.Dev), st.Ino)
	for line := range strings.Lines(m.read("proc/locks")) {
		if part := strings.Fields(line); len(part) > 5 && part[1] == "FLOCK" && part[5] == file {
			pid, _ := strconv.Atoi(part[4]) // the kernel writes digits
			return pid
		}
	}
	return 0
}

// process is the name of a process with its pid.
func (m *Machine) process(pid int) string {
	if comm := m.read("proc", strconv.Itoa(pid), "comm"); comm != "" {
		return fmt.Sprintf("%s (pid %d)", comm, pid)
	}
	return fmt.Sprintf("process %d", pid)
}
