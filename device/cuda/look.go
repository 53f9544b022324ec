// SPDX-FileCopyrightText: The wcache authors
// SPDX-License-Identifier: MIT

package cuda

// #include "driver.h"
import "C"

// attributeComputeMode is CU_DEVICE_ATTRIBUTE_COMPUTE_MODE of cuda.h.
const attributeComputeMode = 20

// Facts are what can be known of a GPU without a context on it.
type Facts struct {
	UUID        string `json:"uuid"`
	CUDA        int    `json:"cuda"`         // that the driver is for, 13000 for 13.0
	ComputeMode int    `json:"compute_mode"` // CUcomputemode: 0 default, 2 prohibited, 3 exclusive process
	Exports     bool   `json:"exports"`      // memory can become a descriptor
}

// Look loads the driver and asks about the GPU of that name, which is as for
// [Open], without using it. Errors are a [NoDriver], a [NotFound], or a call's
// [Error]. A driver that hangs keeps the caller for ever: ask in a process that
// can be left alone.
func Look(name string, o Options) (*Facts, error) {
	d, err := choose(name, o, load, findVisible)
	if err != nil {
		return nil, err
	}
	f := &Facts{UUID: d.gpu.uuid}
	var version C.int
	if err := d.driver.failed("cuDriverGetVersion", C.wc_version(&d.driver.c, &version)); err != nil {
		return nil, d.wrap("look at", err)
	}
	f.CUDA = int(version)
	if f.ComputeMode, err = d.driver.attribute(C.CUdevice(d.gpu.device), attributeComputeMode); err != nil {
		return nil, d.wrap("look at", err)
	}
	if f.Exports, err = d.driver.exports(d.gpu.device); err != nil {
		return nil, d.wrap("look at", err)
	}
	return f, nil
}
