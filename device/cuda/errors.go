// SPDX-FileCopyrightText: The wcache authors
// SPDX-License-Identifier: MIT

package cuda

import (
	"fmt"
	"strings"
)

// Error is a failed call of the driver. It unwraps to its [Result].
type Error struct {
	Call   string // the function's name, without the version that the symbol has
	Result Result
	HIP    bool // the driver is from AMD
}

func (e *Error) Error() string {
	if e.HIP {
		return e.Call + ": " + hipResult(e.Result)
	}
	return e.Call + ": " + e.Result.Error()
}

// Unwrap is for errors.Is(err, OutOfMemory).
func (e *Error) Unwrap() error { return e.Result }

// NoDriver is the error of a machine without a GPU or without a usable driver. A user can fix
// it, and tests are skipped on it.
type NoDriver struct {
	Library string // the library that was loaded, or could not be
	Err     error
	Do      string // advice: what the user can do
}

func (e *NoDriver) Error() string {
	why := e.Err.Error()
	if !strings.Contains(why, e.Library) { // dlopen's errors begin with it
		why = e.Library + ": " + why
	}
	//diag loading REASON ADVICE
	// `libcuda.so.1` is missing, too old, or does not start. Do what the second part of the message
	// says.
	return fmt.Sprintf("load GPU driver: %s; %s", why, e.Do)
}

// Unwrap is for errors.Is.
func (e *NoDriver) Unwrap() error { return e.Err }

// Advice for a NoDriver.
const (
	doInstall = "install the NVIDIA driver, or start the container with its GPUs (nvidia-container-toolkit)"
	doUpdate  = "update the NVIDIA driver to 470 or later"
)

// whatToDo gives the advice for a driver that exists and doesn't start.
func whatToDo(r Result, exists func(path string) bool) string {
	switch r {
	case NoDevice:
		return "no GPU is visible: nvidia-smi -L lists those of the machine, CUDA_VISIBLE_DEVICES hides some"
	case SystemDriverMismatch:
		return "the driver was updated while its old kernel module stays loaded: restart the machine, which frees what all instances hold"
	case SystemNotReady:
		return "the GPUs are still being set up: is nvidia-fabricmanager running?"
	case CompatNotSupported:
		return "a compatibility libcuda.so.1 comes before the driver's own: remove it from LD_LIBRARY_PATH"
	case StubLibrary:
		return "a stub of the CUDA toolkit comes before the driver's libcuda.so.1: remove it from LD_LIBRARY_PATH"
	case Unknown, OperatingSystem:
		if !exists("/dev/nvidia-uvm") {
			return "/dev/nvidia-uvm is missing: run nvidia-modprobe -u -c 0 as root once, or enable nvidia-persistenced"
		}
	}
	return "nvidia-smi and the kernel's log may say more"
}

// NoExport is the error for a GPU whose memory can't be exported as a descriptor, such as some
// virtual ones. On such a GPU only legacy handles work, see [Keeper].
type NoExport struct{ UUID string }

func (e *NoExport) Error() string {
	//diag loading UUID
	// Some virtual GPUs can't share memory by descriptors. Set `handles = "legacy"` in
	// wcache.toml(5).
	return fmt.Sprintf("open GPU %s: its driver can't export memory as a descriptor; handles = \"legacy\" in wcache.toml needs none", e.UUID)
}

// NotFound is the error for a name that fits no GPU or several.
type NotFound struct {
	Name string
	Have []string // uuids of the GPUs that the driver shows, in PCI order
	// Hidden is CUDA_VISIBLE_DEVICES, if that is why the number isn't found.
	Hidden string
}

func (e *NotFound) Error() string {
	if e.Hidden != "" {
		//diag loading NAME LIST
		// The environment of the service restricts the GPUs, which changes their numbers. Name the
		// instance after the uuid, or remove the variable from the service.
		return fmt.Sprintf("open GPU %q: CUDA_VISIBLE_DEVICES=%s hides GPUs, so that a number could name another one; use the uuid", e.Name, e.Hidden)
	}
	//diag loading NAME LIST
	// The name fits no GPU of the driver, or several. Use the whole uuid of one of the list.
	return fmt.Sprintf("open GPU %q: it names none or several of %s", e.Name, strings.Join(e.Have, ", "))
}
