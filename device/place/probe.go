// SPDX-FileCopyrightText: The wcache authors
// SPDX-License-Identifier: MIT

package place

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/wcache/wcache/device"
	"github.com/wcache/wcache/device/cuda"
	"github.com/wcache/wcache/device/nvml"
)

// Probe asks NVML about a GPU and, unless brief, also libcuda, for which it sets this process's
// environment. The report says so if one of them doesn't work. A driver may hang or end the
// process: only a child calls Probe.
func Probe(uuid string, brief bool) (device.Report, error) {
	if brief {
		return device.Report{GPU: nvml.Look(uuid)}, nil
	}
	for _, v := range cuda.Env(uuid) {
		name, value, _ := strings.Cut(v, "=")
		if err := os.Setenv(name, value); err != nil {
			return device.Report{}, err
		}
	}
	if list, err := nvml.Slices(uuid); err == nil && len(list) > 0 {
		return device.Report{GPU: unasked(uuid), Slices: list}, nil
	}
	facts, err := cuda.Look(uuid, cuda.Options{})
	if err != nil {
		fault, mend := blame(uuid, err)
		return device.Report{GPU: unasked(uuid), Fault: fault, Mend: mend}, nil
	}
	return device.Report{GPU: nvml.Look(uuid), CUDA: *facts}, nil
}

// unasked describes a GPU about which NVML was not asked.
func unasked(uuid string) device.GPU {
	return device.GPU{Index: -1, UUID: uuid, State: device.GPUUnknown, Uncorrected: -1, Processes: []device.GPUProcess{}}
}

// blame says why libcuda can't use a GPU, and what to do.
func blame(uuid string, err error) (fault, mend string) {
	var none *cuda.NoDriver
	var unknown *cuda.NotFound
	switch {
	case errors.As(err, &none):
		return none.Err.Error(), none.Do
	case errors.As(err, &unknown):
		return fmt.Sprintf("it shows no GPU %s, only %s", uuid, strings.Join(unknown.Have, ", ")), "nvidia-smi -L; a container has to be started with this GPU"
	}
	return err.Error(), "nvidia-smi and the kernel's log may say more"
}

// usersTime is how long a loader waits to learn which processes use a GPU's memory.
const usersTime = 3 * time.Second

// Users asks which processes use the memory of the device that a [Place] names; nil if the
// driver doesn't tell, or not in time. A call that hangs in the driver goes on until this
// process ends: only a child calls Users.
func Users(ctx context.Context, name string) *device.GPU {
	if name == Host || strings.HasPrefix(name, hipPrefix) {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, usersTime)
	defer cancel()
	said := make(chan device.GPU, 1)
	go func() { said <- nvml.Look(strings.TrimPrefix(name, legacyPrefix)) }()
	select {
	case g := <-said:
		if g.State == device.GPUUnknown && g.Total == 0 {
			return nil
		}
		return &g
	case <-ctx.Done():
		return nil
	}
}
