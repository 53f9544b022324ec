// SPDX-FileCopyrightText: The wcache authors
// SPDX-License-Identifier: MIT

package device

import "time"

// States of a [GPU].
const (
	GPUOK      = "ok"
	GPULost    = "lost"           // it has fallen off the bus
	GPUReset   = "reset required" // it answers, and computes nothing before a reset
	GPUAbsent  = "not there"      // the driver knows no GPU of this name
	GPUUnknown = "unknown"        // the driver can't be asked
)

// GPU is what the driver says at one moment about a GPU, or a MIG slice of one. This is
// the one description of a GPU: NVML gives it, a child sends it to the daemon, the
// status and doctor show it. It is plain data. Where the state is not GPUOK, the other
// fields are as far as they could be read.
type GPU struct {
	Index  int    `json:"index"`            // nvidia-smi's number, -1: not known, as of a MIG slice
	UUID   string `json:"uuid"`             // GPU-… or MIG-…
	Name   string `json:"name,omitempty"`   // such as NVIDIA H200
	Driver string `json:"driver,omitempty"` // its version, such as 580.159.03
	State  string `json:"state"`            // GPUOK, …
	Reason string `json:"reason,omitempty"` // of all states but GPUOK: the driver's words, or what to do
	Total  int64  `json:"total_bytes"`      // of memory, without what the driver reserves if it says so
	Used   int64  `json:"used_bytes"`       // of all processes and of memory without one
	Free   int64  `json:"free_bytes"`
	// Unowned is the part of Used that is no process's: what wcache holds in all
	// instances, the driver's own, and what the driver doesn't tell.
	Unowned int64 `json:"unowned_bytes"`
	// Uncorrected counts the errors of the whole GPU's memory that ECC could not correct,
	// since the driver was loaded; -1: not counted, or not known.
	Uncorrected int64        `json:"uncorrected_errors"`
	Processes   []GPUProcess `json:"processes"` // by pid
	Checked     time.Time    `json:"checked"`   // when the driver said so
}

// GPUProcess is a process with a context on a GPU, for computing or for graphics.
type GPUProcess struct {
	PID   int    `json:"pid"`
	Comm  string `json:"comm,omitempty"` // empty if it can't be seen from here
	Bytes int64  `json:"bytes"`          // of GPU memory, -1: the driver doesn't say
}

// Gone reports whether what was in the GPU's memory can't be used any more.
func (g *GPU) Gone() bool {
	return g.State == GPULost || g.State == GPUReset || g.State == GPUAbsent
}

// CUDA is what libcuda says of a GPU without a context on it.
type CUDA struct {
	CUDAVersion int  `json:"cuda_version"` // that the driver is for, 13000 for 13.0
	ComputeMode int  `json:"compute_mode"` // CUcomputemode: 0 default, 2 prohibited, 3 exclusive process
	Exports     bool `json:"exports"`      // memory can become a descriptor
}

// Report is all that can be asked about a GPU without a context on it. If it is cut into
// slices or there is a fault, the rest isn't known.
type Report struct {
	GPU
	CUDA
	Slices []string `json:"slices,omitempty"` // uuids of the MIG slices that the GPU is cut into
	Fault  string   `json:"fault,omitempty"`  // why libcuda can't use the GPU
	Mend   string   `json:"mend,omitempty"`   // what to do about the fault
}
