// SPDX-FileCopyrightText: The wcache authors
// SPDX-License-Identifier: MIT

package place

import (
	"errors"
	"fmt"
	"strings"

	"github.com/wcache/wcache/device"
	"github.com/wcache/wcache/device/cuda"
	"github.com/wcache/wcache/device/host"
	"github.com/wcache/wcache/device/nvml"
)

// Open opens the device that a [Place] names, for writing in blocks of blockBytes; 0: the
// device chooses. It may hang in a driver: only the loader child calls it.
func Open(name string, blockBytes int) (device.Device, error) {
	o := cuda.Options{BlockBytes: blockBytes}
	if name == Host {
		return host.Open(), nil
	}
	if uuid, keep := strings.CutPrefix(name, legacyPrefix); keep {
		d, err := cuda.OpenKeeper(uuid, o)
		if err != nil {
			return nil, sliced(uuid, err)
		}
		return d, nil
	}
	if pci, hip := strings.CutPrefix(name, hipPrefix); hip {
		return cuda.OpenHIP(pci, o)
	}
	d, err := cuda.Open(name, o)
	if err != nil {
		return nil, sliced(name, err)
	}
	return d, nil
}

// sliced returns the error of opening a GPU, unless the GPU is cut into MIG slices: then the
// driver shows its slices, or nothing since the environment names another device, but not the
// GPU itself, and the error says so.
func sliced(uuid string, err error) error {
	if !errors.As(err, new(*cuda.NoDriver)) && !errors.As(err, new(*cuda.NotFound)) {
		return err
	}
	list, _ := nvml.Slices(uuid) // NVML may be missing too
	if len(list) == 0 {
		return err
	}
	//diag loading UUID LIST
	// The GPU is in MIG mode, and an engine uses one of its slices. Start an instance for the
	// slice, by its uuid of the list.
	return fmt.Errorf("open GPU %s: it is cut into slices, which are instances of their own: %s", uuid, strings.Join(list, ", "))
}
