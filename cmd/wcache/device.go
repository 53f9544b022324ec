// SPDX-FileCopyrightText: The wcache authors
// SPDX-License-Identifier: MIT

package main

import (
	"errors"
	"fmt"
	"os"
	"regexp"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/wcache/wcache/device"
	"github.com/wcache/wcache/device/cuda"
	"github.com/wcache/wcache/device/host"
	"github.com/wcache/wcache/device/nvml"
	"github.com/wcache/wcache/systemd/generator"
)

const deviceHost = "host"

// legacyPrefix begins the name of a GPU whose memory the loader is to keep.
const legacyPrefix = "legacy:"

// place is where an instance keeps weights.
type place struct {
	device string // what the loader opens
	uuid   string // that engines are told, "" for none
	legacy string // what it opens for legacy handles, "" where that is no other
	gpu    bool
	amd    bool
	env    []string // of the loader; nil: this process's
	err    error    // why there is no such device
}

// placeOf finds the device that an instance is named after: the host, or a GPU by
// nvidia-smi's number or by uuid. The daemon opens no driver, so it looks in /proc.
// A GPU that isn't there is no reason to end: engines are told why. MIG slices are
// in no file of /proc: their names are taken at their word, if they are whole.
func (a *app) placeOf(name string) place {
	if name == deviceHost {
		return place{device: deviceHost}
	}
	if strings.HasPrefix(name, hipPrefix) {
		return placeOfHIP(a.sysroot, name)
	}
	p := place{device: name, gpu: true}
	switch {
	case slice.MatchString(name):
		p.device = name
	case strings.HasPrefix(name, "MIG-"):
		p.err = fmt.Errorf("find GPU %q: a MIG slice has to be named by its whole uuid, which nvidia-smi -L shows", name)
		return p
	default:
		machine := generator.Read(a.sysroot, os.Getuid(), a.env)
		if p.device, p.err = uuidOf(machine, name); p.err != nil {
			p.err = fmt.Errorf("%w%s", p.err, remedy(machine, name))
			return p
		}
	}
	p.uuid, p.legacy = p.device, legacyPrefix+p.device
	others := slices.DeleteFunc(os.Environ(), func(v string) bool { return strings.HasPrefix(v, "CUDA_VISIBLE_DEVICES=") })
	p.env = append(others, cuda.Env(p.uuid)...)
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

// open is the device of a job, in the loader child.
func open(name string, blockBytes int) (device.Device, error) {
	o := cuda.Options{BlockBytes: blockBytes}
	if name == deviceHost {
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

// check is how a descriptor that was kept is known to be a segment. Of exported
// memory nothing can be said but which file it is, which the manifest has.
func (p place) check(s device.Segment) error {
	if p.gpu {
		return nil
	}
	return host.Check(s)
}

// lend lets engines of this user fetch descriptors from this process, which Yama
// and a lost dumpable flag would keep them from. Kernels without Yama know no
// such permission, and need none.
func lend() error {
	if err := unix.Prctl(unix.PR_SET_DUMPABLE, 1, 0, 0, 0); err != nil {
		return fmt.Errorf("make the process dumpable: %w", err)
	}
	const anyone = ^uintptr(0) // PR_SET_PTRACER_ANY
	if err := unix.Prctl(unix.PR_SET_PTRACER, anyone, 0, 0, 0); err != nil && err != unix.EINVAL {
		return fmt.Errorf("allow engines to fetch descriptors: %w", err)
	}
	return nil
}
