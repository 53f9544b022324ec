// SPDX-FileCopyrightText: The wcache authors
// SPDX-License-Identifier: MIT

package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/wcache/wcache/device/cuda/fake"
)

// smi and missing are the advice for a load that failed on a GPU, and for a driver that
// can't be used.
const (
	smi     = " (see the service's log, and on a GPU nvidia-smi)"
	missing = " (wcache doctor looks for what is missing)"
)

// Without a driver that can be used the service is up, and says what to do.
func testDrivers(t *testing.T, dir string) {
	broken, old := t.TempDir(), t.TempDir()
	must(t, os.WriteFile(filepath.Join(broken, "libcuda.so.1"), nil, 0o600))
	_, err := fake.Build(old, "cuMemExportToShareableHandle")
	must(t, err)
	for _, c := range []struct{ libraries, faults, want string }{
		{broken, "", "load GPU driver: …libcuda.so.1: file too short; install the NVIDIA driver, or start the container with its GPUs (nvidia-container-toolkit)"},
		{old, "", "load GPU driver: libcuda.so.1: …cuMemExportToShareableHandle…; update the NVIDIA driver to 470 or later"},
		{dir, "FAKE_CUDA_VERSION=11030", "load GPU driver: libcuda.so.1: it is for CUDA 11.3; update the NVIDIA driver to 470 or later"},
		{dir, "FAKE_CUDA_FAIL=cuInit:1:100", "load GPU driver: libcuda.so.1: cuInit: CUDA_ERROR_NO_DEVICE; no GPU is visible: …"},
		{dir, "FAKE_CUDA_FAIL=cuInit:1:802", "load GPU driver: libcuda.so.1: cuInit: CUDA_ERROR_SYSTEM_NOT_READY; the GPUs are still being set up: is nvidia-fabricmanager running?"},
		{dir, "FAKE_CUDA_FAIL=cuInit:1:999", "load GPU driver: libcuda.so.1: cuInit: CUDA_ERROR_UNKNOWN; …"},
	} {
		r := newRig(t, dir)
		r.set("LD_LIBRARY_PATH", c.libraries+":"+dir)
		r.faults(c.faults)
		r.serve("0")
		r.refused("error: load model: open device " + strconv.Quote(r.uuid) + ": " + c.want + missing)
		r.free()
		r.stop()
	}
}

// A driver that was updated while in use keeps the held memory but opens no GPU any more.
func testDriverUpdated(t *testing.T, dir string) {
	r := newRig(t, dir)
	r.serve("0")
	r.gets("llama-tp1r0").end()
	r.faults("FAKE_CUDA_FAIL=cuInit:1:803")
	r.nvml("init 18")
	const restart = "the driver was updated while it was in use: restart the machine, which frees what all instances hold, or load its kernel modules anew when nothing uses it"
	r.eventually("the status says so", func() bool {
		s := r.status()
		return s.GPU != nil && s.GPU.State == "unknown" && len(s.Problems) == 1 && strings.HasSuffix(s.Problems[0], restart) && len(s.Entries) == 1
	})
	_, answer := r.ask("0.33.0-get_state-llama-tp2r1")
	r.like(answer, `error: load model: open device …: load GPU driver: libcuda.so.1: cuInit: CUDA_ERROR_SYSTEM_DRIVER_MISMATCH; the driver was updated while its old kernel module stays loaded: restart the machine, which frees what all instances hold`+missing)
	if s := r.status(); len(s.Entries) != 1 || s.Counts.Loads != 1 {
		t.Errorf("left are %+v", s.Entries)
	}
}

// A load waits a little for a GPU that another program has filled, and the engine's error
// says which processes hold the memory.
func testTenantBefore(t *testing.T, dir string) {
	r := newRig(t, dir)
	r.set("FAKE_CUDA_TOTAL", strconv.Itoa(64<<20))
	pid, end := r.tenant(0)
	comm, err := os.ReadFile(fmt.Sprintf("/proc/%d/comm", pid))
	must(t, err)
	r.nvml(fmt.Sprintf("gpu %s\ntotal 64\nused 64\nprocess %d 60\nprocess 1234567 1\n", r.uuid, pid))
	r.serve("0")
	r.refused(fmt.Sprintf("error: load model: allocate 210176 bytes: only 0 are free, and there was no more within 1.5s; "+
		"64.0 MiB of 64.0 MiB are used: %s (pid %d) 60.0 MiB, a process (pid 1234567) 1.0 MiB, 3.0 MiB of no process (wcache evict frees what is held; all other memory belongs to other programs)",
		strings.TrimSpace(string(comm)), pid))
	end()
	r.free()
	r.gets("llama-tp1r0").end()
}

// A load that waits says so, and goes on when the other program has ended.
func testTenantLeaves(t *testing.T, dir string) {
	r := newRig(t, dir)
	r.configure("load_timeout = \"5m\"\nmemory_wait = \"5m\"\n")
	r.set("FAKE_CUDA_TOTAL", strconv.Itoa(64<<20))
	_, end := r.tenant(0)
	r.serve("0")
	answered := r.asking(llama)
	r.eventually("the status says that it is waited", func() bool {
		s := r.status()
		return len(s.Entries) == 1 && s.Entries[0].Progress != nil && s.Entries[0].Progress.Waiting == "210176 bytes, of which 0 are free"
	})
	r.says("waiting for memory of the device")
	end()
	r.like(<-answered, "ok …")
}

// On a GPU that other programs fill, unused weights make room for a requested model.
func testMakesRoom(t *testing.T, dir string) {
	r := newRig(t, dir)
	r.set("FAKE_CUDA_TOTAL", strconv.Itoa(64<<20))
	r.tenant(4 << 20)
	r.serve("0")
	r.gets("llama-tp1r0").end()
	r.eventually("nobody is attached", func() bool { return len(r.status().Entries[0].Engines) == 0 })
	r.gets("llama-tp2r1").end()
	r.eventually("nobody is attached", func() bool { return len(r.status().Entries[1].Engines) == 0 })
	r.gets("qwen2-tp1r0").end()
	s := r.status()
	if len(s.Entries) != 2 || s.Entries[0].Fingerprint.Int("tp_size", 0) != 2 {
		t.Errorf("left are %+v", s.Entries)
	}
}

// If another program takes the memory after the check of free memory and before the
// allocation, or leaves too little for the load's own needs, the error is just as clear.
func testTenantDuring(t *testing.T, dir string) {
	r := newRig(t, dir)
	r.nvml("gpu " + r.uuid + "\ntotal 100\nused 60\nprocess 1234567 60")
	r.serve("0")
	r.faults("FAKE_CUDA_FAIL=cuStreamCreate:1:2")
	r.refused("error: load model: …cuStreamCreate: CUDA_ERROR_OUT_OF_MEMORY" + smi)
	r.free()
	r.faults("FAKE_CUDA_FAIL=cuMemCreate:1:2")
	r.refused("error: load model: allocate 2097152 bytes: the device has refused, though 17179869184 are free, and there was no more within 1.5s; " +
		"60.0 MiB of 100.0 MiB are used: a process (pid 1234567) 60.0 MiB (wcache evict frees what is held; all other memory belongs to other programs)")
	r.free()
	r.faults("")
	r.gets("llama-tp1r0").end()
}

// A loader that is killed, at any point, leaves only an error.
func testLoaderKilled(t *testing.T, dir string) {
	r := newRig(t, dir)
	r.serve("0")
	for _, call := range []string{
		"cuInit:1", "cuDevicePrimaryCtxRetain:1", "cuMemCreate:1", "cuMemSetAccess:1", "cuMemHostRegister_v2:1", "cuMemcpyHtoDAsync_v2:1", "cuMemcpyHtoDAsync_v2:5",
		"cuStreamSynchronize:1", "cuMemExportToShareableHandle:1",
	} {
		r.faults("FAKE_CUDA_FAIL=" + call + ":kill")
		r.refused("error: load model: the loader ended early: signal: killed" + smi)
		r.free()
		if t.Failed() {
			t.Fatalf("killed at %s", call)
		}
	}
	r.faults("")
	r.gets("llama-tp1r0").end()
}

// A loader that hangs is ended in time, which frees its memory.
func testLoaderHangs(t *testing.T, dir string) {
	r := newRig(t, dir)
	r.configure("load_timeout = \"700ms\"\n")
	r.serve("0")
	for _, call := range []string{"cuInit:1", "cuMemcpyHtoDAsync_v2:2", "cuCtxSynchronize:1"} {
		r.faults("FAKE_CUDA_FAIL=" + call + ":hang")
		r.refused("error: load model: it took longer than 700ms (load_timeout in wcache.toml allows more…)")
		r.free()
	}
	r.faults("")
	r.configure("")
	must(t, r.cmd.Process.Signal(unix.SIGHUP))
	r.says("configuration read again")
	r.gets("llama-tp1r0").end()
}

// A full fd store is reported before anything is loaded, with the number needed.
func testStoreFull(t *testing.T, dir string) {
	r := newRig(t, dir)
	r.managed(3)
	r.serve("0")
	p := r.gets("llama-tp1r0")
	r.faults("FAKE_CUDA_FAIL=cuInit:1:kill") // no loader is started
	_, answer := r.ask("0.33.0-get_state-llama-tp2r1")
	r.like(answer, "error: make room: keep descriptors: 5 are needed and FileDescriptorStoreMax=3: raise it in a drop-in (systemctl --user edit wcache@.service)")
	p.end()
}

func testFewFiles(t *testing.T, dir string) {
	r := newRig(t, dir)
	r.managed(1000)
	r.set(envFiles, "65")
	r.serve("0")
	r.faults("FAKE_CUDA_FAIL=cuInit:1:kill")
	r.refused("error: make room: … are needed and the limit … is 65: raise LimitNOFILE= in a drop-in…")
	r.stop()
	r.set(envFiles, "40") // without a store the load itself needs some
	r.set("FDSTORE", "0")
	r.serve("0")
	r.refused("error: make room: … open files are needed and the limit is 40: raise LimitNOFILE= …")
}

// Weights outlive the daemon, also with an engine attached.
func testRestart(t *testing.T, dir string) {
	r := newRig(t, dir)
	r.managed(16)
	r.serve("0")
	p := r.gets("llama-tp1r0")
	r.eventually("the manifest has the engine", func() bool {
		b, _ := os.ReadFile(r.path("state/manifest.toml"))
		return strings.Contains(string(b), fmt.Sprintf("pid = %d", p.Process.Pid))
	})
	for range 2 {
		r.kill()
		r.faults("FAKE_CUDA_FAIL=cuInit:1:kill") // nothing is loaded again
		r.serve("0")
		q := r.gets("llama-tp1r0")
		s := r.status()
		if s.Counts.Loads != 0 || s.Counts.Hits != 1 || len(s.Entries) != 1 || len(s.Entries[0].Engines) != 2 || r.used(r.uuid) != 2<<20 {
			t.Errorf("%+v, %+v", s.Counts, s.Entries)
		}
		q.end()
		r.eventually("that engine is gone", func() bool { return len(r.status().Entries[0].Engines) == 1 })
	}
	if sums := p.read(r); strings.Join(sums, "\n") != strings.Join(p.sums, "\n") {
		t.Error("the engine reads other values")
	}
	p.end()
}

// A descriptor that isn't the stored one is not served, even if it is memory of this GPU
// with the right size.
func testForeign(t *testing.T, dir string) {
	r := newRig(t, dir)
	r.managed(16)
	r.serve("0")
	p := r.gets("llama-tp1r0")
	p.end()
	q := r.gets("llama-tp2r1")
	q.end()
	r.eventually("the store and the manifest have both", func() bool {
		b, _ := os.ReadFile(r.path("state/manifest.toml"))
		return r.manager.names() == "s- s- t- t-" && strings.Count(string(b), "[[entry]]\n") == 2
	})
	r.kill()
	r.manager.swap("s-")
	r.serve("0")
	if s := r.status(); len(s.Entries) != 0 {
		t.Errorf("served are %+v", s.Entries)
	}
	r.eventually("the log says why", func() bool { return strings.Count(r.log.String(), "reason=\"it is the file") == 2 })
	r.free()
	r.gets("llama-tp1r0").end()
}
