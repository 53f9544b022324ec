// SPDX-FileCopyrightText: The wcache authors
// SPDX-License-Identifier: MIT

package doctor

import (
	"context"
	"os"
	"strconv"
	"strings"
)

// lingering looks for the file that loginctl creates.
func (m *Machine) lingering() Result {
	if !m.exists("var/lib/systemd/linger", m.User) {
		//diag doctor
		// The user's services end with the last session. Run `loginctl enable-linger`; see
		// Lingering in wcache@.service(8).
		return result("lingering", Warn, "loginctl enable-linger", "off: the weights go at your last logout").as(LingerOff)
	}
	return result("lingering", OK, "", "on: the weights stay when you log out")
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

// room compares the largest model with the memory that it would be loaded into. Held
// weights that no engine uses can make room.
func (m *Machine) room(ctx context.Context, free, total int64, d *Daemon, s service) Result {
	const check = "free memory"
	name, bytes, err := m.Largest(ctx)
	var held int64
	if d != nil {
		held = d.Held
	}
	switch {
	case err != nil:
		//diag doctor REASON
		// The folders of `roots` can't be read. See whether they are mounted and answer.
		return result(check, Warn, "run ls on each folder of roots in wcache.toml: a file system may hang", "models could not be looked for: %v", err).as(ModelsNotSearched)
	case name == "":
		return result(check, OK, "", "%s; no model is known yet", amount(free))
	case bytes > total:
		//diag doctor MODEL AMOUNT AMOUNT
		// The whole memory is too small for this model. Split it over several GPUs with
		// `--tensor-parallel-size`.
		return result(check, Warn, "--tensor-parallel-size splits it over several GPUs", "%s takes %s, more than the whole memory of %s", name, amount(bytes), amount(total)).as(ModelTooLarge)
	case d == nil && s.answers != 0:
		return result(check, OK, "", "%s; the daemon doesn't say what it holds, which may make room", amount(free))
	case bytes > free+held:
		//diag doctor MODEL AMOUNT AMOUNT
		// Other programs use the memory. `wcache status` shows which; end them before this model is
		// loaded.
		return result(check, Warn, "wcache --gpu "+m.Instance+" status shows who uses it", "%s, the largest model that is known, takes %s, and %s are free", name, amount(bytes), amount(free)).as(MemoryShort)
	case bytes > free:
		return result(check, OK, "", "%s; %s takes %s, for which held entries would be evicted", amount(free), name, amount(bytes))
	}
	return result(check, OK, "", "%s; %s, the largest model that is known, takes %s", amount(free), name, amount(bytes))
}

// tempDir checks whether the folder for temporary files, in which engines look by
// default, is the same as the daemon's.
func (m *Machine) tempDir(s service) Result {
	const check = "temporary files"
	pid := s.pid()
	if pid == 0 {
		return result(check, OK, "", "not compared: the service doesn't run")
	}
	here, err := os.Stat(m.path("tmp"))
	there, err2 := os.Stat(m.path("proc", strconv.Itoa(pid), "root/tmp"))
	switch {
	case err != nil:
		return result(check, Fail, "mkdir -m 1777 /tmp", "%v", err).as(TmpMissing)
	case err2 == nil && !os.SameFile(here, there):
		//diag doctor
		// Engines look in `/tmp` for the sockets of the service and find another folder. Give
		// engines the instance's `socket_dir`, or remove `PrivateTmp=`.
		return result(check, Warn, `give engines --model-loader-extra-config '{"socket_dir": "`+socketDir(m.Socket)+`"}'`, "/tmp here is not the /tmp of the service, as with PrivateTmp=: engines don't find its sockets there").as(TmpPrivate)
	}
	return result(check, OK, "", "/tmp is the service's, too")
}

func socketDir(socket string) string { return socket[:strings.LastIndexByte(socket, '/')] }
