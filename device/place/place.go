// SPDX-FileCopyrightText: The wcache authors
// SPDX-License-Identifier: MIT

// Package place finds and opens the device on which an instance keeps weights. [Find] finds
// the device by the instance's name and opens no driver, so the daemon can call it. [Open]
// opens the device, [Probe] and [Users] ask its driver: only a child calls these.
package place

import (
	"fmt"
	"os"
	"regexp"
	"slices"
	"strings"

	"github.com/wcache/wcache/device"
	"github.com/wcache/wcache/device/cuda"
	"github.com/wcache/wcache/device/host"
	"github.com/wcache/wcache/systemd/generator"
)

// Host is the name of the device for the machine's own memory.
const Host = "host"

// legacyPrefix begins the name of a GPU whose memory the loader keeps.
const legacyPrefix = "legacy:"

// Place describes the device of an instance.
type Place struct {
	Device string // name for [Open]
	UUID   string // uuid for engines, "" for none
	Legacy string // name for Open with legacy handles, "": the same
	GPU    bool
	AMD    bool
	Env    []string // of the loader; nil: this process's
	Err    error    // why the device is missing
}

// Find finds the device of an instance by the instance's name: the host, or a GPU by
// nvidia-smi's number or by uuid. It looks in /proc and /sys below root, "/" except in tests.
// For a missing GPU it sets Err; the daemon goes on and tells engines the error. /proc doesn't
// list MIG slices: Find accepts their names unchecked, if they are complete.
func Find(root string, env func(string) string, name string) Place {
	if name == Host {
		return Place{Device: Host}
	}
	if strings.HasPrefix(name, hipPrefix) {
		return findHIP(root, name)
	}
	p := Place{Device: name, GPU: true}
	switch {
	case slice.MatchString(name):
		p.Device = name
	case strings.HasPrefix(name, "MIG-"):
		p.Err = fmt.Errorf("find GPU %q: a MIG slice has to be named by its whole uuid, which nvidia-smi -L shows", name)
		return p
	default:
		machine := generator.Read(root, os.Getuid(), env)
		if p.Device, p.Err = uuidOf(machine, name); p.Err != nil {
			p.Err = fmt.Errorf("%w%s", p.Err, remedy(machine, name))
			return p
		}
	}
	p.UUID, p.Legacy = p.Device, legacyPrefix+p.Device
	others := slices.DeleteFunc(os.Environ(), func(v string) bool { return strings.HasPrefix(v, "CUDA_VISIBLE_DEVICES=") })
	p.Env = append(others, cuda.Env(p.UUID)...)
	return p
}

// remedy is advice for a GPU that wasn't found, for the end of an error.
func remedy(m generator.Machine, name string) string {
	again := fmt.Sprintf("start the daemon again: systemctl --user restart wcache@%s.service", name)
	switch {
	case m.WSL && len(m.GPUs) == 0:
		return " (this is WSL2, where the GPU is Windows's and its memory can't be shared: use the host's, wcache@host.socket)"
	case len(m.GPUs) > 0 && len(m.Named(name)) != 1:
		return " (an instance is named by one of these)"
	}
	return " (run nvidia-smi, and " + again + ")"
}

// slice matches the name of a MIG slice since driver 470.
var slice = regexp.MustCompile(`^MIG-[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$`)

// uuidOf is the uuid of the one GPU that a name means.
func uuidOf(m generator.Machine, name string) (string, error) {
	found := m.Named(name)
	switch {
	case len(found) != 1:
		//diag loading NAME NUMBER NUMBER LIST
		// The instance's name fits none or several of the GPUs that the driver lists, or the driver
		// is not loaded yet. Name the instance after one GPU; the end of the message says what
		// helps.
		return "", fmt.Errorf("find GPU %q: /proc/driver/nvidia has %d GPUs, %d of this name: %s", name, len(m.GPUs), len(found), m.List())
	case found[0].UUID == "":
		return "", fmt.Errorf("find GPU %q: the driver hasn't said its uuid yet", name)
	}
	return found[0].UUID, nil
}

// Check checks that a segment from the fd store belongs to this device. For exported GPU memory
// it checks nothing: only the file can be compared, and the manifest has that.
func (p Place) Check(s device.Segment) error {
	if p.GPU {
		return nil
	}
	return host.Check(s)
}
