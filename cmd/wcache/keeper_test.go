// SPDX-FileCopyrightText: The wcache authors
// SPDX-License-Identifier: MIT

package main

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/wcache/wcache/device"
	"github.com/wcache/wcache/device/cuda"
	"github.com/wcache/wcache/device/cuda/fake"
	"github.com/wcache/wcache/protocol"
)

// envHIP makes an engine use HIP, and says where its GPU is.
const envHIP = "TEST_HIP"

// engineDevice opens a GPU for what a reply has handles of.
func engineDevice(r *protocol.Reply) (device.Device, error) {
	if pci := os.Getenv(envHIP); pci != "" {
		return cuda.OpenHIP(pci, cuda.Options{})
	}
	for _, e := range r.Entries {
		if len(e.Handle) > 1 && e.Handle[1] == 'c' {
			return cuda.OpenKeeper(r.GPUUUID, cuda.Options{})
		}
	}
	return cuda.Open(r.GPUUUID, cuda.Options{})
}

// addLegacy maps what a legacy handle is for: SHAREABLE_CUDA_MALLOC of c10's
// CUDACachingAllocator.cpp.
func (m *mapped) addLegacy(handle []byte) error {
	bare, header := bytes.CutPrefix(handle, []byte{3, 'c'})
	if len(bare) != device.HandleBytes || header == (os.Getenv(envHIP) != "") {
		return fmt.Errorf("read handle %x: it is no legacy one", handle)
	}
	x, err := m.device.(*cuda.Keeper).MapHandle([device.HandleBytes]byte(bare), 2<<20)
	m.by[string(handle)] = x
	return err
}

// TestKeeper is the whole path of legacy handles: the daemon, a loader that stays,
// and engines that open what it keeps, each in its own process.
func TestKeeper(t *testing.T) {
	dir := drivers(t)
	for name, test := range map[string]func(*testing.T, string){
		"serves":             testKeeperServes,
		"killed":             testKeeperKilled,
		"killed, engine on":  testKeeperKilledUnderEngine,
		"evicted":            testKeeperEvicted,
		"daemon stops":       testKeeperStop,
		"daemon stops, hang": testKeeperStopHang,
		"daemon killed":      testKeeperDaemonKilled,
		"restart":            testKeeperRestart,
		"restart, killed":    testKeeperRestartKilled,
		"other handles":      testKeeperReload,
		"faults":             testKeeperFaults,
		"HIP":                testHIP,
		"HIP, no GPU":        testHIPNone,
	} {
		t.Run(strings.ReplaceAll(name, " ", "_"), func(t *testing.T) {
			t.Parallel()
			test(t, dir)
		})
	}
}

// legacyRig is a rig whose configuration asks for legacy handles.
func legacyRig(t *testing.T, dir string) *rig {
	r := newRig(t, dir)
	r.handles("legacy")
	return r
}

func (r *rig) handles(form string) {
	r.Helper()
	r.configure("load_timeout = \"5m\"\nworkers = 2\nhandles = \"" + form + "\"\n")
}

// keepers are the processes that keep memory for the daemon.
func (r *rig) keepers() []int {
	r.Helper()
	var list []int
	for line := range strings.Lines(r.log.String()) {
		var pid int
		_, after, ok := strings.Cut(line, `msg="keeper started" keeper=`)
		if ok {
			_, err := fmt.Sscan(after, &pid)
			must(r.T, err)
			if !ended(pid) {
				list = append(list, pid)
			}
		}
	}
	return list
}

// ended reports whether a process is gone, or waits for its parent to reap it.
func ended(pid int) bool {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	return err != nil || strings.Contains(string(b), ") Z ")
}

// someKeepers waits until there are n keepers: the log comes later than answers.
func (r *rig) someKeepers(n int) (list []int) {
	r.Helper()
	r.eventually(fmt.Sprint(n, " keepers"), func() bool { list = r.keepers(); return len(list) == n })
	return list
}

// killDaemon kills a daemon whose keepers go on, and closes its standard error. At the end
// it kills what is left of the service, as systemd does.
func (r *rig) killDaemon() {
	r.Helper()
	r.Cleanup(func() {
		for _, pid := range r.keepers() {
			_ = unix.Kill(pid, unix.SIGKILL)
		}
	})
	r.eventually("the manifest has the entry", func() bool {
		b, _ := os.ReadFile(r.path("state/manifest.toml"))
		return strings.Contains(string(b), "[[entry]]")
	})
	r.cmd.WaitDelay = 10 * time.Millisecond
	r.kill()
}

func (r *rig) oneKeeper() int {
	r.Helper()
	return r.someKeepers(1)[0]
}

// stopWhole stops the daemon, which ends the keepers and frees their memory.
func (r *rig) stopWhole() {
	r.Helper()
	r.stop()
	if list := r.keepers(); len(list) != 0 || r.used(r.uuid) != 0 {
		r.Errorf("keepers %v are left, and %d bytes", list, r.used(r.uuid))
	}
}

// Every tensor has the bytes of vLLM's own loader, for each engine and each model,
// and each model has a keeper.
func testKeeperServes(t *testing.T, dir string) {
	r := legacyRig(t, dir)
	r.set("FAKE_CUDA_NO_VMM", "1")
	r.serve("0")
	first, second, again := r.gets("llama-tp1r0"), r.gets("llama-tp2r1"), r.gets("llama-tp1r0")
	s := r.status()
	if s.Counts.Loads != 2 || s.Counts.Hits != 1 || len(s.Entries) != 2 || s.Bytes != 2*2<<20 || r.used(r.uuid) != 2*2<<20 {
		t.Errorf("%d entries of %d bytes, %d in use, %+v", len(s.Entries), s.Bytes, r.used(r.uuid), s.Counts)
	}
	r.someKeepers(2)
	for _, p := range []*gpuProcess{first, second, again} {
		p.end()
	}
	r.stopWhole()
}

// If a keeper dies, its entry goes at once, and the next engine makes the model load again.
func testKeeperKilled(t *testing.T, dir string) {
	r := legacyRig(t, dir)
	r.serve("0")
	r.gets("llama-tp1r0").end()
	must(t, unix.Kill(r.oneKeeper(), unix.SIGKILL))
	r.eventually("the entry is dropped", func() bool { return len(r.status().Entries) == 0 })
	r.free()
	r.gets("llama-tp1r0").end()
	if c := r.status().Counts; c.Loads != 2 || c.Hits != 0 {
		t.Errorf("counts %+v", c)
	}
}

// The record of engines that have the entry mapped goes too: there is no memory left to
// keep for them.
func testKeeperKilledUnderEngine(t *testing.T, dir string) {
	r := legacyRig(t, dir)
	r.serve("0")
	p := r.gets("llama-tp1r0")
	must(t, unix.Kill(r.oneKeeper(), unix.SIGKILL))
	r.eventually("the entry is dropped", func() bool { return len(r.status().Entries) == 0 })
	p.end()
	r.free()
}

// A keeper stays until the last engine of an evicted entry has ended.
func testKeeperEvicted(t *testing.T, dir string) {
	r := legacyRig(t, dir)
	r.serve("0")
	r.gets("llama-tp1r0").end()
	pid := r.oneKeeper()
	r.eventually("the entry can be evicted", func() bool {
		cmd := r.command("/proc/self/exe")
		cmd.Args, cmd.Stderr = []string{"wcache", "--socket", r.socket, "evict", "--all"}, nil
		return cmd.Run() == nil
	})
	r.eventually("the keeper ends", func() bool { return ended(pid) })
	r.free()
}

func testKeeperStop(t *testing.T, dir string) {
	r := legacyRig(t, dir)
	r.serve("0")
	p := r.gets("llama-tp1r0")
	r.stop()
	if list := r.keepers(); len(list) != 0 {
		t.Errorf("keepers %v are left", list)
	}
	p.end()
}

// A driver that hangs while freeing memory blocks no request.
func testKeeperStopHang(t *testing.T, dir string) {
	r := legacyRig(t, dir)
	r.faults("FAKE_CUDA_FAIL=cuMemFree_v2:1:hang,cuDevicePrimaryCtxRelease_v2:1:hang")
	r.serve("0")
	r.gets("llama-tp1r0").end()
	r.stopWhole()
}

// Without a service manager only the daemon holds the memory.
func testKeeperDaemonKilled(t *testing.T, dir string) {
	r := legacyRig(t, dir)
	r.serve("0")
	r.gets("llama-tp1r0").end()
	pid := r.oneKeeper()
	r.kill()
	r.eventually("the keeper ends", func() bool { return ended(pid) })
}

// A keeper outlives the daemon if the manager holds its descriptor, and the next daemon finds
// it again, if the manager didn't kill it.
func testKeeperRestart(t *testing.T, dir string) {
	r := legacyRig(t, dir)
	r.managed(100)
	r.serve("0")
	r.gets("llama-tp1r0").end()
	pid := r.oneKeeper()
	r.killDaemon()
	r.serve("0")
	r.gets("llama-tp1r0").end()
	if c := r.status().Counts; c.Loads != 0 || c.Hits != 1 {
		t.Errorf("counts %+v: it was not served from memory", c)
	}
	// It isn't this daemon's child, so the next request notices its end.
	must(t, unix.Kill(pid, unix.SIGKILL))
	r.eventually("the memory goes", func() bool { return r.used(r.uuid) == 0 })
	r.gets("llama-tp1r0").end()
	if c := r.status().Counts; c.Loads != 1 || c.Hits != 1 {
		t.Errorf("counts %+v", c)
	}
}

// systemd kills the rest of the service before the next daemon starts, which then says why
// it drops the entry.
func testKeeperRestartKilled(t *testing.T, dir string) {
	r := legacyRig(t, dir)
	r.managed(100)
	r.serve("0")
	r.gets("llama-tp1r0").end()
	pid := r.oneKeeper()
	r.killDaemon()
	must(t, unix.Kill(pid, unix.SIGKILL))
	r.eventually("the memory goes", func() bool { return r.used(r.uuid) == 0 })
	r.serve("0")
	if s := r.status(); len(s.Entries) != 0 {
		t.Errorf("entries are %+v", s.Entries)
	}
	r.says(`reason="the process that kept it has ended"`)
	r.gets("llama-tp1r0").end()
}

// Memory in a form that the configuration doesn't ask for any more is not served.
func testKeeperReload(t *testing.T, dir string) {
	r := legacyRig(t, dir)
	r.serve("0")
	r.gets("llama-tp1r0").end()
	pid := r.oneKeeper()
	r.handles("mapped")
	must(t, r.cmd.Process.Signal(unix.SIGHUP))
	r.says("configuration read again")
	r.gets("llama-tp1r0").end()
	if c := r.status().Counts; c.Loads != 2 {
		t.Errorf("counts %+v", c)
	}
	r.eventually("the keeper ends", func() bool { return ended(pid) })
	if n := r.used(r.uuid); n != 2<<20 {
		t.Errorf("%d bytes are in use", n)
	}
}

// A load that fails at one of its own calls leaves nothing.
func testKeeperFaults(t *testing.T, dir string) {
	r := legacyRig(t, dir)
	r.serve("0")
	for fault, want := range map[string]string{
		"cuMemAlloc_v2:1:801":       "allocate 2097152 bytes of GPU …: cuMemAlloc: CUDA_ERROR_NOT_SUPPORTED…",
		"cuIpcGetMemHandle:1:801":   "seal segment of GPU …: cuIpcGetMemHandle: CUDA_ERROR_NOT_SUPPORTED…",
		"cuStreamSynchronize:1:214": "…cuStreamSynchronize: CUDA_ERROR_ECC_UNCORRECTABLE…",
	} {
		r.faults("FAKE_CUDA_FAIL=" + fault)
		r.refused("error: load model: " + want)
		r.free()
	}
	r.faults("")
	r.gets("llama-tp1r0").end()
}

// hipRig is a machine with two AMD GPUs.
func hipRig(t *testing.T) *rig {
	dir := t.TempDir()
	if _, err := fake.BuildHIP(dir); err != nil {
		t.Fatal(err)
	}
	r := newRig(t, dir, newUUID("GPU"), newUUID("GPU"))
	for _, pci := range []string{"0000:01:00.0", "0000:02:00.0"} {
		must(t, os.MkdirAll(filepath.Join(r.path("root"), "sys/bus/pci/drivers/amdgpu", pci), 0o700))
	}
	for _, name := range []string{"HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "GPU_DEVICE_ORDINAL", "CUDA_VISIBLE_DEVICES"} {
		r.set(name, "none")
	}
	return r
}

func testHIP(t *testing.T, _ string) {
	for name, number := range map[string]int{"hip:0": 0, "hip:1": 1, "hip:0000:02:00.0": 1} {
		r := hipRig(t)
		pci := fmt.Sprintf("0000:%02x:00.0", number+1)
		r.set(envHIP, pci)
		gpus := strings.Split(os.Expand("$FAKE_CUDA_GPUS", func(v string) string {
			for _, x := range r.env {
				if value, ok := strings.CutPrefix(x, v+"="); ok {
					return value
				}
			}
			return ""
		}), ",")
		r.uuid, _, _ = strings.Cut(gpus[len(gpus)-1-number], "@")
		r.serve(name)
		p := r.gets("llama-tp1r0")
		if s := r.status(); s.Device.Kind != "hip:"+pci || s.Device.UUID != "" || r.used(r.uuid) != 2<<20 {
			t.Errorf("%s: %+v, %d bytes in use", name, s.Device, r.used(r.uuid))
		}
		r.oneKeeper()
		p.end()
		r.verify(0, verifyEqual)
		r.stopWhole()
	}
}

func testHIPNone(t *testing.T, dir string) {
	for name, want := range map[string]string{
		"hip:2":            `error: find GPU "hip:2": /sys/bus/pci/drivers/amdgpu has 2 GPUs, none of this name: 0000:01:00.0, 0000:02:00.0`,
		"hip:0000:03:00.0": `error: find GPU "hip:0000:03:00.0": /sys/bus/pci/drivers/amdgpu has 2 GPUs, none of this name: …`,
	} {
		r := hipRig(t)
		r.serve(name)
		r.refused(want)
	}
	r := hipRig(t)
	r.set("LD_LIBRARY_PATH", dir) // where there is CUDA and no HIP
	r.serve("hip:0")
	r.refused("error: load model: open device \"hip:0000:01:00.0\": load GPU driver: libamdhip64.so: …; install ROCm's HIP runtime, …")
}
