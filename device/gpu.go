// SPDX-FileCopyrightText: The wcache authors
// SPDX-License-Identifier: MIT

package device

import "time"

// States of a [GPU].
const (
	GPUOK      = "ok"
	GPULost    = "lost"           // it has fallen off the bus
	GPUReset   = "reset required" // it answers, but needs a reset before it computes again
	GPUAbsent  = "not there"      // the driver doesn't know this GPU
	GPUUnknown = "unknown"        // the driver doesn't answer
)

// GPU is the driver's description of a GPU, or a MIG slice of one, at one moment. All parts of
// wcache use it: NVML gives it, a child sends it to the daemon, status and doctor show it. It
// is plain data. If the state isn't GPUOK, fields that the driver didn't give are empty.
type GPU struct {
	Index  int    `json:"index"`            // nvidia-smi's number, -1: not known, as of a MIG slice
	UUID   string `json:"uuid"`             // GPU-… or MIG-…
	Name   string `json:"name,omitempty"`   // such as NVIDIA H200
	Driver string `json:"driver,omitempty"` // its version, such as 580.159.03
	State  string `json:"state"`            // GPUOK, …
	Reason string `json:"reason,omitempty"` // for states other than GPUOK: the driver's text, or what to do
	Total  int64  `json:"total_bytes"`      // memory, without the driver's reserve if the driver tells that
	Used   int64  `json:"used_bytes"`       // memory in use, by processes or by no process
	Free   int64  `json:"free_bytes"`
	// Unowned is the part of Used that belongs to no process: the weights of all wcache
	// instances, the driver's own memory, and memory that the driver doesn't attribute.
	Unowned int64 `json:"unowned_bytes"`
	// Uncorrected counts the memory errors of the whole GPU that ECC could not correct,
	// since the driver was loaded; -1: not counted, or not known.
	Uncorrected int64        `json:"uncorrected_errors"`
	Processes   []GPUProcess `json:"processes"` // by pid
	Checked     time.Time    `json:"checked"`   // time of the driver's answer
}

// GPUProcess is a process with a context on a GPU, for computing or for graphics.
type GPUProcess struct {
	PID   int    `json:"pid"`
	Comm  string `json:"comm,omitempty"` // empty if this process can't see it
	Bytes int64  `json:"bytes"`          // of GPU memory, -1: the driver doesn't say
}

// Gone reports whether the contents of the GPU's memory are lost.
func (g *GPU) Gone() bool {
	return g.State == GPULost || g.State == GPUReset || g.State == GPUAbsent
}

// CUDA is what libcuda tells about a GPU without a context on it.
type CUDA struct {
	CUDAVersion int  `json:"cuda_version"` // CUDA version of the driver, 13000 for 13.0
	ComputeMode int  `json:"compute_mode"` // CUcomputemode: 0 default, 2 prohibited, 3 exclusive process
	Exports     bool `json:"exports"`      // memory can become a descriptor
}

// Report is all that wcache learns about a GPU without a context on it. If the GPU is cut into
// slices, or there is a fault, the CUDA part is missing.
type Report struct {
	GPU
	CUDA
	Slices []string `json:"slices,omitempty"` // uuids of the MIG slices that the GPU is cut into
	Fault  string   `json:"fault,omitempty"`  // why libcuda can't use the GPU
	Mend   string   `json:"mend,omitempty"`   // what to do about the fault
}
