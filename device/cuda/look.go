// SPDX-FileCopyrightText: The wcache authors
// SPDX-License-Identifier: MIT

package cuda

// #include "driver.h"
import "C"

import "github.com/wcache/wcache/device"

// attributeComputeMode is CU_DEVICE_ATTRIBUTE_COMPUTE_MODE of cuda.h.
const attributeComputeMode = 20

// Look loads the driver and asks it about a GPU, whose name is as for [Open], without making a
// context. Errors are a [NoDriver], a [NotFound], or a call's [Error]. If the driver hangs,
// Look never returns: call it in a child process.
func Look(name string, o Options) (*device.CUDA, error) {
	d, err := choose(name, o, load, findVisible)
	if err != nil {
		return nil, err
	}
	f := new(device.CUDA)
	var version C.int
	if err := d.driver.failed("cuDriverGetVersion", C.wc_version(&d.driver.c, &version)); err != nil {
		return nil, d.wrap("look at", err)
	}
	f.CUDAVersion = int(version)
	if f.ComputeMode, err = d.driver.attribute(C.CUdevice(d.gpu.device), attributeComputeMode); err != nil {
		return nil, d.wrap("look at", err)
	}
	if f.Exports, err = d.driver.exports(d.gpu.device); err != nil {
		return nil, d.wrap("look at", err)
	}
	return f, nil
}
