// SPDX-FileCopyrightText: The wcache authors
// SPDX-License-Identifier: MIT

package doctor

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/wcache/wcache/config"
	"github.com/wcache/wcache/systemd/generator"
)

// gpuChecks are all checks of the instance's GPU. Without a driver or the GPU, the later
// checks are left out.
func (m *Machine) gpuChecks(ctx context.Context, s service, running *Daemon, handles string) []Result {
	g := generator.Read(m.path(), m.UID, m.Env)
	nodes := m.deviceNodes(g, s)
	if g.WSL && nodes.State == Fail {
		return []Result{nodes} // there is nothing else to check
	}
	gpu, instance := m.instance(g)
	results := []Result{nodes, instance}
	if instance.State == Fail {
		return results
	}
	d, err := m.Driver(ctx, gpu.UUID)
	cut := m.slices(gpu, d)
	results = append(results, m.enginePaths(g, gpu.UUID, s), cut, m.mps())
	switch {
	case cut.State == Fail: // the driver shows the slices, but not the GPU that is cut
		return results
	case errors.Is(err, context.DeadlineExceeded):
		//diag doctor
		// A call of the GPU driver does not return, as when a GPU hangs. Look at `dmesg`; mostly
		// the machine has to be restarted.
		return append(results, result("libcuda", Fail, "dmesg | grep -e NVRM -e Xid; restart the machine, which frees what all instances hold", "the driver does not answer").as(DriverSilent))
	case err != nil:
		//diag doctor REASON
		// The process that asks the driver could not be started or was killed. The reason says how;
		// try again.
		return append(results, result("libcuda", Fail, "wcache probe "+gpu.UUID+" shows why", "could not be asked: %v", err).as(DriverNotAsked))
	case d.Fault != "":
		return append(results, result("libcuda", Fail, d.Mend, "%s", d.Fault).as(DriverFault))
	}
	driver := d.Driver
	if driver == "" {
		driver = "of an unknown version"
	}
	results = append(results,
		result("libcuda", OK, "", "libcuda.so.1, driver %s, CUDA %d.%d; 470 or later is needed", driver, d.CUDAVersion/1000, d.CUDAVersion%1000/10),
		m.health(d), m.computeMode(d), m.export(d, handles))
	if d.State == "ok" {
		results = append(results, m.room(ctx, d.Free, d.Total, running, s))
	}
	return results
}

// deviceNodes looks for the device files of a GPU. They are made from user space, when the
// GPU is first used after a boot.
func (m *Machine) deviceNodes(g generator.Machine, s service) Result {
	const check = "device nodes"
	if g.WSL && len(g.GPUs) == 0 {
		return result(check, Fail, "keep weights in the memory of the host: systemctl --user enable --now wcache@host.socket, and wcache --gpu host",
			//diag doctor
			// On WSL2 the GPU belongs to Windows, and its memory can't be shared between processes.
			// Use the instance `host`, which keeps weights in the memory of the machine.
			"this is WSL2: the GPU belongs to Windows, whose driver shows none in /proc/driver/nvidia, and does not let processes share its memory").as(WSL2GPU)
	}
	if !m.exists("proc/driver/nvidia") {
		//diag doctor
		// No NVIDIA driver is installed or loaded, or the container was started without GPUs. Load
		// the driver with `modprobe nvidia`, or start the container with its GPUs.
		return result(check, Fail, "modprobe nvidia, after installing the driver; a container has to be started with its GPUs (--gpus all, or --device nvidia.com/gpu=all)", "the kernel module nvidia is not loaded").as(DriverNotLoaded)
	}
	want := []string{"nvidiactl", "nvidia-uvm"}
	for _, gpu := range g.Named(m.Instance) {
		if minor := m.minor(gpu); minor != "" {
			want = append(want, "nvidia"+minor)
		}
	}
	for _, name := range want {
		mend := "nvidia-modprobe -u -c 0 as root, or enable nvidia-persistenced; a container has to be started with its GPUs"
		if s.props["NoNewPrivileges"] == "yes" {
			mend += "; the service has NoNewPrivileges=, which keeps the driver from making them"
		}
		switch err := unix.Access(m.path("dev", name), unix.R_OK|unix.W_OK); {
		case errors.Is(err, unix.ENOENT):
			//diag doctor NODE
			// The device file is made when the GPU is first used after a start of the machine. Run
			// `nvidia-smi` once as the advice says.
			return result(check, Fail, mend, "/dev/%s is missing", name).as(DeviceNodeMissing)
		case err != nil:
			//diag doctor NODE REASON
			// The permissions of the device file keep this user out. Add the user to the group of
			// the file, or correct its mode.
			return result(check, Fail, "ls -l /dev/"+name+" shows who may: join its group, or change NVreg_DeviceFileMode of the driver", "/dev/%s can't be opened: %v", name, err).as(DeviceNodeDenied)
		}
	}
	return result(check, OK, "", "/dev/%s", strings.Join(want, ", /dev/"))
}

// minor is the number N of /dev/nvidiaN, "" if the driver doesn't say.
func (m *Machine) minor(g generator.GPU) string {
	for line := range strings.Lines(m.read("proc/driver/nvidia/gpus", g.Bus, "information")) {
		if key, value, _ := strings.Cut(line, ":"); key == "Device Minor" {
			return strings.TrimSpace(value)
		}
	}
	return ""
}

// instance finds the GPU that the instance is named after.
func (m *Machine) instance(g generator.Machine) (generator.GPU, Result) {
	const check = "GPU"
	if strings.HasPrefix(m.Instance, "MIG-") { // /proc doesn't show slices
		return generator.GPU{Index: -1, UUID: m.Instance}, result(check, OK, "", "a slice, which only the driver knows")
	}
	var none generator.GPU
	found := g.Named(m.Instance)
	switch {
	case len(g.GPUs) == 0:
		//diag doctor
		// The driver is loaded and lists no GPU: the machine has none, or the container got none.
		// Start the container with its GPUs.
		return none, result(check, Fail, "nvidia-smi -L; or use the machine's memory: wcache --gpu host", "the driver shows none").as(GPUNone)
	case len(found) == 0:
		//diag doctor NAME LIST
		// The instance is named after a GPU that this machine does not have. Enable an instance for
		// one of the list, and disable this one.
		return none, result(check, Fail, fmt.Sprintf("systemctl --user enable --now wcache@%d.socket, or that of another GPU of the list", g.GPUs[0].Index), "there is no GPU %q, only %s", m.Instance, g.List()).as(GPUUnknown)
	case len(found) > 1:
		var uuids []string
		for _, x := range found {
			uuids = append(uuids, x.UUID)
		}
		//diag doctor NAME NUMBER LIST
		// The name is the beginning of several uuids. Name the instance after more digits, or the
		// whole uuid.
		return none, result(check, Fail, "give more digits of the uuid", "%q are %d GPUs: %s", m.Instance, len(found), strings.Join(uuids, ", ")).as(GPUAmbiguous)
	}
	gpu := found[0]
	if gpu.UUID == "" {
		//diag doctor NAME
		// The driver tells the uuid after the first use of the GPU since the start of the machine.
		// Run `nvidia-smi`.
		return gpu, result(check, Fail, "nvidia-smi; systemctl --user daemon-reload", "GPU %s has no uuid yet: it has not been used since the boot", m.Instance).as(GPUNoUUID)
	}
	return gpu, result(check, OK, "", "%d, %s at %s", gpu.Index, gpu.UUID, gpu.Bus)
}

// slices checks whether the GPU is cut into MIG slices, which engines then ask for by
// their own uuids. d is the driver's report, nil if there is none.
func (m *Machine) slices(g generator.GPU, d *Driver) Result {
	const check = "MIG"
	if strings.HasPrefix(m.Instance, "MIG-") {
		return result(check, OK, "", "the instance is one slice")
	}
	cut, _ := filepath.Glob(m.path("proc/driver/nvidia/capabilities", "gpu"+m.minor(g), "mig/gi*")) // a fixed pattern
	switch {
	case d != nil && len(d.Slices) > 0:
		//diag doctor LIST
		// The GPU is in MIG mode. Enable an instance for each slice, by its uuid of the list.
		return result(check, Fail, "enable an instance for each slice that engines use: systemctl --user enable --now wcache@"+d.Slices[0]+".socket", "the GPU is cut into slices, and engines run on those: %s", strings.Join(d.Slices, ", ")).as(GPUSliced)
	case len(cut) > 0:
		//diag doctor NUMBER
		// The GPU is in MIG mode, and the driver could not be asked for the slices' uuids. Take
		// them from `nvidia-smi -L`, and enable an instance for each.
		return result(check, Fail, "nvidia-smi -L lists the slices; for each: systemctl --user enable --now wcache@MIG-….socket", "the GPU is cut into slices, %d of them, and engines run on those", len(cut)).as(GPUSliced)
	}
	return result(check, OK, "", "the GPU is whole")
}

// mps looks for CUDA's Multi-Process Service, by the pipe of its control daemon.
func (m *Machine) mps() Result {
	dir := m.Env("CUDA_MPS_PIPE_DIRECTORY")
	if dir == "" {
		dir = "/tmp/nvidia-mps"
	}
	if st, err := os.Stat(m.path(dir, "control")); err == nil && !st.IsDir() {
		//diag doctor DIRECTORY
		// The Multi-Process Service of CUDA runs, and memory can be shared only among its clients.
		// Start engines and the service both as its clients, or both without it.
		return result("MPS", Warn, "end its clients, then echo quit | nvidia-cuda-mps-control; or give engines and the service the same CUDA_MPS_PIPE_DIRECTORY", "a control daemon listens in %s: only clients of MPS can share weights with each other", dir).as(MPSActive)
	}
	return result("MPS", OK, "", "not in use")
}

func (m *Machine) health(d *Driver) Result {
	const check = "GPU's health"
	switch d.State {
	case "ok":
		return result(check, OK, "", "%s, %s free of %s", d.Name, amount(d.Free), amount(d.Total))
	case "unknown":
		//diag doctor REASON
		// The driver does not report the health of this GPU. See what `nvidia-smi` says.
		return result(check, Warn, "nvidia-smi may say more", "not known: %s", d.Reason).as(GPUHealthUnknown)
	}
	return result(check, Fail, d.Reason, "it is %s", d.State).as(GPUUnusable)
}

// amount writes bytes in the units that people use for memory.
func amount(bytes int64) string {
	if bytes < 1<<30 {
		return fmt.Sprintf("%.1f MiB", float64(bytes)/(1<<20))
	}
	return fmt.Sprintf("%.1f GiB", float64(bytes)/(1<<30))
}

// computeMode checks whether the loader may use the GPU beside an engine. The numbers are
// those of CUcomputemode.
func (m *Machine) computeMode(d *Driver) Result {
	const check = "compute mode"
	mend := "nvidia-smi -i " + d.UUID + " -c DEFAULT as root"
	switch d.ComputeMode {
	case 0:
		return result(check, OK, "", "Default")
	case 2:
		//diag doctor
		// This compute mode of the GPU allows no process. Run `nvidia-smi -c DEFAULT` as root.
		return result(check, Fail, mend, "Prohibited: no process can use the GPU").as(ComputeModeProhibited)
	case 3:
		//diag doctor
		// This compute mode of the GPU allows one process. Run `nvidia-smi -c DEFAULT` as root.
		return result(check, Fail, mend, "Exclusive_Process: an engine and the loader can't use the GPU at the same time").as(ComputeModeExclusive)
	}
	//diag doctor NUMBER
	// The GPU has a compute mode that this version of wcache does not know. Run
	// `nvidia-smi -c DEFAULT` as root if engines can't use the GPU.
	return result(check, Warn, mend, "%d, which wcache does not know", d.ComputeMode).as(ComputeModeUnknown)
}

// export checks whether the GPU's memory can become a descriptor, which is needed for all
// handles except legacy ones.
func (m *Machine) export(d *Driver, handles string) Result {
	const check = "memory export"
	switch {
	case d.Exports:
		return result(check, OK, "", "POSIX file descriptors are supported")
	case handles == config.HandlesLegacy:
		return result(check, OK, "", "POSIX file descriptors are not supported, and handles = %q needs none", handles)
	}
	return result(check, Fail, fmt.Sprintf("set handles = %q in wcache.toml; systemctl --user reload %s", config.HandlesLegacy, m.unitName("service"))+", with which weights go when the daemon ends",
		//diag doctor
		// Some virtual GPUs can't share memory by descriptors. Set `handles = "legacy"` in
		// wcache.toml(5).
		"the GPU's memory can't become a descriptor, as with some virtual GPUs").as(MemoryNotExportable)
}
