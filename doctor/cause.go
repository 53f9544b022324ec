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

	"golang.org/x/sys/unix"
)

// Cause is why something doesn't answer, and what has it go on. The zero value is for
// what can't be seen from outside. It is an error for [Machine.Daemon] to give.
type Cause struct {
	Why, Mend string
	Code      Code
}

func (c Cause) Error() string { return c.Why }

// Stuck says why a process doesn't answer, as far as the kernel shows it. Its advice loses
// nothing that the process holds. root holds proc and sys.
func Stuck(root string, pid int) Cause {
	dir := filepath.Join("/", root, "proc", strconv.Itoa(pid))
	stat, err := os.ReadFile(filepath.Join(dir, "stat"))
	if pid == 0 || err != nil {
		return Cause{}
	}
	// PID (NAME) STATE …, the name may contain anything.
	fields := strings.Fields(string(stat[strings.LastIndexByte(string(stat), ')')+1:]))
	if len(fields) == 0 {
		return Cause{}
	}
	switch fields[0] {
	case "T":
		//diag stuck NUMBER
		// The process received SIGSTOP or SIGTSTP. `kill -CONT NUMBER` lets it go on, with all
		// weights that it holds.
		return Cause{fmt.Sprintf("process %d is stopped, by SIGSTOP or by Ctrl-Z", pid), fmt.Sprintf("kill -CONT %d continues it; nothing is lost", pid), DaemonStopped}
	case "t":
		//diag stuck NUMBER
		// A debugger such as gdb(1) or strace(1) has stopped the process. Let it go on in the
		// debugger, or detach; ending the debugger may end the process and its weights.
		return Cause{fmt.Sprintf("process %d is stopped by a debugger", pid), "continue it in the debugger, or detach; ending the debugger may end the process, which frees what it holds", DaemonTraced}
	case "D":
		//diag stuck NUMBER
		// A system call of the process does not return, and no signal reaches it meanwhile. `dmesg`
		// may say which device or server is meant; the process goes on when that answers.
		return Cause{fmt.Sprintf("process %d waits in the kernel, for a disk, a network file system or a driver", pid), "dmesg may say for which one; the process goes on by itself when that answers", DaemonBlocked}
	case "Z", "X":
		//diag stuck NUMBER
		// The process is a zombie and holds nothing any more. Start the daemon again; if the entry
		// in ps(1) stays, end its parent.
		return Cause{fmt.Sprintf("process %d has ended, and its parent has not noticed", pid), "", DaemonZombie}
	}
	if frozen(root, dir) {
		//diag stuck NUMBER
		// The control group was frozen, as `systemctl freeze` or `docker pause` does. Undo
		// it with `systemctl --user thaw`, or `docker unpause`; the process goes on with all that
		// it holds.
		return Cause{fmt.Sprintf("process %d is frozen, with its control group", pid), "thaw it with systemctl --user thaw, or docker unpause; nothing is lost", DaemonFrozen}
	}
	return Cause{}
}

// frozen reports whether a process's control group is frozen, see cgroup.events in the
// kernel's cgroup-v2.rst.
func frozen(root, dir string) bool {
	groups, err := os.ReadFile(filepath.Join(dir, "cgroup"))
	if err != nil {
		return false
	}
	_, group, found := strings.Cut("\n"+string(groups), "\n0::")
	if !found {
		return false
	}
	group, _, _ = strings.Cut(group, "\n")
	events, err := os.ReadFile(filepath.Join("/", root, "sys/fs/cgroup", group, "cgroup.events"))
	return err == nil && strings.Contains("\n"+string(events), "\nfrozen 1\n")
}

// Denied says why a user can't connect to a socket. err is the error of connecting; the
// zero Cause is for every error other than a denial.
func Denied(root, socket string, uid int, err error) Cause {
	if !errors.Is(err, unix.EACCES) && !errors.Is(err, unix.EPERM) {
		return Cause{}
	}
	for _, path := range []string{filepath.Dir(socket), socket} {
		st, err := os.Lstat(path)
		if errors.Is(err, fs.ErrPermission) { // the folder above keeps this user out
			continue
		}
		if err != nil {
			break
		}
		need := fs.FileMode(0o600)
		if st.IsDir() {
			need = 0o700
		}
		switch {
		case owner(st) != uid:
			return Cause{fmt.Sprintf("%s %s, and answers only that user", path, whose(owner(st))), "run this as that user, or start an instance of your own", ControlSocketDenied}
		case st.Mode().Perm()&need != need:
			//diag stuck PATH MODE
			// The owner of the socket or folder may not use it. Run `chmod 600` for a socket and
			// `chmod 700` for a folder; nothing is lost.
			return Cause{fmt.Sprintf("%s has mode %04o, which keeps its own user out", path, st.Mode().Perm()), fmt.Sprintf("chmod %o %s, which loses nothing", need, path), ControlSocketDenied}
		}
	}
	//diag stuck SOCKET ": this process is confined as PROFILE"
	// A rule of SELinux or AppArmor denies the connection, mostly to a container.
	// `ausearch -m AVC -ts recent` or `journalctl -k` shows the rule; wcache@.service(8) says how
	// to start a container that may connect.
	return Cause{
		fmt.Sprintf("connecting to %s is denied, although its mode allows it%s", socket, confined(root)),
		"ausearch -m AVC -ts recent, or journalctl -k | grep apparmor=, shows the rule of SELinux or AppArmor that denies it; for a container see wcache@.service(8), Containers", ControlSocketDenied,
	}
}

// confined describes the security context of this process, "" for none.
func confined(root string) string {
	if c := contextOf(root, "self"); c != "" {
		return ": this process is confined as " + c
	}
	return ""
}

// contextOf is the security context of a process from SELinux or AppArmor: "" if the
// process is not confined, or the machine has neither of them.
func contextOf(root, pid string) string {
	for _, file := range []string{"attr/current", "attr/apparmor/current"} { // the second if another module owns the first
		b, err := os.ReadFile(filepath.Join("/", root, "proc", pid, file))
		c := strings.TrimRight(string(b), "\x00\n")
		if err == nil && c != "" && c != "unconfined" && c != "kernel" && !strings.Contains(c, ":unconfined_t:") {
			return c
		}
	}
	return ""
}
