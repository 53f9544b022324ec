// SPDX-FileCopyrightText: The wcache authors
// SPDX-License-Identifier: MIT

package cuda

import (
	"cmp"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
)

// gpu is a device that the driver shows: a GPU or a MIG slice of one.
type gpu struct {
	device int    // CUdevice
	uuid   string // in NVML's form; for AMD's GPUs, the address on the PCI bus
	pci    [3]int // domain, bus and device
}

// formatUUID writes a uuid in NVML's form, with a prefix, which CUDA doesn't give.
func formatUUID(b [16]byte, slice bool) string {
	prefix := "GPU"
	if slice {
		prefix = "MIG"
	}
	return fmt.Sprintf("%s-%x-%x-%x-%x-%x", prefix, b[:4], b[4:6], b[6:8], b[8:10], b[10:])
}

// parsePCI reads an address on the PCI bus: domain, bus, device and function in hexadecimal,
// 0000:3B:00.0.
func parsePCI(id string) (pci [3]int) {
	id, _, _ = strings.Cut(id, ".")
	for i, field := range strings.SplitN(id, ":", len(pci)) {
		n, _ := strconv.ParseUint(field, 16, 31) // drivers write it so; else the order is theirs
		pci[i] = int(n)
	}
	return pci
}

// findVisible is find in this process's environment.
func findVisible(list []gpu, name string) (gpu, error) {
	return find(list, name, os.Getenv(visibleDevices))
}

// find finds the GPU of a name: a uuid, a unique prefix of one, or a number in PCI order, as in
// nvidia-smi. Visible is CUDA_VISIBLE_DEVICES, which changes the meaning of numbers.
func find(list []gpu, name, visible string) (gpu, error) {
	slices.SortStableFunc(list, func(a, b gpu) int { return slices.CompareFunc(a.pci[:], b.pci[:], cmp.Compare) })
	if i, err := strconv.ParseUint(name, 10, 16); err == nil {
		if visible != "" {
			return gpu{}, &NotFound{Name: name, Have: uuids(list), Hidden: visible}
		}
		if int(i) < len(list) {
			return list[i], nil
		}
		return gpu{}, &NotFound{Name: name, Have: uuids(list)}
	}
	var found []gpu
	if len(name) > len("GPU-") {
		for _, g := range list {
			if len(name) <= len(g.uuid) && strings.EqualFold(g.uuid[:len(name)], name) {
				found = append(found, g)
			}
		}
	}
	if len(found) != 1 {
		return gpu{}, &NotFound{Name: name, Have: uuids(list)}
	}
	return found[0], nil
}

func uuids(list []gpu) []string {
	names := make([]string, len(list))
	for i, g := range list {
		names[i] = g.uuid
	}
	return names
}
