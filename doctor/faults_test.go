// SPDX-FileCopyrightText: The wcache authors
// SPDX-License-Identifier: MIT

package doctor

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"
)

var update = flag.Bool("update", false, "write docs/screens")

// screens are shown in the manual; the tests write them with -update.
const screens = "../docs/screens"

func golden(t *testing.T, name, got string) {
	t.Helper()
	path := filepath.Join(screens, name)
	if *update {
		if err := os.MkdirAll(screens, 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), got); diff != "" {
		t.Errorf("%s: -want +got:\n%s", name, diff)
	}
}

// otherNumbers is a user namespace in which this user is user 100000 outside.
func otherNumbers() string { return fmt.Sprintf("%d 100000 65536\n", os.Getuid()) }

// Whole screens, of machines that people have.
func TestScreens(t *testing.T) {
	for _, tt := range []struct {
		file  string
		spoil func(t *testing.T, b *bench)
	}{
		{"doctor.txt", func(*testing.T, *bench) {}},
		{"doctor-new.txt", func(t *testing.T, b *bench) { // installed, and nothing done yet
			b.set("wcache@0.socket", "UnitFileState=disabled", "ActiveState=inactive")
			b.set("wcache@0.service", "ActiveState=inactive", "StatusText=", "MainPID=0")
			b.set("wcache@0.socket", "ConditionResult=no", "ConditionTimestampMonotonic=0")
			b.running, b.gpu.Free = nil, 139<<30
			b.remove(t, "r/vllm_weight_cache/0.sock", "dev/nvidia-uvm", "var/lib/systemd/linger/ada")
		}},
		{"doctor-no-driver.txt", func(t *testing.T, b *bench) {
			b.remove(t, "dev", "proc/driver")
		}},
		{"doctor-container.txt", func(t *testing.T, b *bench) { // the socket's folder is passed, and nothing else
			b.units = map[string]string{}
			delete(b.env, "XDG_RUNTIME_DIR")
			b.running.Peer, b.gpu.Free = 0, 139<<30
			b.put(t, "run/.containerenv", "")
			b.put(t, "proc/self/uid_map", otherNumbers())
			b.remove(t, "var/lib/systemd/linger/ada", "dev/nvidia-uvm")
		}},
	} {
		t.Run(tt.file, func(t *testing.T) {
			b := healthy(t)
			tt.spoil(t, b)
			golden(t, tt.file, b.output(t, Run(t.Context(), b.Machine)))
		})
	}
}

// fault is a machine with one thing wrong.
type fault struct {
	name  string
	spoil func(t *testing.T, b *bench)
}

func unit(name string, props ...string) func(*testing.T, *bench) {
	return func(_ *testing.T, b *bench) { b.set("wcache@0."+name, props...) }
}

func file(path, text string) func(*testing.T, *bench) {
	return func(t *testing.T, b *bench) { b.put(t, path, text) }
}

func without(paths ...string) func(*testing.T, *bench) {
	return func(t *testing.T, b *bench) { b.remove(t, paths...) }
}

func driver(change func(d *Driver)) func(*testing.T, *bench) {
	return func(_ *testing.T, b *bench) { change(b.gpu) }
}

func daemon(change func(d *Daemon)) func(*testing.T, *bench) {
	return func(_ *testing.T, b *bench) { change(b.running) }
}

// silent is a function that doesn't answer in time.
func silent[T any](context.Context) (*T, error) { return nil, context.DeadlineExceeded }

// apart is a machine with such a user namespace, and no daemon that could be in it.
func apart(users string) func(*testing.T, *bench) {
	return func(t *testing.T, b *bench) {
		b.put(t, "proc/self/uid_map", users)
		b.running = nil
	}
}

// byHand makes the daemon one that was started without the units.
func byHand(t *testing.T, b *bench) {
	t.Helper()
	b.set("wcache@0.socket", "ActiveState=inactive", "UnitFileState=disabled")
	b.set("wcache@0.service", "ActiveState=inactive", "MainPID=0", "StatusText=")
	b.lock(t, b.Socket, 4711)
	b.lock(t, b.Control, 4711)
}

// mute makes the daemon silent, with its process in a state.
func mute(state string) func(*testing.T, *bench) {
	return func(t *testing.T, b *bench) {
		b.peer = 4711
		b.Daemon = func(context.Context) (*Daemon, error) { return nil, errors.New("it has not answered within 10s") }
		b.put(t, "proc/4711/stat", "4711 (a) b) "+state+" 1 4711\n")
	}
}

// denied makes the kernel refuse connections to the daemon.
func denied(b *bench) {
	b.running, b.peer = nil, 0
	b.Daemon = func(context.Context) (*Daemon, error) {
		return nil, &os.PathError{Op: "connect", Path: b.Control, Err: unix.EACCES}
	}
}

// both applies all of these.
func both(list ...func(*testing.T, *bench)) func(*testing.T, *bench) {
	return func(t *testing.T, b *bench) {
		for _, f := range list {
			f(t, b)
		}
	}
}

// contexts are the security contexts of doctor's process and of the daemon's.
func contexts(here, there string) func(*testing.T, *bench) {
	return func(t *testing.T, b *bench) {
		b.put(t, "proc/self/attr/current", here+"\x00")
		b.put(t, "proc/4711/attr/current", there+"\n")
	}
}

const containerType = "system_u:system_r:container_t:s0:c14,c301"

var faults = []fault{
	{"the configuration has a key that nobody knows", file("etc/wcache/wcache.toml", "policy = \"any\"\nbugdet = 1\n")},
	{"no XDG_RUNTIME_DIR, as under cron", func(t *testing.T, b *bench) {
		delete(b.env, "XDG_RUNTIME_DIR")
		b.put(t, fmt.Sprintf("run/user/%d/file", os.Getuid()), "")
	}},
	{"no XDG_RUNTIME_DIR and no such directory, as under su", func(_ *testing.T, b *bench) { delete(b.env, "XDG_RUNTIME_DIR") }},
	{"the runtime directory is gone", func(t *testing.T, b *bench) { b.remove(t, "r") }},
	{"the runtime directory is open to others", func(t *testing.T, b *bench) { chmod(t, b.env["XDG_RUNTIME_DIR"], 0o755) }},
	{"the manager can't be reached", func(_ *testing.T, b *bench) {
		delete(b.units, "Version")
		b.running = nil
	}},
	{"the manager can't be reached, and a daemon runs without it", func(_ *testing.T, b *bench) { delete(b.units, "Version") }},
	{"the manager hangs", func(_ *testing.T, b *bench) {
		b.Systemctl = func(context.Context, ...string) (string, error) { return "", context.DeadlineExceeded }
	}},
	{"the units are not installed", unit("socket", "LoadState=not-found")},
	{"the socket unit is masked", unit("socket", "LoadState=masked")},
	{"the socket unit has hit its limit", unit("socket", "ActiveState=failed", "Result=trigger-limit-hit")},
	{"the socket unit doesn't listen", unit("socket", "ActiveState=inactive")},
	{"the socket unit is not enabled", unit("socket", "UnitFileState=disabled")},
	{"the service has hit its limit", unit("service", "ActiveState=failed", "Result=start-limit-hit")},
	{"the service has died", unit("service", "NRestarts=3")},
	{"the service's unit can't be read", func(_ *testing.T, b *bench) { delete(b.units, "wcache@0.service") }},
	{"nothing is stored", unit("service", "FileDescriptorStoreMax=0")},
	{"the store is full", unit("service", "NFileDescriptorStore=2040")},
	{"the store is full, and lacks an entry", both(unit("service", "NFileDescriptorStore=2048"), daemon(func(d *Daemon) {
		d.NotKept, d.Problems = true, []string{"28dd04106153 would not outlive the daemon: keep descriptors: 2050 are needed and FileDescriptorStoreMax=2048"}
	}))},
	{"too few open files at the start", unit("service", "LimitNOFILESoft=1024")},
	{"too few open files at all", unit("service", "LimitNOFILE=2048", "LimitNOFILESoft=2048")},
	{"no socket", without("r/vllm_weight_cache/0.sock")},
	{"a file where the socket should be", func(t *testing.T, b *bench) {
		b.remove(t, "r/vllm_weight_cache/0.sock")
		b.put(t, "r/vllm_weight_cache/0.sock", "")
	}},
	{"the socket is open to others", func(t *testing.T, b *bench) { chmod(t, b.Socket, 0o666) }},
	{"the socket's folder is open to others", func(t *testing.T, b *bench) { chmod(t, filepath.Dir(b.Socket), 0o755) }},
	{"another daemon has the socket", func(t *testing.T, b *bench) { b.lock(t, b.Socket, 5120) }},
	{"the daemon hangs", mute("S")},
	{"the daemon is stopped", mute("T")},
	{"a debugger has the daemon", mute("t")},
	{"the daemon waits for a disk", mute("D")},
	{"the daemon has ended, and nobody has noticed", mute("Z")},
	{"the daemon is frozen", both(mute("S"), file("sys/fs/cgroup/user.slice/wcache@0.service/cgroup.events", "populated 1\nfrozen 1\n"))},
	{"the daemon was started by hand", byHand},
	{"the daemon was started by hand, and is stopped", both(byHand, mute("T"))},
	{"the daemon was started by hand, and hangs", both(byHand, mute("R"))},
	{"the daemon was started by hand, and its sockets keep out their own user", both(byHand, func(t *testing.T, b *bench) {
		denied(b)
		b.put(t, "r/vllm_weight_cache/0.control", "")
		chmod(t, b.Control, 0)
		chmod(t, b.Socket, 0)
	})},
	{"the daemon was started by hand, and its sockets were removed", both(byHand, without("r/vllm_weight_cache/0.sock", "r/vllm_weight_cache/0.control"))},
	{"the daemon was started by hand, with its folder removed", both(byHand, without("r/vllm_weight_cache"))},
	{"the daemon's control socket was removed", func(_ *testing.T, b *bench) { b.running = nil }},
	{"the socket's folder was removed", both(without("r/vllm_weight_cache"), func(_ *testing.T, b *bench) { b.running = nil })},
	{"the socket keeps out its own user", func(t *testing.T, b *bench) { chmod(t, b.Socket, 0o200) }},
	{"the folder keeps out its own user", func(t *testing.T, b *bench) { chmod(t, filepath.Dir(b.Socket), 0o500) }},
	{"SELinux denies the socket", func(t *testing.T, b *bench) {
		denied(b)
		b.put(t, "r/vllm_weight_cache/0.control", "")
		b.put(t, "proc/self/attr/current", containerType+"\x00")
	}},
	{"AppArmor denies the socket", func(t *testing.T, b *bench) {
		denied(b)
		b.put(t, "r/vllm_weight_cache/0.control", "")
		b.put(t, "proc/self/attr/apparmor/current", "docker-default (enforce)\n")
	}},
	{"root has enabled it", func(_ *testing.T, b *bench) {
		b.IsRoot, b.running = true, nil
		b.set("wcache@0.socket", "ActiveState=inactive", "ConditionResult=no")
		b.set("wcache@0.service", "ActiveState=inactive", "MainPID=0", "StatusText=")
	}},
	{"root, without a manager", func(_ *testing.T, b *bench) {
		delete(b.units, "Version")
		b.IsRoot, b.running = true, nil
	}},
	{"a condition of the socket unit is not met", unit("socket", "ActiveState=inactive", "ConditionResult=no")},
	{"the daemon is older, and its weights go with it", both(file("etc/wcache/wcache.toml", "handles = \"legacy\"\n"), daemon(func(d *Daemon) { d.Version = "0.3.0" }))},
	{"engines are confined by AppArmor", both(contexts("docker-default (enforce)", "unconfined"), func(_ *testing.T, b *bench) { b.refused = unix.EACCES })},
	{"engines are confined by SELinux", both(contexts(containerType, "unconfined_u:unconfined_r:unconfined_t:s0"), func(_ *testing.T, b *bench) { b.refused = unix.EACCES })},
	{"the daemon is confined", both(contexts("unconfined", "snap.wcache (enforce)"), func(_ *testing.T, b *bench) { b.refused = unix.EACCES })},
	{"both are confined alike", contexts(containerType, containerType)},
	{"engines are confined by what lets them", contexts(containerType, "unconfined")},
	{"engines are confined, and no daemon can be seen", both(contexts("docker-default (enforce)", ""), func(_ *testing.T, b *bench) { b.running.Peer = 0 })},
	{"WSL2", both(without("proc/driver", "dev"), file("proc/sys/kernel/osrelease", "5.15.167.4-microsoft-standard-WSL2\n"))},
	{"the GPU is cut into slices, which the driver lists", driver(func(d *Driver) {
		*d = Driver{Fault: "cuInit: CUDA_ERROR_NO_DEVICE", Mend: "no GPU is visible", Slices: []string{"MIG-0fdc1a42-0000-4000-8000-000000000000", "MIG-1fdc1a42-0000-4000-8000-000000000000"}}
	})},
	{"the daemon has something to say", daemon(func(d *Daemon) { d.Problems = []string{`write manifest: no space left on device`} })},
	{"the daemon is older than the command", daemon(func(d *Daemon) { d.Version = "0.3.0" })},
	{"the last request was refused", daemon(func(d *Daemon) {
		d.Refused = "python3 (pid 5120), 3 min ago: dtype: the checkpoint has torch.bfloat16"
	})},
	{"no lingering", without("var/lib/systemd/linger/ada")},
	{"Yama forbids what engines do", file("proc/sys/kernel/yama/ptrace_scope", "2\n")},
	{"the daemon is in another pid namespace", daemon(func(d *Daemon) { d.Peer = 0 })},
	{"in a container, and no daemon answers", func(t *testing.T, b *bench) {
		b.put(t, ".dockerenv", "")
		b.running = nil
	}},
	{"users have other numbers here", apart(otherNumbers())},
	{"this user has no number outside", apart("4000000 0 1\n")},
	{"users have the same numbers in another user namespace", apart(fmt.Sprintf("%d %d 1\n", os.Getuid(), os.Getuid()))},
	{"the daemon is of another group", func(_ *testing.T, b *bench) { b.refused = unix.EPERM }},
	{"a seccomp profile forbids what engines do", func(_ *testing.T, b *bench) { b.refused = unix.ENOSYS }},
	{"all of that does no harm to older handles", func(t *testing.T, b *bench) {
		b.put(t, "etc/wcache/wcache.toml", "handles = \"legacy\"\n")
		b.put(t, "proc/sys/kernel/yama/ptrace_scope", "2\n")
		b.put(t, "proc/self/uid_map", fmt.Sprintf("%d %d 1\n", os.Getuid(), os.Getuid()))
		b.running.Peer, b.refused, b.gpu.Exports = 0, unix.EPERM, false
	}},
	{"the service is in a user namespace", func(_ *testing.T, b *bench) {
		b.set("wcache@0.service", "PrivateUsers=yes")
		b.refused = unix.EPERM
	}},
	{"/tmp is private", func(t *testing.T, b *bench) {
		b.remove(t, "proc/4711/root")
		b.put(t, "proc/4711/root/tmp/file", "")
	}},
	{"the kernel module is not loaded", without("proc/driver")},
	{"/dev/nvidia-uvm is missing", without("dev/nvidia-uvm")},
	{"/dev/nvidia-uvm is missing, and nobody can make it", func(t *testing.T, b *bench) {
		b.remove(t, "dev/nvidia-uvm")
		b.set("wcache@0.service", "NoNewPrivileges=yes")
	}},
	{"the container has not got this GPU", without("dev/nvidia0")},
	{"no GPU of that number", func(_ *testing.T, b *bench) {
		b.Instance = "7"
		for _, kind := range []string{"socket", "service"} {
			b.units["wcache@7."+kind] = b.units["wcache@0."+kind]
		}
	}},
	{"the GPU has no uuid yet", file("proc/driver/nvidia/gpus/0000:19:00.0/information", "GPU UUID: \t GPU-????????-????-????-????-????????????\nDevice Minor: \t 0\n")},
	{"vLLM's own daemon is on an engine's path", func(t *testing.T, b *bench) { b.lock(t, b.tempDir()+"/vllm_weight_cache_"+uuid+".sock", 5120) }},
	{"the generator has not run", func(_ *testing.T, b *bench) {
		b.set("wcache@0.socket", "Listen=")
	}},
	{"engines refuse the folder for temporary files", func(t *testing.T, b *bench) {
		b.put(t, strings.TrimPrefix(b.tempDir(), b.Root)+"/file", "")
		chmod(t, b.tempDir(), 0o755)
		b.units["wcache@0.socket"] = strings.ReplaceAll(b.units["wcache@0.socket"], b.tempDir(), "/none")
	}},
	{"the GPU is cut into slices", file("proc/driver/nvidia/capabilities/gpu0/mig/gi1/access", "DeviceFileMinor: 12\n")},
	{"MPS is in use", func(t *testing.T, b *bench) { b.put(t, "tmp/nvidia-mps/control", "") }},
	{"no libcuda", driver(func(d *Driver) {
		*d = Driver{Fault: "libcuda.so.1: cannot open shared object file", Mend: "install the NVIDIA driver, or start the container with its GPUs (nvidia-container-toolkit)"}
	})},
	{"the driver was updated under a running system", driver(func(d *Driver) {
		*d = Driver{Fault: "cuInit: CUDA_ERROR_SYSTEM_DRIVER_MISMATCH", Mend: "the driver was updated while its old kernel module stays loaded: restart the machine, which frees what all instances hold"}
	})},
	{"the driver hangs", func(_ *testing.T, b *bench) {
		b.Driver = func(ctx context.Context, _ string) (*Driver, error) { return silent[Driver](ctx) }
	}},
	{"the driver's child fails", func(_ *testing.T, b *bench) {
		b.Driver = func(context.Context, string) (*Driver, error) { return nil, os.ErrPermission }
	}},
	{"the GPU is lost", driver(func(d *Driver) {
		d.State, d.Reason = "lost", "restart the machine, which frees what all instances hold"
	})},
	{"NVML can't be asked", driver(func(d *Driver) { d.State, d.Reason, d.Driver = "unknown", "no libnvidia-ml.so.1", "" })},
	{"one process at a time", driver(func(d *Driver) { d.ComputeMode = 3 })},
	{"no process at all", driver(func(d *Driver) { d.ComputeMode = 2 })},
	{"a compute mode of the future", driver(func(d *Driver) { d.ComputeMode = 9 })},
	{"the largest model doesn't fit beside others", func(_ *testing.T, b *bench) { b.running.Held, b.gpu.Free = 1<<30, 20<<30 }},
	{"the largest model doesn't fit at all", func(_ *testing.T, b *bench) { b.model = 200 << 30 }},
	{"the folders of models hang", func(_ *testing.T, b *bench) {
		b.Largest = func(context.Context) (string, int64, error) { return "", 0, context.DeadlineExceeded }
	}},
	{"memory can't be exported", driver(func(d *Driver) { d.Exports = false })},
}

func chmod(t *testing.T, path string, mode os.FileMode) {
	t.Helper()
	if err := os.Chmod(path, mode); err != nil {
		t.Fatal(err)
	}
}

// Each check is made to fail at least once. The golden file has the lines in which the
// output differs from that of a healthy machine.
func TestFaults(t *testing.T) {
	b := healthy(t)
	well := strings.SplitAfter(b.output(t, Run(t.Context(), b.Machine)), "\n")
	checks := make(map[string]bool)
	for _, r := range Run(t.Context(), b.Machine) {
		checks[r.Check] = true
	}
	var all strings.Builder
	all.WriteString("What wcache doctor says of one fault each, and only where it differs from doctor.txt.\n")
	for _, f := range faults {
		b := healthy(t)
		f.spoil(t, b)
		list := Run(t.Context(), b.Machine)
		for _, r := range list {
			if r.State != OK {
				delete(checks, r.Check)
				if r.Mend == "" || r.Code == "" {
					t.Errorf("%s: nothing mends or names %+v", f.name, r)
				}
			} else if r.Code != "" {
				t.Errorf("%s: a code of what is well: %+v", f.name, r)
			}
		}
		all.WriteString("\n## " + f.name + "\n")
		for line := range strings.Lines(b.output(t, list)) {
			if !slices.Contains(well, line) {
				all.WriteString(line)
			}
		}
	}
	for check := range checks {
		t.Errorf("%q was never made to fail", check)
	}
	golden(t, "doctor-faults.txt", all.String())
}
