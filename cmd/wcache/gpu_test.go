// SPDX-FileCopyrightText: The wcache authors
// SPDX-License-Identifier: MIT

package main

import (
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// TestGPU is the whole path of a GPU instance, on a machine whose drivers are small
// programs: the command, the loader that it starts, engines that map what they are
// given, and other tenants, each in its own process. The names of cases are those of
// the project's list of what went wrong elsewhere.
func TestGPU(t *testing.T) {
	dir := drivers(t)
	for name, test := range map[string]func(*testing.T, string){
		"serves":                      testServes,
		"evicts under an engine":      testEvicts,
		"load faults":                 testFaults,
		"D1 visible devices":          testVisibleDevices,
		"D1 names":                    testNames,
		"D2 MIG slices":               testSlices,
		"T20 a GPU that is cut":       testCut,
		"T14 WSL2":                    testWSL,
		"D3 drivers":                  testDrivers,
		"D3 driver updated":           testDriverUpdated,
		"D4 tenant before":            testTenantBefore,
		"D4 tenant leaves":            testTenantLeaves,
		"D4 own entries make room":    testMakesRoom,
		"D4 tenant during":            testTenantDuring,
		"D5 lost":                     testLost,
		"D5 reset required":           testResetRequired,
		"D5 memory errors":            testMemoryErrors,
		"D5 lost with a keeper":       testLostKept,
		"D5 lost in mid-load":         testLostInLoad,
		"D5 hangs":                    testHangs,
		"D5 memory errors while away": testErrorsWhileAway,
		"D8 dropped privileges":       testDroppedPrivileges,
		"S1 restart":                  testRestart,
		"S1 foreign descriptor":       testForeign,
		"S2 loader killed":            testLoaderKilled,
		"S2 loader hangs":             testLoaderHangs,
		"S5 fd store full":            testStoreFull,
		"S5 too few open files":       testFewFiles,
		"status":                      testStatusGPU,
		"the daemon opens no driver":  testNoDriverInDaemon,
	} {
		t.Run(strings.ReplaceAll(name, " ", "_"), func(t *testing.T) {
			t.Parallel()
			test(t, dir)
		})
	}
}

// Every tensor that an engine maps has the bytes of vLLM's own loader. The GPU holds only
// the weights, and nothing after the daemon has ended.
func testServes(t *testing.T, dir string) {
	r := newRig(t, dir)
	r.serve("0")
	first := r.gets("llama-tp1r0")
	second := r.gets("llama-tp2r1")
	if n := r.used(r.uuid); n != 2*2<<20 {
		t.Errorf("%d bytes of the GPU are in use", n)
	}
	again := r.gets("llama-tp1r0")
	s := r.status()
	if s.Counts.Loads != 2 || s.Counts.Hits != 1 || len(s.Entries) != 2 || s.Bytes != 2*2<<20 {
		t.Errorf("%d entries of %d bytes, %+v", len(s.Entries), s.Bytes, s.Counts)
	}
	for _, p := range []*gpuProcess{first, second, again} {
		p.end()
	}
	r.stop()
	r.eventually("the GPU's memory is free", func() bool { return r.used(r.uuid) == 0 })
}

// An engine still reads the right values after its memory was evicted.
func testEvicts(t *testing.T, dir string) {
	r := newRig(t, dir)
	r.serve("0")
	p := r.gets("llama-tp1r0")
	exits := func(args ...string) string {
		cmd := r.command("/proc/self/exe")
		cmd.Args, cmd.Stderr = append([]string{"wcache", "--socket", r.socket, "evict"}, args...), nil
		out, _ := cmd.CombinedOutput() // what it says tells how it ended
		return string(out)
	}
	r.like(exits("--all"), fmt.Sprintf("wcache: error: evict entry …: it may still be mapped by … (pid %d)\n…", p.Process.Pid))
	exits("--all", "--force")
	if s := r.status(); len(s.Entries) != 0 {
		t.Errorf("left are %+v", s.Entries)
	}
	if sums := p.read(r); strings.Join(sums, "\n") != strings.Join(p.sums, "\n") {
		t.Error("the engine reads other values")
	}
	p.end()
	r.free()
}

// Whichever call fails, at any point of a load: the engine gets the call and advice, nothing
// is left, and the next engine gets the weights.
func testFaults(t *testing.T, dir string) {
	r := newRig(t, dir)
	r.serve("0")
	for fault, want := range map[string]string{
		"cuInit:1:999":                       "open device …: load GPU driver: libcuda.so.1: cuInit: CUDA_ERROR_UNKNOWN; …" + missing,
		"cuDeviceGetCount:1:100":             "open device …: list GPUs: cuDeviceGetCount: CUDA_ERROR_NO_DEVICE" + missing,
		"cuDevicePrimaryCtxRetain:1:46":      "open device …: make a context on GPU …: cuDevicePrimaryCtxRetain: CUDA_ERROR_DEVICE_UNAVAILABLE" + missing,
		"cuMemGetInfo_v2:1:700":              "ask free memory of GPU …: cuMemGetInfo: CUDA_ERROR_ILLEGAL_ADDRESS" + smi,
		"cuMemCreate:1:801":                  "allocate 2097152 bytes of GPU …: cuMemCreate: CUDA_ERROR_NOT_SUPPORTED" + smi,
		"cuMemAddressReserve:1:1":            "allocate 2097152 bytes of GPU …: cuMemAddressReserve: CUDA_ERROR_INVALID_VALUE" + smi,
		"cuMemMap:1:205":                     "allocate 2097152 bytes of GPU …: cuMemMap: CUDA_ERROR_MAP_FAILED" + smi,
		"cuMemSetAccess:1:800":               "allocate 2097152 bytes of GPU …: cuMemSetAccess: CUDA_ERROR_NOT_PERMITTED" + smi,
		"cuStreamCreate:1:700":               "…cuStreamCreate: CUDA_ERROR_ILLEGAL_ADDRESS…" + smi,
		"cuMemcpyHtoDAsync_v2:2:719":         "…cuMemcpyHtoDAsync: CUDA_ERROR_LAUNCH_FAILED…" + smi,
		"cuStreamSynchronize:1:214":          "…cuStreamSynchronize: CUDA_ERROR_ECC_UNCORRECTABLE…" + smi,
		"cuCtxSynchronize:1:702":             "seal segment of GPU …: cuCtxSynchronize: CUDA_ERROR_LAUNCH_TIMEOUT" + smi,
		"cuMemExportToShareableHandle:1:801": "seal segment of GPU …: cuMemExportToShareableHandle: CUDA_ERROR_NOT_SUPPORTED" + smi,
		"cuMemUnmap:1:700":                   "seal segment of GPU …: cuMemUnmap: CUDA_ERROR_ILLEGAL_ADDRESS; …" + smi,
	} {
		r.faults("FAKE_CUDA_FAIL=" + fault)
		r.refused("error: load model: " + want)
		if t.Failed() {
			t.Fatalf("with the fault %s", fault)
		}
		r.free()
	}
	r.faults("FAKE_CUDA_NO_VMM=1")
	r.refused("error: load model: open device …: its driver can't export memory as a descriptor; handles = \"legacy\" in wcache.toml needs none" + missing)
	r.free()
	r.faults("")
	r.gets("llama-tp1r0").end()
}

// An instance's number is nvidia-smi's, in bus order, whatever order CUDA has and whatever
// choice of GPUs the service inherits.
func testVisibleDevices(t *testing.T, dir string) {
	gpus := []string{newUUID("GPU"), newUUID("GPU"), newUUID("GPU")}
	for _, visible := range []string{
		"", "2,1,0", "1", gpus[2] + "," + gpus[0], gpus[0][:len("GPU-")+13] + "," + gpus[2], "none",
	} {
		for _, order := range []string{"FASTEST_FIRST", "PCI_BUS_ID"} {
			r := newRig(t, dir, gpus...)
			r.uuid = gpus[1]
			r.nvml("gpu " + r.uuid)
			r.set("CUDA_DEVICE_ORDER", order)
			if visible != "" {
				r.set("CUDA_VISIBLE_DEVICES", visible)
			}
			r.serve("1")
			p := r.gets("llama-tp1r0")
			if a, b, c := r.used(gpus[0]), r.used(gpus[1]), r.used(gpus[2]); a != 0 || b != 2<<20 || c != 0 {
				t.Errorf("with CUDA_VISIBLE_DEVICES=%s in the order %s the GPUs have %d, %d and %d bytes", visible, order, a, b, c)
			}
			if got := r.status(); got.Device.UUID != gpus[1] || got.Device.Kind != gpus[1] {
				t.Errorf("status names %+v", got.Device)
			}
			p.end()
			r.stop()
		}
	}
}

// A GPU has one name, its uuid. A short form works if it is unique, and otherwise nothing is
// served.
func testNames(t *testing.T, dir string) {
	one, two := newUUID("GPU"), newUUID("GPU") // they differ from the thirteenth digit on
	serve := func(name string) *rig {
		r := newRig(t, dir, one, two)
		r.nvml("gpu " + one + "\ngpu " + two)
		r.serve(name)
		return r
	}
	for name, uuid := range map[string]string{"0": one, "1": two, two: two, one[:20]: one, two[:20]: two} {
		r := serve(name)
		p := r.gets("llama-tp1r0")
		if got := r.status().Device.UUID; got != uuid || r.used(uuid) != 2<<20 {
			t.Errorf("%s is %s, not %s", name, got, uuid)
		}
		p.end()
		r.stop()
	}
	all := fmt.Sprintf("0 (%s), 1 (%s)", one, two)
	for name, want := range map[string]string{
		"2":       `error: find GPU "2": /proc/driver/nvidia has 2 GPUs, 0 of this name: ` + all + " (an instance is named by one of these)",
		one[:13]:  fmt.Sprintf("error: find GPU %q: /proc/driver/nvidia has 2 GPUs, 2 of this name: %s (an instance is named by one of these)", one[:13], all),
		"GPU-":    `error: find GPU "GPU-": …`,
		"MIG-123": `error: find GPU "MIG-123": a MIG slice has to be named by its whole uuid, which nvidia-smi -L shows`,
	} {
		r := serve(name)
		r.refused(want)
		if s := r.status(); len(s.Problems) != 1 || !strings.HasPrefix(s.Problems[0], "find GPU") {
			t.Errorf("problems are %q", s.Problems)
		}
	}
}

// Two slices of one GPU are two separate devices, and neither is the whole GPU.
func testSlices(t *testing.T, dir string) {
	one, two := newUUID("MIG"), newUUID("MIG")
	a, b := newRig(t, dir, one, two), newRig(t, dir, one, two)
	b.uuid = two
	for _, r := range []*rig{a, b} {
		r.nvml("gpu GPU-whole\necc 0\nslice " + one + "\ntotal 1000\nused 2\nslice " + two + "\ntotal 2000\nused 4")
		r.serve(r.uuid)
	}
	p := a.gets("llama-tp1r0")
	if x, y := a.used(one), a.used(two); x != 2<<20 || y != 0 {
		t.Errorf("the slices have %d and %d bytes", x, y)
	}
	q := b.gets("llama-tp2r1")
	if x, y := a.used(one), a.used(two); x != 2<<20 || y != 2<<20 {
		t.Errorf("the slices have %d and %d bytes", x, y)
	}
	if g := a.seen("ok").GPU; g.UUID != one || g.Total != 1000<<20 || g.Index != -1 || g.State != "ok" {
		t.Errorf("status says %+v", g)
	}
	if g := b.seen("ok").GPU; g.UUID != two || g.Total != 2000<<20 {
		t.Errorf("status says %+v", g)
	}
	p.end()
	q.end()
}

// A GPU that is cut into slices is not a device; if the unit's environment hides the slices
// from the driver, it shows none. Both errors list the existing slices.
func testCut(t *testing.T, dir string) {
	slices := newUUID("MIG") + ", " + newUUID("MIG")
	one, two, _ := strings.Cut(slices, ", ")
	for _, shown := range []string{"GPU-other@02", one + "@01"} {
		r := newRig(t, dir)
		r.set("FAKE_CUDA_GPUS", shown)
		r.nvml("gpu " + r.uuid + "\necc 0\nslice " + one + "\nslice " + two)
		r.serve("0")
		r.refused(fmt.Sprintf("error: …open GPU %s: it is cut into slices, which are instances of their own: %s…", r.uuid, slices))
		r.socket = r.path("vllm_weight_cache/0.sock") // is not looked at
		want := fmt.Sprintf("fail   MIG                 the GPU is cut into slices, and engines run on those: %s   -> enable an instance for each slice that engines use: systemctl --user enable --now wcache@%s.socket\n", slices, one)
		if got := r.typed("doctor"); !strings.Contains(got, want) || strings.Contains(got, "no GPU is visible") {
			t.Errorf("doctor says\n%swant %s", got, want)
		}
	}
}

// On WSL2 the driver of Windows shows nothing in /proc, and advice for Linux doesn't help.
func testWSL(t *testing.T, dir string) {
	r := newRig(t, dir)
	must(t, os.RemoveAll(r.path("root/proc/driver")), os.MkdirAll(r.path("root/proc/sys/kernel"), 0o700),
		os.WriteFile(r.path("root/proc/sys/kernel/osrelease"), []byte("5.15.167.4-microsoft-standard-WSL2\n"), 0o600))
	r.serve("0")
	r.refused(`error: find GPU "0": /proc/driver/nvidia has 0 GPUs, 0 of this name:  (this is WSL2, where the GPU is Windows's and its memory can't be shared: use the host's, wcache@host.socket)`)
}

// The daemon maps no library of the driver and has no file of it open, whatever it
// is asked.
func testNoDriverInDaemon(t *testing.T, dir string) {
	r := newRig(t, dir)
	r.serve("0")
	p := r.gets("llama-tp1r0")
	r.eventually("the GPU is looked at", func() bool { return r.status().GPU != nil })
	maps, err := os.ReadFile(fmt.Sprintf("/proc/%d/maps", r.cmd.Process.Pid))
	must(t, err)
	for _, name := range []string{"libcuda", "libnvidia"} {
		if strings.Contains(string(maps), name) {
			t.Errorf("the daemon maps %s", name)
		}
	}
	p.end()
}

// A daemon that isn't dumpable at its start, as after a change of its user, still lends its
// descriptors.
func testDroppedPrivileges(t *testing.T, dir string) {
	if os.Getuid() != 0 {
		t.Skip("only root starts processes of other users, and .ci/run is root; the rest is tried as this one")
	}
	r := newRig(t, dir)
	self, err := os.Executable()
	must(t, err)
	// A program that its user can't read runs as not dumpable: prctl(2). Another process
	// writes the file: a child forked here could have it open for writing when it is to be
	// run.
	program := r.path("wcache")
	must(t, exec.Command("cp", self, program).Run(), os.Chmod(program, 0o711))
	const nobody = 65534
	must(t, filepath.WalkDir(r.dir, func(path string, _ os.DirEntry, err error) error {
		if path == program || err != nil {
			return err
		}
		return os.Lchown(path, nobody, nobody)
	}))
	r.program, r.user = program, nobody
	cat := r.command("cat")
	cat.Args = append(cat.Args, "../../testdata/wire/"+llama+".bin", filepath.Join(dir, "libcuda.so.1"))
	if err := cat.Run(); err != nil {
		t.Skipf("another user can't reach the test's files here: %v; the rest is tried as this one", err)
	}
	r.serve("0")
	r.gets("llama-tp1r0").end()
	owner := func(pid int) uint32 {
		var st unix.Stat_t
		must(t, unix.Stat(fmt.Sprintf("/proc/%d/fd", pid), &st))
		return st.Uid
	}
	if got := owner(r.cmd.Process.Pid); got != nobody { // root's while it isn't dumpable: proc(5)
		t.Errorf("the daemon isn't dumpable: its /proc/PID/fd is of user %d", got)
	}
}

// tenant is another program that holds all of a GPU's memory except some bytes, until end
// is called.
func (r *rig) tenant(but int64) (pid int, end func()) {
	r.Helper()
	cmd := r.command("/proc/self/exe")
	cmd.Args = []string{"tenant", r.uuid, fmt.Sprint(but)}
	in, err := cmd.StdinPipe()
	must(r.T, err)
	out, err := cmd.StdoutPipe()
	must(r.T, err, cmd.Start())
	ended := false
	end = func() {
		if !ended {
			ended = true
			_ = in.Close()
			_ = cmd.Wait()
		}
	}
	r.Cleanup(end)
	if _, err := io.ReadFull(out, make([]byte, len("taken\n"))); err != nil {
		r.Fatal(err)
	}
	return cmd.Process.Pid, end
}
