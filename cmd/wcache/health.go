// SPDX-FileCopyrightText: The wcache authors
// SPDX-License-Identifier: MIT

package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/wcache/wcache/device/nvml"
	"github.com/wcache/wcache/loader"
)

// health is the child in which serve asks the driver's library how a GPU is: the
// library keeps whoever asks about a lost GPU, and the daemon has no driver open.
func (a *app) health() *cobra.Command {
	return &cobra.Command{
		Use:    "health UUID",
		Short:  "say in JSON how a GPU is, for the daemon that started it",
		Hidden: true,
		Args:   arguments(1, 1),
		RunE: func(_ *cobra.Command, args []string) error {
			return a.printJSON(examine(args[0]))
		},
	}
}

// examine asks the driver about one GPU. That it can't be asked is an answer too.
func examine(uuid string) loader.Health {
	unknown := loader.Health{UUID: uuid, Index: -1, State: loader.GPUUnknown, Uncorrected: -1, Processes: []loader.Process{}}
	g, err := nvml.Find(uuid)
	if err != nil {
		unknown.Reason = err.Error()
		return unknown
	}
	h := loader.Health{
		UUID: g.UUID, Index: g.Index, Name: g.Name, Driver: g.Driver, State: loader.GPUOK,
		Total: g.Total, Used: g.Used, Free: g.Free, Uncorrected: g.Uncorrected, Processes: []loader.Process{},
	}
	for _, p := range g.Processes {
		comm, _ := os.ReadFile(fmt.Sprintf("/proc/%d/comm", p.PID)) // of another namespace, or ended
		h.Processes = append(h.Processes, loader.Process{PID: p.PID, Comm: strings.TrimSpace(string(comm)), Bytes: p.Bytes})
	}
	switch {
	case g.Lost():
		h.State, h.Reason = loader.GPULost, "it has fallen off the bus: restart the machine, which frees what all instances hold; the kernel's log (dmesg, NVRM: Xid) says why"
	case g.NeedsReset():
		h.State, h.Reason = loader.GPUReset, "nvidia-smi --gpu-reset as root when nothing uses it, or restart the machine, which frees what all instances hold; the kernel's log (dmesg, NVRM: Xid) says why"
	case g.Absent():
		h.State, h.Reason = loader.GPUAbsent, "nvidia-smi -L lists the GPUs that are"
	case g.Err != nil:
		h.State, h.Reason = loader.GPUUnknown, g.Err.Error()
	}
	return h
}

// askTime is how long a loader asks who has taken a GPU's memory.
const askTime = 3 * time.Second

// memoryUsers says who holds the memory of a job's device, in the loader child: "" where
// nobody can tell, or not in time.
func memoryUsers(ctx context.Context, name string) string {
	if name == deviceHost || strings.HasPrefix(name, hipPrefix) {
		return ""
	}
	name = strings.TrimPrefix(name, legacyPrefix)
	ctx, cancel := context.WithTimeoutCause(ctx, askTime, errors.New("the driver doesn't answer"))
	defer cancel()
	said := make(chan loader.Health, 1)
	go func() { said <- examine(name) }() // what hangs ends with this process
	select {
	case h := <-said:
		return holders(h)
	case <-ctx.Done():
		return ""
	}
}

// mostHolders is how many processes a message names.
const mostHolders = 8

// holders words who holds a GPU's memory, whoever has most of it first.
func holders(h loader.Health) string {
	if h.State == loader.GPUUnknown && h.Total == 0 {
		return ""
	}
	var who []string
	slices.SortStableFunc(h.Processes, func(a, b loader.Process) int { return cmp.Compare(b.Bytes, a.Bytes) })
	for i, p := range h.Processes {
		if i == mostHolders {
			who = append(who, fmt.Sprintf("%d more", len(h.Processes)-i))
			break
		}
		name := p.Comm
		if name == "" {
			name = "a process"
		}
		text := fmt.Sprintf("%s (pid %d)", name, p.PID)
		if p.Bytes >= 0 {
			text += " " + size(p.Bytes)
		}
		who = append(who, text)
	}
	if n := h.Unowned(); n > 0 {
		who = append(who, size(n)+" of no process")
	}
	if len(who) == 0 {
		return ""
	}
	return fmt.Sprintf("%s of %s are used: %s", size(h.Used), size(h.Total), strings.Join(who, ", "))
}
