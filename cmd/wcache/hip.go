// SPDX-FileCopyrightText: The wcache authors
// SPDX-License-Identifier: MIT

package main

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// hipPrefix begins the names of AMD's GPUs, as instances and as devices: hip:0 is
// the first on the PCI bus, as for amd-smi, and hip:0000:c1:00.0 the one at a place.
const hipPrefix = "hip:"

// hidesHIP are the variables that keep HIP from showing a GPU. The loader opens one
// by its place, and needs to see it.
var hidesHIP = []string{"HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "GPU_DEVICE_ORDINAL", "CUDA_VISIBLE_DEVICES"}

// placeOfHIP finds an AMD GPU among those of the kernel's driver. Engines are told no
// uuid: theirs is amd-smi's, which is made of more than the kernel says and not the
// same in all releases.
func placeOfHIP(sysroot, name string) place {
	p := place{device: name, gpu: true, amd: true}
	want := strings.TrimPrefix(name, hipPrefix)
	all, _ := filepath.Glob(filepath.Join(sysroot, "sys/bus/pci/drivers/amdgpu/*:*:*.*")) // which is sorted
	number, err := strconv.Atoi(want)
	for i, path := range all {
		all[i] = filepath.Base(path)
	}
	switch {
	case err == nil && number >= 0 && number < len(all):
		p.device = hipPrefix + all[number]
	case slices.Contains(all, want):
	default:
		p.err = fmt.Errorf("find GPU %q: /sys/bus/pci/drivers/amdgpu has %d GPUs, none of this name: %s", name, len(all), strings.Join(all, ", "))
		return p
	}
	p.env = slices.DeleteFunc(os.Environ(), func(v string) bool {
		name, _, _ := strings.Cut(v, "=")
		return slices.Contains(hidesHIP, name)
	})
	return p
}
