// SPDX-FileCopyrightText: The wcache authors
// SPDX-License-Identifier: MIT

package place

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// hipPrefix begins the names of AMD's GPUs, of instances and of devices: hip:0 is the first on
// the PCI bus, as in amd-smi, and hip:0000:c1:00.0 the GPU at that address.
const hipPrefix = "hip:"

// hidesHIP are the variables that hide GPUs from HIP. The loader opens a GPU by its address,
// and must see it.
var hidesHIP = []string{"HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "GPU_DEVICE_ORDINAL", "CUDA_VISIBLE_DEVICES"}

// findHIP finds an AMD GPU among those of the kernel's driver. Engines get no uuid: theirs is
// from amd-smi, which makes it from more than the kernel tells, differently per release.
func findHIP(root, name string) Place {
	p := Place{Device: name, GPU: true, AMD: true}
	want := strings.TrimPrefix(name, hipPrefix)
	all, _ := filepath.Glob(filepath.Join(root, "sys/bus/pci/drivers/amdgpu/*:*:*.*")) // which is sorted
	number, err := strconv.Atoi(want)
	for i, path := range all {
		all[i] = filepath.Base(path)
	}
	switch {
	case err == nil && number >= 0 && number < len(all):
		p.Device = hipPrefix + all[number]
	case slices.Contains(all, want):
	default:
		p.Err = fmt.Errorf("find GPU %q: /sys/bus/pci/drivers/amdgpu has %d GPUs, none of this name: %s", name, len(all), strings.Join(all, ", "))
		return p
	}
	p.Env = slices.DeleteFunc(os.Environ(), func(v string) bool {
		name, _, _ := strings.Cut(v, "=")
		return slices.Contains(hidesHIP, name)
	})
	return p
}
