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

// Open opens the device that a [Place] names, to be written in blocks of so many bytes;
// 0 leaves that to the device. It may hang in a driver: it is for the loader child.
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

// sliced gives the error of opening a GPU again, unless that is cut into MIG slices: then
// the driver shows these, or none as the environment asks for another device, and not what
// they are cut from.
func sliced(uuid string, err error) error {
	if !errors.As(err, new(*cuda.NoDriver)) && !errors.As(err, new(*cuda.NotFound)) {
		return err
	}
	list, _ := nvml.Slices(uuid) // which may be missing as well
	if len(list) == 0 {
		return err
	}
	//diag loading UUID LIST
	// The GPU is in MIG mode, and an engine uses one of its slices. Start an instance for the
	// slice, by its uuid of the list.
	return fmt.Errorf("open GPU %s: it is cut into slices, which are instances of their own: %s", uuid, strings.Join(list, ", "))
}
