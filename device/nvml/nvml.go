// SPDX-FileCopyrightText: The wcache authors
// SPDX-License-Identifier: MIT

// Package nvml reads a GPU's name, health, memory use and processes. It asks the NVIDIA
// Management Library, which [Look] loads and which isn't linked. It needs no context on a GPU.
//
// Names follow NVML's reference: the uuid, GPU-… or MIG-…, identifies a GPU; indexes are in
// PCI order, independent of CUDA_VISIBLE_DEVICES.
package nvml

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/wcache/wcache/device"
)

// NoDriver is the error of a machine on which NVML doesn't work.
type NoDriver struct {
	Err error  // the cause: an error of loading the library, or an nvml.Return
	Do  string // advice: what the user can do
}

//diag doctor REASON ADVICE
// The library that reports the state of GPUs can't be loaded or gives an error. Do what the second
// part of the message says.

func (e *NoDriver) Error() string { return fmt.Sprintf("ask NVML: %v; %s", e.Err, e.Do) }

func (e *NoDriver) Unwrap() error { return e.Err }

const libraryName = "libnvidia-ml.so.1"

// Advice for a GPU that has lost the weights.
const (
	kernelLog   = "; the kernel's log (dmesg, NVRM: Xid) says why"
	adviceLost  = "it has fallen off the bus: restart the machine, which frees what all instances hold" + kernelLog
	adviceGone  = "nvidia-smi -L lists the GPUs that are"
	adviceReset = "nvidia-smi --gpu-reset as root when nothing uses it, or restart the machine, which frees what all instances hold" + kernelLog
)

// Look asks about the GPU, or MIG slice, with the given uuid. It takes some milliseconds, or a
// second and more if no persistence daemon runs; if a GPU is lost it may never return. It is
// not safe for concurrent use.
//
// If the library doesn't work, the state is [device.GPUUnknown]. If the driver doesn't know the
// uuid, and the machine has a GPU that no longer tells its own, the state is lost.
func Look(uuid string) device.GPU { return look(libraryName, uuid) }

func look(library, uuid string) device.GPU {
	g := device.GPU{UUID: uuid, Index: -1, Uncorrected: -1, Processes: []device.GPUProcess{}}
	reset, err := read(&g, library)
	g.Checked = time.Now().UTC()
	switch {
	case errors.As(err, new(*NoDriver)): // nothing is known about the GPU itself
		g.State, g.Reason = device.GPUUnknown, err.Error()
	case errors.Is(err, nvml.ERROR_GPU_IS_LOST):
		g.State, g.Reason = device.GPULost, adviceLost
	case reset || errors.Is(err, nvml.ERROR_RESET_REQUIRED):
		g.State, g.Reason = device.GPUReset, adviceReset
	case errors.Is(err, nvml.ERROR_NOT_FOUND):
		g.State, g.Reason = device.GPUAbsent, adviceGone
	case err != nil:
		g.State, g.Reason = device.GPUUnknown, err.Error()
	default:
		g.State = device.GPUOK
	}
	return g
}

// read fills in the fields of the GPU with g's uuid, and tells whether the driver wants a
// reset. The error is a *NoDriver if NVML doesn't work. An error about the GPU wraps an
// nvml.Return; then read has filled in what it could.
func read(g *device.GPU, library string) (reset bool, err error) {
	lib := nvml.New(nvml.WithLibraryPath(library))
	if r := lib.Init(); r != nvml.SUCCESS {
		return false, noDriver(library, r)
	}
	defer func() { _ = lib.Shutdown() }() // all is read by then
	driver, r := lib.SystemGetDriverVersion()
	if r != nvml.SUCCESS {
		return false, fmt.Errorf("ask NVML for the driver's version: %v", r)
	}
	g.Driver = driver
	d, r := lib.DeviceGetHandleByUUID(g.UUID)
	if r != nvml.SUCCESS {
		if lost := anyLost(lib); lost != nvml.SUCCESS && r == nvml.ERROR_NOT_FOUND {
			r = lost
		}
		return false, fmt.Errorf("open GPU %s: %w", g.UUID, r)
	}
	if i, r := d.GetIndex(); r == nvml.SUCCESS && !isSlice(g.UUID) {
		g.Index = i
	}
	return readDevice(g, lib, d)
}

// Slices gives the uuids of the MIG slices of a GPU, none if it isn't cut or the library
// doesn't know MIG. Like [Look] it may never return. The error is a *NoDriver if NVML doesn't
// work.
func Slices(uuid string) ([]string, error) { return slicesOf(libraryName, uuid) }

func slicesOf(library, uuid string) ([]string, error) {
	lib := nvml.New(nvml.WithLibraryPath(library))
	if r := lib.Init(); r != nvml.SUCCESS {
		return nil, noDriver(library, r)
	}
	defer func() { _ = lib.Shutdown() }() // all is read by then
	for _, call := range []string{"nvmlDeviceGetMaxMigDeviceCount", "nvmlDeviceGetMigDeviceHandleByIndex"} {
		if lib.Extensions().LookupSymbol(call) != nil { // calling it would end the process
			return nil, nil
		}
	}
	d, r := lib.DeviceGetHandleByUUID(uuid)
	if r != nvml.SUCCESS {
		return nil, fmt.Errorf("open GPU %s: %w", uuid, r)
	}
	most, r := d.GetMaxMigDeviceCount()
	if r != nvml.SUCCESS {
		return nil, nil // for example, the GPU doesn't support MIG
	}
	var list []string
	for i := range most {
		slice, r := d.GetMigDeviceHandleByIndex(i)
		if r != nvml.SUCCESS { // this place has no slice
			continue
		}
		if id, r := slice.GetUUID(); r == nvml.SUCCESS {
			list = append(list, id)
		}
	}
	return list, nil
}

// anyLost is the error of a GPU of the machine that is lost or needs a reset, SUCCESS if there is
// none.
func anyLost(lib nvml.Interface) nvml.Return {
	n, _ := lib.DeviceGetCount()
	for i := range n {
		if _, r := lib.DeviceGetHandleByIndex(i); r == nvml.ERROR_GPU_IS_LOST || r == nvml.ERROR_RESET_REQUIRED {
			return r
		}
	}
	return nvml.SUCCESS
}

// isSlice tells a MIG slice by its name.
func isSlice(uuid string) bool { return strings.HasPrefix(uuid, "MIG-") }

// readDevice reads what the GPU answers. The error is the first one of a call about its
// health.
func readDevice(g *device.GPU, lib nvml.Interface, d nvml.Device) (reset bool, err error) {
	note := func(what string, r nvml.Return) {
		if r != nvml.SUCCESS && err == nil {
			err = fmt.Errorf("read %s of GPU %d: %w", what, g.Index, r)
		}
	}
	var r nvml.Return
	g.Name, r = d.GetName()
	note("name", r)
	// A call that an older library lacks would end the process.
	if lib.Extensions().LookupSymbol("nvmlDeviceGetMemoryInfo_v2") == nil {
		mem, r := d.GetMemoryInfo_v2()
		note("memory", r)
		g.Total, g.Used, g.Free = int64(mem.Total-mem.Reserved), int64(mem.Used), int64(mem.Free)
	} else {
		mem, r := d.GetMemoryInfo()
		note("memory", r)
		g.Total, g.Used, g.Free = int64(mem.Total), int64(mem.Used), int64(mem.Free)
	}
	g.Processes, r = processes(d)
	// Some virtual GPUs don't tell which processes use them; that isn't a fault.
	if r != nvml.ERROR_NOT_SUPPORTED && r != nvml.ERROR_NO_PERMISSION {
		note("processes", r)
	}
	g.Unowned = g.Used
	for _, p := range g.Processes {
		g.Unowned -= max(p.Bytes, 0)
	}
	g.Unowned = max(g.Unowned, 0)
	whole := d
	if isSlice(g.UUID) {
		if whole, r = d.GetDeviceHandleFromMigDeviceHandle(); r != nvml.SUCCESS {
			note("whole", r)
			return false, err
		}
	}
	n, r := whole.GetTotalEccErrors(nvml.MEMORY_ERROR_TYPE_UNCORRECTED, nvml.VOLATILE_ECC)
	switch r {
	case nvml.SUCCESS:
		g.Uncorrected = int64(n)
	case nvml.ERROR_NOT_SUPPORTED: // without ECC, or with it turned off
	default:
		note("memory errors", r)
	}
	return wantsReset(whole), err
}

// wantsReset asks which recovery action the driver recommends. Drivers before 555 don't have
// this query.
func wantsReset(d nvml.Device) bool {
	field := []nvml.FieldValue{{FieldId: nvml.FI_DEV_GET_GPU_RECOVERY_ACTION}}
	if r := d.GetFieldValues(field); r != nvml.SUCCESS || field[0].NvmlReturn != uint32(nvml.SUCCESS) {
		return false
	}
	switch nvml.DeviceGpuRecoveryAction(binary.NativeEndian.Uint32(field[0].Value[:])) {
	case nvml.GPU_RECOVERY_ACTION_GPU_RESET, nvml.GPU_RECOVERY_ACTION_NODE_REBOOT,
		nvml.GPU_RECOVERY_ACTION_BUS_RESET, nvml.GPU_RECOVERY_ACTION_SYSTEM_REBOOT:
		return true
	}
	return false // no action, or one that can wait until the GPU is idle
}

// processes lists the processes that compute or draw, each once.
func processes(d nvml.Device) ([]device.GPUProcess, nvml.Return) {
	out := []device.GPUProcess{}
	list, r := d.GetComputeRunningProcesses()
	if r != nvml.SUCCESS {
		return out, r
	}
	drawing, r := d.GetGraphicsRunningProcesses()
	if r == nvml.SUCCESS { // slices and some servers' GPUs don't draw
		list = append(list, drawing...)
	}
	for _, p := range list {
		bytes := int64(-1)
		if p.UsedGpuMemory != math.MaxUint64 { // NVML_VALUE_NOT_AVAILABLE
			bytes = int64(p.UsedGpuMemory)
		}
		if !slices.ContainsFunc(out, func(x device.GPUProcess) bool { return x.PID == int(p.Pid) }) {
			comm, _ := os.ReadFile(fmt.Sprintf("/proc/%d/comm", p.Pid)) // of another namespace, or ended
			out = append(out, device.GPUProcess{PID: int(p.Pid), Comm: strings.TrimSpace(string(comm)), Bytes: bytes})
		}
	}
	slices.SortFunc(out, func(a, b device.GPUProcess) int { return a.PID - b.PID })
	return out, nvml.SUCCESS
}

func noDriver(library string, r nvml.Return) error {
	e := &NoDriver{Err: r, Do: "see what nvidia-smi says"}
	switch r {
	case nvml.ERROR_LIBRARY_NOT_FOUND:
		e.Err = errors.New("no " + library)
		e.Do = "install the NVIDIA driver; a container has to be started with its GPUs"
	case nvml.ERROR_DRIVER_NOT_LOADED:
		e.Do = "load the kernel module: modprobe nvidia"
	case nvml.ERROR_LIB_RM_VERSION_MISMATCH:
		e.Do = "the driver was updated while it was in use: restart the machine, which frees what all instances hold, or load its kernel modules anew when nothing uses it"
	case nvml.ERROR_NO_PERMISSION:
		e.Do = "see who may open /dev/nvidiactl"
	}
	return e
}
