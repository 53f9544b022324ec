// SPDX-FileCopyrightText: The wcache authors
// SPDX-License-Identifier: MIT

// Package nvml reads what a person wants to know about GPUs: what they are called,
// how full they are, and of whom. It asks the NVIDIA Management Library, which is
// not linked but loaded when [Read] is called, and needs no context on a GPU.
//
// Names follow NVML's reference: the uuid, GPU-… or MIG-…, is the one identity;
// indexes are in PCI order, whatever CUDA_VISIBLE_DEVICES says.
package nvml

import (
	"errors"
	"fmt"
	"math"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
)

// Machine is what NVML says about all GPUs of a machine at one moment.
type Machine struct {
	Driver string // version of the driver, such as 580.159.03
	GPUs   []GPU  // in PCI order
}

// GPU is one GPU. If Err is set the fields after it are as far as they could be
// read; a GPU that is lost or needs a reset may have none of them.
type GPU struct {
	Index     int
	Err       error  // an nvml.Return at its end
	UUID      string // GPU-…
	Name      string // such as NVIDIA H200
	PCI       string // bus address, such as 00000000:19:00.0
	Total     int64  // bytes of memory, less what the driver reserves if it says so
	Used      int64  // bytes, of all processes and of memory without one
	Free      int64  // bytes
	Processes []Process
}

// Process is a process with a CUDA context on a GPU.
type Process struct {
	PID   int
	Bytes int64 // of GPU memory, -1 if the driver doesn't say
}

// NoDriver is the error of a machine on which NVML can't be asked.
type NoDriver struct {
	Err error  // why: of the library, or an nvml.Return
	Do  string // what a person can do about it
}

func (e *NoDriver) Error() string { return fmt.Sprintf("ask NVML: %v; %s", e.Err, e.Do) }

func (e *NoDriver) Unwrap() error { return e.Err }

const libraryName = "libnvidia-ml.so.1"

// Read asks about every GPU of the machine. It takes some milliseconds, and a
// second or more where no persistence daemon runs. It is not safe for concurrent
// use. The error is a *NoDriver if nothing could be asked at all.
func Read() (*Machine, error) { return read(libraryName) }

func read(library string) (*Machine, error) {
	lib := nvml.New(nvml.WithLibraryPath(library))
	if r := lib.Init(); r != nvml.SUCCESS {
		return nil, noDriver(library, r)
	}
	defer func() { _ = lib.Shutdown() }() // all is read by then

	m := new(Machine)
	var r nvml.Return
	if m.Driver, r = lib.SystemGetDriverVersion(); r != nvml.SUCCESS {
		return nil, fmt.Errorf("ask NVML for the driver's version: %w", r)
	}
	n, r := lib.DeviceGetCount()
	if r != nvml.SUCCESS {
		return nil, fmt.Errorf("ask NVML for GPUs: %w", r)
	}
	// A call that an older library lacks would end the process.
	reserved := lib.Extensions().LookupSymbol("nvmlDeviceGetMemoryInfo_v2") == nil
	for i := range n {
		m.GPUs = append(m.GPUs, readGPU(lib, i, reserved))
	}
	return m, nil
}

// readGPU reads as much as the GPU answers.
func readGPU(lib nvml.Interface, index int, reserved bool) GPU {
	g := GPU{Index: index}
	d, r := lib.DeviceGetHandleByIndex(index)
	if r != nvml.SUCCESS {
		g.Err = fmt.Errorf("open GPU %d: %w", index, r)
		return g
	}
	note := func(what string, r nvml.Return) {
		if r != nvml.SUCCESS && g.Err == nil {
			g.Err = fmt.Errorf("read %s of GPU %d: %w", what, index, r)
		}
	}
	g.UUID, r = d.GetUUID()
	note("uuid", r)
	g.Name, r = d.GetName()
	note("name", r)
	pci, r := d.GetPciInfo()
	note("address", r)
	g.PCI = text(pci.BusId[:])

	if reserved {
		mem, r := d.GetMemoryInfo_v2()
		note("memory", r)
		g.Total, g.Used, g.Free = int64(mem.Total-mem.Reserved), int64(mem.Used), int64(mem.Free)
	} else {
		mem, r := d.GetMemoryInfo()
		note("memory", r)
		g.Total, g.Used, g.Free = int64(mem.Total), int64(mem.Used), int64(mem.Free)
	}

	list, r := d.GetComputeRunningProcesses()
	note("processes", r)
	for _, p := range list {
		bytes := int64(-1)
		if p.UsedGpuMemory != math.MaxUint64 { // NVML_VALUE_NOT_AVAILABLE
			bytes = int64(p.UsedGpuMemory)
		}
		g.Processes = append(g.Processes, Process{PID: int(p.Pid), Bytes: bytes})
	}
	return g
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

func noDriver(library string, r nvml.Return) error {
	e := &NoDriver{Err: r, Do: "see what nvidia-smi says"}
	switch r {
	case nvml.ERROR_LIBRARY_NOT_FOUND:
		e.Err = errors.New("no " + library)
		e.Do = "install the NVIDIA driver; a container has to be started with its GPUs"
	case nvml.ERROR_DRIVER_NOT_LOADED:
		e.Do = "load the kernel module: modprobe nvidia"
	case nvml.ERROR_LIB_RM_VERSION_MISMATCH:
		e.Do = "the driver was updated while it was in use: restart the machine, or load its kernel modules anew"
	case nvml.ERROR_NO_PERMISSION:
		e.Do = "see who may open /dev/nvidiactl"
	}
	return e
}
