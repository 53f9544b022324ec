// SPDX-FileCopyrightText: The wcache authors
// SPDX-License-Identifier: MIT

// Package place is about where an instance keeps weights. [Find] finds the device that
// an instance is named after and opens no driver, as befits the daemon; [Open] opens it,
// [Probe] and [Users] ask its driver, all of them in a child.
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

// Host is the name of the device that is the machine's own memory.
const Host = "host"

// legacyPrefix begins the name of a GPU whose memory the loader is to keep.
const legacyPrefix = "legacy:"

// Place is where an instance keeps weights.
type Place struct {
	Device string // what [Open] opens
	UUID   string // that engines are told, "" for none
	Legacy string // what Open opens for legacy handles, "" where that is no other
	GPU    bool
	AMD    bool
	Env    []string // of the loader; nil: this process's
	Err    error    // why there is no such device
}

// Find finds the device that an instance is named after: the host, or a GPU by
// nvidia-smi's number or by uuid. It looks in /proc and /sys below root, "/" but in
// tests. A GPU that isn't there is no reason for a daemon to end: engines are told the
// place's Err. MIG slices are in no file of /proc: their names are taken at their word,
// if they are whole.
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

// remedy is what has a GPU be found that isn't, for the end of an error.
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

// slice is the name of a MIG slice since driver 470.
var slice = regexp.MustCompile(`^MIG-[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$`)

// uuidOf is the uuid of the one GPU that a name is for.
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

// Check is how a descriptor that was kept is known to be a segment of the place. Of
// exported memory nothing can be said but which file it is, which the manifest has.
func (p Place) Check(s device.Segment) error {
	if p.GPU {
		return nil
	}
	return host.Check(s)
}
