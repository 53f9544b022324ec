// SPDX-FileCopyrightText: The wcache authors
// SPDX-License-Identifier: MIT

package doctor

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/wcache/wcache/device"
	"github.com/wcache/wcache/internal/testmain"
)

func TestMain(m *testing.M) { testmain.Run(m) }

const uuid = "GPU-3f8a1c2d-0b1e-4c6f-9a7d-5e2b8c4f1a90"

// bench is a machine of which a test can break parts.
type bench struct {
	Machine
	units   map[string]string // the output of systemctl, by its last argument
	env     map[string]string
	running *Daemon
	peer    int   // the process that listens on the control socket, 0: running's number
	model   int64 // bytes of the largest one
	gpu     *Driver
	refused error // the error of taking a descriptor
	err     error // the error of asking the manager, the daemon or the driver
}

// healthy is a machine where all is well.
func healthy(t *testing.T) *bench {
	t.Helper()
	root, err := os.MkdirTemp("/tmp", "d") // a socket's path is short
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(root) })
	b := &bench{env: map[string]string{"XDG_RUNTIME_DIR": root + "/r", "TMPDIR": root + "/t"}}
	b.Machine = Machine{
		Instance: "0", Socket: root + "/r/vllm_weight_cache/0.sock", UID: os.Getuid(), User: "ada", Version: "0.4.0",
		Env: func(n string) string { return b.env[n] }, Config: []string{root + "/etc/wcache/wcache.toml"}, Root: root,
		Control: root + "/r/vllm_weight_cache/0.control", Systemctl: b.systemctl,
		Peer: func(context.Context) int {
			if b.peer == 0 && b.running != nil {
				return b.running.Peer
			}
			return b.peer
		},
		Daemon: func(context.Context) (*Daemon, error) { return b.running, b.err },
		Driver: func(context.Context, string) (*Driver, error) { return b.gpu, b.err },
		Take:   func(int) error { return b.refused },
		Largest: func(context.Context) (string, int64, error) {
			if b.model == 0 {
				return "", 0, nil
			}
			return "Qwen3-30B-A3B", b.model, nil
		},
	}
	for path, text := range map[string]string{
		"var/lib/systemd/linger/ada":        "",
		"proc/sys/kernel/yama/ptrace_scope": "1\n",
		"proc/meminfo":                      "MemTotal:       263956388 kB\nMemFree:        1234 kB\nMemAvailable:   230000000 kB\n",
		"proc/self/uid_map":                 "         0          0 4294967295\n",
		"proc/4711/stat":                    "4711 (wcache) S 1 4711 4711 0 -1\n",
		"proc/4711/comm":                    "wcache\n",
		"proc/4711/cgroup":                  "0::/user.slice/wcache@0.service\n",
		"proc/sys/kernel/osrelease":         "6.12.48+deb13-amd64\n",
		"sys/fs/cgroup/user.slice/wcache@0.service/cgroup.events": "populated 1\nfrozen 0\n",
		"proc/locks":                 "",
		"proc/5120/comm":             "python3\n",
		"proc/driver/nvidia/version": "NVRM version: NVIDIA UNIX x86_64 Kernel Module  580.159.03\n",
		"proc/driver/nvidia/gpus/0000:19:00.0/information": "Model: \t\t NVIDIA H200\nGPU UUID: \t " + uuid + "\nDevice Minor: \t 0\nGPU Excluded:\t No\n",
		"dev/nvidiactl":          "",
		"dev/nvidia-uvm":         "",
		"dev/nvidia0":            "",
		"etc/wcache/wcache.toml": "policy = \"any\"\n",
		"tmp/file":               "",
		"t/file":                 "",
	} {
		b.put(t, path, text)
	}
	if err := os.MkdirAll(filepath.Join(root, "proc/4711"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(root, filepath.Join(root, "proc/4711/root")); err != nil {
		t.Fatal(err)
	}
	if err := os.MkdirAll(filepath.Dir(b.Socket), 0o700); err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("unix", b.Socket)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	if err := os.Chmod(b.Socket, 0o600); err != nil {
		t.Fatal(err)
	}
	listen := "Listen=" + b.Socket + " (Stream)\n"
	for _, name := range []string{uuid, "6f296f889e232c106e3b9514a67c40c0"} {
		for _, dir := range []string{root + "/r/vllm_weight_cache", fmt.Sprintf("/run/user/%d/vllm_weight_cache", os.Getuid()), b.tempDir()} {
			listen += "Listen=" + dir + "/vllm_weight_cache_" + name + ".sock (Stream)\n"
		}
	}
	b.units = map[string]string{
		"Version":         "257",
		"wcache@0.socket": "LoadState=loaded\nUnitFileState=enabled\nActiveState=active\nResult=success\nConditionResult=yes\nConditionTimestampMonotonic=9\n" + listen,
		"wcache@0.service": "ActiveState=active\nResult=success\nStatusText=1 model, 57.9 GiB, 1 engine attached\nNRestarts=0\nMainPID=4711\n" +
			"FileDescriptorStoreMax=2048\nNFileDescriptorStore=3\nLimitNOFILESoft=8192\nLimitNOFILE=524288\nNoNewPrivileges=no\nPrivateUsers=no",
	}
	b.running, b.model = &Daemon{PID: 4711, Peer: 4711, Version: "0.4.0", Held: 61_096_329_216}, 61_096_329_216
	b.gpu = &Driver{
		CUDA: device.CUDA{CUDAVersion: 13000, Exports: true},
		GPU:  device.GPU{Driver: "580.159.03", UUID: uuid, State: device.GPUOK, Name: "NVIDIA H200", Free: 47 << 30, Total: 140 << 30},
	}
	return b
}

// tempDir is where engines look by default.
func (b *bench) tempDir() string {
	return fmt.Sprintf("%s/t/vllm_weight_cache_%d", b.Root, os.Getuid())
}

func (b *bench) systemctl(_ context.Context, args ...string) (string, error) {
	out, ok := b.units[args[len(args)-1]]
	if !ok {
		return "", errors.New("Failed to connect to bus")
	}
	return out, nil
}

// set changes properties in the output of systemctl for a unit.
func (b *bench) set(unit string, props ...string) {
	var lines []string
	for line := range strings.Lines(b.units[unit]) {
		name, _, _ := strings.Cut(line, "=")
		for _, p := range props {
			if strings.HasPrefix(p, name+"=") {
				line = p + "\n"
			}
		}
		lines = append(lines, line)
	}
	b.units[unit] = strings.Join(lines, "")
}

func (b *bench) put(t *testing.T, path, text string) {
	t.Helper()
	path = filepath.Join(b.Root, path)
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

func (b *bench) remove(t *testing.T, paths ...string) {
	t.Helper()
	for _, path := range paths {
		if err := os.RemoveAll(filepath.Join(b.Root, path)); err != nil {
			t.Fatal(err)
		}
	}
}

// lock makes a process hold the lock of a socket.
func (b *bench) lock(t *testing.T, socket string, pid int) {
	t.Helper()
	b.put(t, strings.TrimPrefix(socket, b.Root)+".lock", "")
	var st unix.Stat_t
	if err := unix.Stat(socket+".lock", &st); err != nil {
		t.Fatal(err)
	}
	b.put(t, "proc/locks", fmt.Sprintf("1: POSIX  ADVISORY  WRITE 1 00:01:2 0 EOF\n2: FLOCK  ADVISORY  WRITE %d %02x:%02x:%d 0 EOF\n", pid, unix.Major(st.Dev), unix.Minor(st.Dev), st.Ino))
}

// output is what people see, with the paths of a real machine.
func (b *bench) output(t *testing.T, list []Result) string {
	t.Helper()
	uid := fmt.Sprint(os.Getuid())
	paths := strings.NewReplacer(b.Root+"/r", "/run/user/1000", b.Root+"/t/", "/tmp/", b.Root, "",
		"vllm_weight_cache_"+uid, "vllm_weight_cache_1000", "/run/user/"+uid, "/run/user/1000", "user "+uid+" ", "user 1000 ")
	for i, r := range list {
		list[i].Text, list[i].Mend = paths.Replace(r.Text), paths.Replace(r.Mend)
	}
	var out strings.Builder
	if err := Write(&out, list, func(_ State, s string) string { return s }); err != nil {
		t.Fatal(err)
	}
	return out.String()
}

func TestInstanceOfTheHost(t *testing.T) {
	b := healthy(t)
	b.Instance = Host
	b.units["wcache@host.socket"], b.units["wcache@host.service"] = b.units["wcache@0.socket"], b.units["wcache@0.service"]
	b.remove(t, "dev", "proc/driver")
	for _, r := range Run(t.Context(), b.Machine) {
		if r.State != OK {
			t.Errorf("got %+v", r)
		}
	}
}

// Without a manager, as in containers, the daemon that answers is the instance's own.
func TestNoManager(t *testing.T) {
	b := healthy(t)
	b.units = map[string]string{}
	b.lock(t, b.Socket, 4711)
	for _, r := range Run(t.Context(), b.Machine) {
		if r.State != OK && r.Check != "user manager" {
			t.Errorf("got %+v", r)
		}
	}
}

func TestSlice(t *testing.T) {
	b := healthy(t)
	b.Instance = "MIG-0fdc1a42-0000-4000-8000-000000000000"
	for unit, text := range maps.Clone(b.units) {
		b.units[strings.Replace(unit, "@0.", "@"+b.Instance+".", 1)] = text
	}
	var got []string
	for _, r := range Run(t.Context(), b.Machine) {
		if r.Check == "GPU" || r.Check == "MIG" || r.State != OK {
			got = append(got, fmt.Sprintf("%s %s: %s", r.State, r.Check, r.Text))
		}
	}
	if diff := cmp.Diff(3, len(got)); diff != "" { // the third: its paths are not listened on here
		t.Errorf("got %q", got)
	}
}
