// SPDX-FileCopyrightText: The wcache authors
// SPDX-License-Identifier: MIT

package doctor

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"

	"github.com/wcache/wcache/config"
)

// service is the manager's report on the service unit, and what else is known of the
// daemon. Without a manager props is nil.
type service struct {
	props   map[string]string
	err     error
	listens bool   // the socket unit is active
	listen  string // of the socket unit, one line per socket
	answers int    // process that serves this instance, with a manager or without; 0: none is known
	handles string // as configured
	partly  bool   // the store has not all that is held
}

// other reports whether a process doesn't belong to this instance.
func (s service) other(pid int) bool { return pid != 0 && pid != s.pid() && pid != s.answers }

// pid is the pid of the unit's daemon, 0 if it isn't known.
func (s service) pid() int {
	n, _ := strconv.Atoi(s.props["MainPID"]) // 0 without the property
	return n
}

// byHand reports whether the daemon was started without the unit.
func (s service) byHand() bool { return s.answers != 0 && s.answers != s.pid() }

// fate is what a restart does to what the service holds, for the end of a sentence.
func (s service) fate() string {
	stored, err := strconv.Atoi(s.props["FileDescriptorStoreMax"])
	switch {
	case s.pid() == 0:
		return ""
	case s.handles == config.HandlesLegacy || err != nil || stored < leastStored:
		return ", which frees what is held"
	}
	if s.partly {
		return ", which frees the entries that are not stored (wcache status names them) and keeps the others"
	}
	return ", which keeps what is held"
}

// renewal is the advice to start the daemon again.
func (m *Machine) renewal(s service) string {
	if s.byHand() {
		return fmt.Sprintf("end process %d and start it again, which frees what it holds", s.answers)
	}
	return "systemctl --user restart " + m.unitName("service") + s.fate()
}

// relisten is the advice to let the socket unit make its sockets again, which restarts the service.
func (m *Machine) relisten(s service) string {
	return "systemctl --user restart " + m.unitName("socket") + s.fate()
}

// enable is the advice to run an instance.
func (m *Machine) enable() string {
	if m.IsRoot {
		return fmt.Sprintf("run engines and wcache as another user, or a daemon by hand: wcache serve --instance %s --listen %s", m.Instance, m.Socket)
	}
	return "systemctl --user enable --now " + m.unitName("socket")
}

// configuration reads the configuration as the daemon does, and gives the value of handles,
// which other checks depend on.
func (m *Machine) configuration() (r Result, handles string) {
	const check = "configuration"
	c, err := config.Load(m.Config, m.Instance, m.Env)
	if err != nil {
		return result(check, Fail, "edit the file; systemctl --user reload "+m.unitName("service"), "%v", err).as(ConfigBroken), ""
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

// manager asks the user's service manager. A daemon can run without one, as in containers,
// but then its weights don't outlive a restart.
func (m *Machine) manager(ctx context.Context, d *Daemon) Result {
	const check = "user manager"
	out, err := m.Systemctl(ctx, "show", "-P", "Version")
	switch {
	case errors.Is(err, context.DeadlineExceeded):
		//diag doctor
		// The service manager of the user has not answered in time. `systemctl --user status` shows
		// whether it hangs.
		return result(check, Fail, "journalctl -b _PID=1 and free -m may say why", "it does not answer").as(ManagerSilent)
	case err != nil && d != nil:
		//diag doctor REASON
		// A daemon runs without a service manager, as in a container, and no program keeps its
		// weights when it ends. Run the daemon as a service if weights are to outlive a restart.
		return result(check, Warn, "loginctl enable-linger, and run the daemon as a service; a container mostly has no user manager", "can't be reached: %v; weights go when the daemon ends", err).as(ManagerMissing)
	case err != nil:
		if m.IsRoot {
			//diag doctor REASON
			// The service manager of this user does not run or can't be asked. Log in, or run
			// `loginctl enable-linger`.
			return result(check, Fail, m.enable(), "can't be reached: %v", err).as(ManagerUnreachable)
		}
		return result(check, Fail, "loginctl enable-linger starts it; or run wcache serve --listen PATH, which needs none", "can't be reached: %v", err).as(ManagerUnreachable)
	}
	return result(check, OK, "", "systemd %s", out)
}

// show gives properties of a unit by name. A property that appears several times has one
// line per value.
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

func (m *Machine) socketUnit(ctx context.Context, s service) (r Result, listen string, active bool) {
	const check = "socket unit"
	unit := m.unitName("socket")
	p, err := m.show(ctx, unit, "LoadState", "UnitFileState", "ActiveState", "Result", "Listen", "ConditionResult", "ConditionTimestampMonotonic")
	active = p["ActiveState"] == "active"
	tried := p["ConditionTimestampMonotonic"] != "" && p["ConditionTimestampMonotonic"] != "0"
	switch {
	case err != nil:
		r = result(check, Fail, "journalctl --user -b", "%v", err).as(UnitUnreadable)
	case s.byHand() && !active: // the unit would take its path
		r = result(check, Warn, fmt.Sprintf("to keep them: end process %d, which frees what it holds; %s", s.answers, m.enable()),
			//diag doctor UNIT STATE NUMBER
			// A daemon was started by hand on the instance's socket, and its weights go when it
			// ends. To keep weights over a restart, end that process and enable the socket unit.
			"%s is %s, and process %d serves in its place: weights go with that one", unit, p["ActiveState"], s.answers).as(DaemonByHand)
	case p["LoadState"] == "masked":
		//diag doctor UNIT
		// The unit was forbidden to start. Run `systemctl --user unmask` with its name,
		// and enable it.
		r = result(check, Fail, "systemctl --user unmask "+unit+"; "+m.enable(), "%s is masked", unit).as(UnitMasked)
	case p["LoadState"] != "loaded":
		r = result(check, Fail, "install wcache's package, or copy systemd/ to ~/.config/systemd/user; systemctl --user daemon-reload", "%s is %s", unit, p["LoadState"]).as(UnitNotLoaded)
	case p["ActiveState"] == "failed":
		//diag doctor UNIT RESULT
		// The unit was started too often without success, or its socket could not be made.
		// `journalctl --user -u UNIT` says why; then run `systemctl --user reset-failed`.
		r = result(check, Fail, "systemctl --user reset-failed 'wcache*'; "+m.relisten(s), "%s has failed: %s", unit, p["Result"]).as(SocketUnitFailed)
	case !active && m.IsRoot: // systemctl does nothing, and says nothing
		//diag doctor UNIT
		// systemctl(1) starts nothing and reports success. Run engines and the service as another
		// user; root can start a daemon with `wcache serve`.
		r = result(check, Fail, m.enable(), "%s does not start for root: it has ConditionUser=!root", unit).as(UnitForRoot)
	case !active && tried && p["ConditionResult"] == "no":
		//diag doctor UNIT STATE
		// A `Condition...=` line of the unit or of a drop-in does not hold.
		// `systemctl --user status UNIT` shows which; change the drop-in.
		r = result(check, Fail, "systemctl --user status "+unit+" says which", "%s is %s: one of its conditions is not met", unit, p["ActiveState"]).as(UnitCondition)
	case !active:
		r = result(check, Fail, m.enable(), "%s is %s", unit, p["ActiveState"]).as(SocketUnitInactive)
	case p["UnitFileState"] != "enabled":
		//diag doctor UNIT STATE
		// The unit was started and not enabled. Run `systemctl --user enable` with its name to have
		// it after the next login.
		r = result(check, Warn, m.enable(), "%s listens now, but is %s: it will not listen after the next login", unit, p["UnitFileState"]).as(SocketUnitNotEnabled)
	default:
		r = result(check, OK, "", "%s is enabled and listening", unit)
	}
	return r, p["Listen"], active
}

func (m *Machine) serviceProps(ctx context.Context) (map[string]string, error) {
	return m.show(ctx, m.unitName("service"), "ActiveState", "Result", "StatusText", "NRestarts", "MainPID",
		"FileDescriptorStoreMax", "NFileDescriptorStore", "LimitNOFILESoft", "LimitNOFILE", "NoNewPrivileges", "PrivateUsers")
}

func (m *Machine) unit(s service) Result {
	const check = "service"
	unit := m.unitName("service")
	p := s.props
	switch {
	case s.err != nil:
		return result(check, Fail, "journalctl --user -b", "%v", s.err).as(UnitUnreadable)
	case p["ActiveState"] == "failed":
		return result(check, Fail, "journalctl --user -u "+unit+"; systemctl --user reset-failed 'wcache*'; "+m.relisten(s), "%s has failed: %s", unit, p["Result"]).as(ServiceFailed)
	case p["NRestarts"] != "0" && p["NRestarts"] != "":
		//diag doctor UNIT STATE NUMBER
		// The daemon died and the service manager started it again with its weights.
		// `journalctl --user -u UNIT` says why it died; report it.
		return result(check, Warn, "journalctl --user -u "+unit, "%s is %s and was restarted %s times after it died", unit, p["ActiveState"], p["NRestarts"]).as(ServiceRestarted)
	case p["StatusText"] != "":
		return result(check, OK, "", "%s: %s", p["ActiveState"], p["StatusText"])
	}
	return result(check, OK, "", "%s; the first connection starts it", p["ActiveState"])
}

// leastStored is enough for a few models, with two descriptors each, and a few dozen
// engines, with one each.
const leastStored = 64

// edit is how a setting of the service is changed.
const edit = "systemctl --user edit wcache@.service: [Service] "

func (m *Machine) store(s service) Result {
	const check = "fd store"
	most, err := strconv.Atoi(s.props["FileDescriptorStoreMax"])
	if err != nil || most < leastStored {
		//diag doctor NUMBER
		// `FileDescriptorStoreMax=` of the service is too small or missing, as in a unit that was
		// copied and changed. Restore the line in a drop-in; weights that are held now go with the
		// restart.
		return result(check, Fail, edit+"FileDescriptorStoreMax=2048; it takes effect at the next start, which frees what is held now", "it keeps %q descriptors: weights would not outlive the daemon", s.props["FileDescriptorStoreMax"]).as(StoreOff)
	}
	if now, err := strconv.Atoi(s.props["NFileDescriptorStore"]); err == nil && now > most-leastStored {
		return result(check, Warn, edit+"FileDescriptorStoreMax=4096, Environment=WCACHE_FDSTORE=4096, LimitNOFILE=16384:524288; "+m.renewal(s),
			//diag doctor NUMBER NUMBER
			// The number of stored descriptors is near `FileDescriptorStoreMax=`. Raise it as the
			// advice says, or evict entries.
			"%d of %d descriptors are taken: what is loaded next may not outlive the daemon", now, most).as(StoreFull)
	}
	return result(check, OK, "", "it keeps up to %d descriptors", most)
}

// spareFiles are the descriptors that a daemon opens beside the stored ones.
const spareFiles = 64

// openFiles checks the two limits that the daemon starts with: the soft one has to be
// enough for the stored descriptors, the hard one is what the daemon raises the soft one to.
func (m *Machine) openFiles(s service) Result {
	const check = "open files"
	most, _ := strconv.Atoi(s.props["FileDescriptorStoreMax"]) // the check store reports an error
	for _, limit := range []string{"LimitNOFILE", "LimitNOFILESoft"} {
		// infinity is not a number, and is enough
		if n, err := strconv.Atoi(s.props[limit]); err == nil && n < most+spareFiles {
			//diag doctor LIMIT NUMBER NUMBER NUMBER
			// With so many descriptors stored, a new daemon could not open further files and would
			// not start. Raise `LimitNOFILE=` in a drop-in.
			return result(check, Warn, edit+"LimitNOFILE=8192:524288; it takes effect at the next start", "%s is %d, and the daemon may need %d: %d for stored descriptors, the rest to work with", limit, n, most+spareFiles, most).as(OpenFilesLimit)
		}
	}
	return result(check, OK, "", "limit %s at the start, %s later; the daemon may need %d", s.props["LimitNOFILESoft"], s.props["LimitNOFILE"], most+spareFiles)
}

// daemon judges the instance's report, or why there is none.
func (m *Machine) daemon(d *Daemon, err error, s service) Result {
	const check = "daemon"
	log := "; its log may say more"
	if !s.byHand() {
		log = "; journalctl --user -u " + m.unitName("service")
	}
	switch {
	case err != nil:
		cause := m.cause(err, s)
		if cause.Mend == "" {
			cause.Mend = m.renewal(s) + log
		}
		//diag doctor REASON
		// The daemon runs and is stuck; the reasons are under "Why a daemon does not answer". Do
		// what is said there.
		return result(check, Fail, cause.Mend, "it does not answer: %s", cause.Why).as(cause.Code)
	case d == nil && s.pid() != 0:
		//diag doctor NUMBER SOCKET
		// The file of the control socket was removed, and the daemon makes it again by itself. Wait
		// some seconds; if it stays so, restart the service.
		return result(check, Warn, "wait some seconds; if it stays so: "+m.renewal(s)+log, "process %d runs, and no process listens on %s, which it makes again by itself", s.pid(), m.Control).as(ControlSocketMissing)
	case d == nil && !s.listens:
		return result(check, OK, "", "not running")
	case d == nil:
		return result(check, OK, "", "not running; the first engine starts it")
	case len(d.Problems) > 0:
		return result(check, Warn, "wcache --gpu "+m.Instance+" status lists them", "%s", strings.Join(d.Problems, "; ")).as(DaemonProblems)
	case d.Version != m.Version:
		//diag doctor VERSION VERSION
		// The daemon was started before an upgrade. Restart the service; only legacy handles (`handles = "legacy"`) lose their weights by that.
		return result(check, Warn, m.renewal(s), "version %s, and this command is %s", d.Version, m.Version).as(VersionDiffers)
	}
	return result(check, OK, "", "version %s, as this command", d.Version)
}

// cause says why the daemon doesn't answer.
func (m *Machine) cause(err error, s service) Cause {
	var known Cause
	if errors.As(err, &known) {
		return known
	}
	for _, cause := range []Cause{Stuck(m.Root, s.answers), Denied(m.Root, m.Control, m.UID, err)} {
		if cause.Why != "" {
			return cause
		}
	}
	return Cause{Why: err.Error(), Code: DaemonSilent}
}

func (m *Machine) lastRequest(d *Daemon) Result {
	if d.Refused != "" {
		return result("last request", Warn, "wcache --gpu "+m.Instance+" explain", "%s", d.Refused).as(LastRequestRefused)
	}
	return result("last request", OK, "", "none was refused")
}
