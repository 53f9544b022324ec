// SPDX-FileCopyrightText: The wcache authors
// SPDX-License-Identifier: MIT

// Package nvml reads what a person wants to know about a GPU: what it is called,
// how full it is, and of whom. It asks the NVIDIA Management Library, which is not
// linked but loaded when [Find] is called, and needs no context on a GPU.
//
// Names follow NVML's reference: the uuid, GPU-… or MIG-…, is the one identity;
// indexes are in PCI order, whatever CUDA_VISIBLE_DEVICES says.
package nvml

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
)

// GPU is what NVML says at one moment about a GPU, or a MIG slice of one. If Err is
// set the fields after it are as far as they could be read; a GPU that is lost or
// needs a reset may have none of them.
type GPU struct {
	Driver string // version of the driver, such as 580.159.03
	Index  int    // -1 for a slice, and where it isn't known
	Err    error  // an nvml.Return at its end
	UUID   string // GPU-… or MIG-…
	Name   string // such as NVIDIA H200
	PCI    string // bus address, such as 00000000:19:00.0
	Total  int64  // bytes of memory, less what the driver reserves if it says so
	Used   int64  // bytes, of all processes and of memory without one
	Free   int64  // bytes
	// Uncorrected counts the errors of the whole GPU's memory that ECC could not
	// correct, since the driver was loaded; -1 where nothing counts them.
	Uncorrected int64
	// Reset tells that the driver wants the GPU reset, or the machine restarted.
	Reset     bool
	Processes []Process // by pid
}

// Process is a process with a context on a GPU, for computing or for graphics.
type Process struct {
	PID   int
	Bytes int64 // of GPU memory, -1 if the driver doesn't say
}

// NoDriver is the error of a machine on which NVML can't be asked.
type NoDriver struct {
	Err error  // why: of the library, or an nvml.Return
	Do  string // what a person can do about it
}

//diag doctor REASON ADVICE
// The library that reports the state of GPUs can't be loaded or gives an error. Do what the second
// part of the message says.

func (e *NoDriver) Error() string { return fmt.Sprintf("ask NVML: %v; %s", e.Err, e.Do) }

func (e *NoDriver) Unwrap() error { return e.Err }

const libraryName = "libnvidia-ml.so.1"

// Find asks about the GPU, or MIG slice, of that uuid. It takes some milliseconds,
// and a second or more where no persistence daemon runs; a GPU that is lost can keep
// it for ever. It is not safe for concurrent use.
//
// The error is a *NoDriver if nothing could be asked at all. One that the driver
// doesn't know is the Err of the GPU: an nvml.Return, which is the one of a GPU that
// is lost if there is one that can't say its name any more.
func Find(uuid string) (*GPU, error) { return find(libraryName, uuid) }

func find(library, uuid string) (*GPU, error) {
	lib := nvml.New(nvml.WithLibraryPath(library))
	if r := lib.Init(); r != nvml.SUCCESS {
		return nil, noDriver(library, r)
	}
	defer func() { _ = lib.Shutdown() }() // all is read by then
	driver, r := lib.SystemGetDriverVersion()
	if r != nvml.SUCCESS {
		return nil, fmt.Errorf("ask NVML for the driver's version: %w", r)
	}
	d, r := lib.DeviceGetHandleByUUID(uuid)
	if r != nvml.SUCCESS {
		if lost := anyLost(lib); lost != nvml.SUCCESS && r == nvml.ERROR_NOT_FOUND {
			r = lost
		}
		return &GPU{Driver: driver, Index: -1, UUID: uuid, Uncorrected: -1, Err: fmt.Errorf("open GPU %s: %w", uuid, r)}, nil
	}
	index := -1
	if i, r := d.GetIndex(); r == nvml.SUCCESS && !isSlice(uuid) {
		index = i
	}
	g := readGPU(lib, d, index)
	g.Driver, g.UUID = driver, uuid
	return &g, nil
}

// Slices gives the uuids of the MIG slices that a GPU is cut into, none where it is whole
// or the library knows of no such thing. It may keep the caller as [Find] may. The error is
// as of that.
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
		return nil, nil // as of GPUs that can't be cut
	}
	var list []string
	for i := range most {
		slice, r := d.GetMigDeviceHandleByIndex(i)
		if r != nvml.SUCCESS { // not all places are taken
			continue
		}
		if id, r := slice.GetUUID(); r == nvml.SUCCESS {
			list = append(list, id)
		}
	}
	return list, nil
}

// anyLost is why a GPU of the machine can't be opened.
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

// readGPU reads as much as the GPU answers.
func readGPU(lib nvml.Interface, d nvml.Device, index int) GPU {
	g := GPU{Index: index, Uncorrected: -1}
	note := func(what string, r nvml.Return) {
		if r != nvml.SUCCESS && g.Err == nil {
			g.Err = fmt.Errorf("read %s of GPU %d: %w", what, index, r)
		}
	}
	var r nvml.Return
	g.UUID, r = d.GetUUID()
	note("uuid", r)
	g.Name, r = d.GetName()
	note("name", r)
	pci, r := d.GetPciInfo()
	if !isSlice(g.UUID) {
		note("address", r)
	}
	g.PCI = text(pci.BusId[:])
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
	// Some virtual GPUs don't tell who uses them, and are well for all that.
	if r != nvml.ERROR_NOT_SUPPORTED && r != nvml.ERROR_NO_PERMISSION {
		note("processes", r)
	}
	whole := d
	if isSlice(g.UUID) {
		if whole, r = d.GetDeviceHandleFromMigDeviceHandle(); r != nvml.SUCCESS {
			note("whole", r)
			return g
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
	g.Reset = wantsReset(whole)
	return g
}

// wantsReset asks what the driver would have done about errors that it has seen.
// Drivers before 555 don't know the question.
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
	return false // nothing, or something that can wait until the GPU is idle
}

// processes lists those that compute and those that draw, each once.
func processes(d nvml.Device) ([]Process, nvml.Return) {
	list, r := d.GetComputeRunningProcesses()
	if r != nvml.SUCCESS {
		return nil, r
	}
	drawing, r := d.GetGraphicsRunningProcesses()
	if r == nvml.SUCCESS { // slices and some servers' GPUs don't draw
		list = append(list, drawing...)
	}
	var out []Process
	for _, p := range list {
		bytes := int64(-1)
		if p.UsedGpuMemory != math.MaxUint64 { // NVML_VALUE_NOT_AVAILABLE
			bytes = int64(p.UsedGpuMemory)
		}
		if !slices.ContainsFunc(out, func(x Process) bool { return x.PID == int(p.Pid) }) {
			out = append(out, Process{PID: int(p.Pid), Bytes: bytes})
		}
	}
	slices.SortFunc(out, func(a, b Process) int { return a.PID - b.PID })
	return out, nvml.SUCCESS
}

// text is a C string.
func text(s []int8) string {
	var b []byte
	for _, c := range s {
		if c == 0 {
			break
		}
		b = append(b, byte(c))
	}
	return string(b)
}

// Lost tells whether the GPU has fallen off the bus.
func (g GPU) Lost() bool { return errors.Is(g.Err, nvml.ERROR_GPU_IS_LOST) }

// NeedsReset tells whether the GPU can't be used before it is reset, or the
// machine is restarted.
func (g GPU) NeedsReset() bool { return g.Reset || errors.Is(g.Err, nvml.ERROR_RESET_REQUIRED) }

// Absent tells whether the driver knows no GPU of this name.
func (g GPU) Absent() bool { return errors.Is(g.Err, nvml.ERROR_NOT_FOUND) }

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
