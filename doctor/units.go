// SPDX-FileCopyrightText: The wcache authors
// SPDX-License-Identifier: MIT

package doctor

import (
	"context"
	"errors"
	"os"
	"strconv"
	"strings"

	"github.com/wcache/wcache/config"
)

// service is what the manager says of the service unit. The zero value is that of
// a machine without a manager.
type service struct {
	props   map[string]string
	err     error
	listen  string // of the socket unit, a line a socket
	answers int    // process that answered as this instance, with a manager or without
}

// other reports whether a process is none of this instance.
func (s service) other(pid int) bool { return pid != 0 && pid != s.pid() && pid != s.answers }

// pid is the daemon's, 0 if it isn't known.
func (s service) pid() int {
	n, _ := strconv.Atoi(s.props["MainPID"]) // 0 where nothing is said
	return n
}

// configuration reads it as the daemon does, and gives the word for handles, which
// other checks depend on.
func (m *Machine) configuration() (r Result, handles string) {
	const check = "configuration"
	c, err := config.Load(m.Config, m.Instance, m.Env)
	if err != nil {
		return result(check, Fail, "edit the file; systemctl --user reload "+m.unitName("service"), "%v", err), ""
	}
	var found []string
	for _, p := range m.Config {
		if _, err := os.Stat(p); err == nil {
			found = append(found, p)
		}
	}
	if len(found) == 0 {
		return result(check, OK, "", "no file, all defaults"), c.Handles
	}
	return result(check, OK, "", "%s", strings.Join(found, ", ")), c.Handles
}

// manager asks the user's service manager. A daemon does without one, as in
// containers, but then nobody keeps its weights over a restart.
func (m *Machine) manager(ctx context.Context, d *Daemon) Result {
	const check = "user manager"
	out, err := m.Systemctl(ctx, "show", "-P", "Version")
	switch {
	case errors.Is(err, context.DeadlineExceeded):
		return result(check, Fail, "journalctl -b _PID=1; see whether the machine is out of memory", "it does not answer")
	case err != nil && d != nil:
		return result(check, Warn, "loginctl enable-linger; nothing in a container", "can't be reached: %v; weights go with the daemon", err)
	case err != nil:
		return result(check, Fail, "loginctl enable-linger, or run wcache serve --listen PATH without it", "can't be reached: %v", err)
	}
	return result(check, OK, "", "systemd %s", out)
}

// show gives properties of a unit by name. One that is said several times has a
// line for each.
func (m *Machine) show(ctx context.Context, unit string, names ...string) (map[string]string, error) {
	out, err := m.Systemctl(ctx, "show", "-p", strings.Join(names, ","), unit)
	if err != nil {
		return nil, err
	}
	props := make(map[string]string)
	for line := range strings.Lines(out) {
		name, value, ok := strings.Cut(strings.TrimSpace(line), "=")
		if before := props[name]; ok && before != "" {
			value = before + "\n" + value
		}
		if ok {
			props[name] = value
		}
	}
	return props, nil
}

func (m *Machine) socketUnit(ctx context.Context) (r Result, listen string) {
	const check = "socket unit"
	unit := m.unitName("socket")
	p, err := m.show(ctx, unit, "LoadState", "UnitFileState", "ActiveState", "Result", "Listen")
	enable := "systemctl --user enable --now " + unit
	switch {
	case err != nil:
		r = result(check, Fail, "journalctl --user -b", "%v", err)
	case p["LoadState"] == "masked":
		r = result(check, Fail, "systemctl --user unmask "+unit+"; "+enable, "%s is masked", unit)
	case p["LoadState"] != "loaded":
		r = result(check, Fail, "install wcache's package, or copy systemd/ to ~/.config/systemd/user; systemctl --user daemon-reload", "%s is %s", unit, p["LoadState"])
	case p["ActiveState"] == "failed":
		r = result(check, Fail, "systemctl --user reset-failed 'wcache*'; systemctl --user restart "+unit, "%s has failed: %s", unit, p["Result"])
	case p["ActiveState"] != "active":
		r = result(check, Fail, enable, "%s is %s", unit, p["ActiveState"])
	case p["UnitFileState"] != "enabled":
		r = result(check, Warn, enable, "%s listens, and is %s: not after the next login", unit, p["UnitFileState"])
	default:
		r = result(check, OK, "", "%s is enabled and listening", unit)
	}
	return r, p["Listen"]
}

func (m *Machine) service(ctx context.Context) service {
	p, err := m.show(ctx, m.unitName("service"), "ActiveState", "Result", "StatusText", "NRestarts", "MainPID",
		"FileDescriptorStoreMax", "NFileDescriptorStore", "LimitNOFILESoft", "LimitNOFILE", "NoNewPrivileges", "PrivateUsers")
	return service{props: p, err: err}
}

func (m *Machine) unit(s service) Result {
	const check = "service"
	unit := m.unitName("service")
	p := s.props
	switch {
	case s.err != nil:
		return result(check, Fail, "journalctl --user -b", "%v", s.err)
	case p["ActiveState"] == "failed":
		return result(check, Fail, "journalctl --user -u "+unit+"; systemctl --user reset-failed 'wcache*'; systemctl --user restart "+m.unitName("socket"), "%s has failed: %s", unit, p["Result"])
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

// edit is how a setting of the service is changed.
const edit = "systemctl --user edit wcache@.service: [Service] "

func (m *Machine) store(s service) Result {
	const check = "fd store"
	most, err := strconv.Atoi(s.props["FileDescriptorStoreMax"])
	if err != nil || most < leastStored {
		return result(check, Fail, edit+"FileDescriptorStoreMax=2048", "it keeps %q descriptors: weights would not outlive the daemon", s.props["FileDescriptorStoreMax"])
	}
	if now, err := strconv.Atoi(s.props["NFileDescriptorStore"]); err == nil && now > most-leastStored {
		return result(check, Warn, edit+"FileDescriptorStoreMax=4096, Environment=WCACHE_FDSTORE=4096, LimitNOFILE=16384:524288",
			"%d of %d descriptors are taken: what is loaded next may not outlive the daemon", now, most)
	}
	return result(check, OK, "", "it keeps up to %d descriptors", most)
}

// spareFiles are what a daemon opens beside those that are stored.
const spareFiles = 64

// openFiles looks at the two limits that the daemon starts with: the soft one has
// to hold what is stored already, the hard one what it raises the soft one to.
func (m *Machine) openFiles(s service) Result {
	const check = "open files"
	most, _ := strconv.Atoi(s.props["FileDescriptorStoreMax"]) // told by store
	for _, limit := range []string{"LimitNOFILE", "LimitNOFILESoft"} {
		// infinity is no number, and enough
		if n, err := strconv.Atoi(s.props[limit]); err == nil && n < most+spareFiles {
			return result(check, Warn, edit+"LimitNOFILE=8192:524288", "%s is %d, and %d descriptors may be stored beside some that the daemon opens: needed are %d", limit, n, most, most+spareFiles)
		}
	}
	return result(check, OK, "", "limit %s at the start, %s later; needed are up to %d", s.props["LimitNOFILESoft"], s.props["LimitNOFILE"], most+spareFiles)
}

// daemon asks the instance, unless none runs.
func (m *Machine) daemon(ctx context.Context) (*Daemon, Result) {
	const check = "daemon"
	d, err := m.Daemon(ctx)
	restart := "systemctl --user restart " + m.unitName("service")
	switch {
	case err != nil:
		return nil, result(check, Fail, restart+", which keeps the weights; journalctl --user -u "+m.unitName("service"), "it does not answer: %v", err)
	case d == nil:
		return nil, result(check, OK, "", "not running; the first engine starts it")
	case len(d.Problems) > 0:
		return d, result(check, Warn, "wcache --gpu "+m.Instance+" status shows all of it", "%s", strings.Join(d.Problems, "; "))
	case d.Version != m.Version:
		return d, result(check, Warn, restart+", which keeps the weights", "version %s, and this command is %s", d.Version, m.Version)
	}
	return d, result(check, OK, "", "version %s, as this command", d.Version)
}

func (m *Machine) lastRequest(d *Daemon) Result {
	if d.Refused != "" {
		return result("last request", Warn, "wcache --gpu "+m.Instance+" explain", "%s", d.Refused)
	}
	return result("last request", OK, "", "none was refused")
}
