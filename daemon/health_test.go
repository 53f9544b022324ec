// SPDX-FileCopyrightText: The wcache authors
// SPDX-License-Identifier: MIT

package daemon

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/wcache/wcache/device"
	"github.com/wcache/wcache/internal/testmain"
	"github.com/wcache/wcache/loader"
	"github.com/wcache/wcache/manifest"
)

// gpu is an instance of a GPU that is as well as says tells, whose loaders wait at a
// gate.
func gpu(t *testing.T, g gate) (i *instance, errors func(n int)) {
	t.Helper()
	says := filepath.Join(t.TempDir(), "health")
	errors = func(n int) {
		t.Helper()
		text := fmt.Sprintf(`{"uuid":"GPU-1","state":"ok","uncorrected_errors":%d}`, n)
		do(t, os.WriteFile(says+".new", []byte(text), 0o600), os.Rename(says+".new", says))
	}
	errors(0)
	return start(t, func(s *setup) {
		atGate(g)(s)
		s.GPU, s.Device, s.UUID = true, "GPU-1", "GPU-1"
		s.Health = loader.Options{Command: []string{"/bin/sh", "-c", "cat " + says, "sh"}}
	}), errors
}

// A count of errors that only weights of an earlier process had to outlive says
// nothing of a load: the machine was started again, or it is another GPU's.
func TestErrorsOfNothing(t *testing.T) {
	t.Parallel()
	g := newGate(t)
	i, _ := gpu(t, g)
	three := int64(3)
	do(t, (&manifest.Manifest{Uncorrected: &three}).Save(i.o.Manifest))
	i.Recover(nil)
	got := later(t, i.target, getState(t, key(t, "llama-tp1r0")))
	open := g.arrived(t)
	testmain.Eventually(t, "somebody has looked", func() bool { h, _ := i.gpu.health(); return h != nil })
	open()
	if got := <-got; got != "ok" {
		t.Error(got)
	}
}

// An error that is first seen during a load may have been there before. It is loaded
// once more, and the engine has its weights.
func TestErrorsDuringLoad(t *testing.T) {
	t.Parallel()
	g := newGate(t)
	i, errors := gpu(t, g)
	i.gpu.wait(t.Context(), i.gpu.look(i.ctx, 0))
	got := later(t, i.target, getState(t, key(t, "llama-tp1r0")))
	open := g.arrived(t)
	errors(1)
	i.gpu.wait(t.Context(), i.gpu.look(i.ctx, 0))
	i.gpu.wait(t.Context(), i.gpu.look(i.ctx, 0)) // the first may have been under way
	open()
	again := g.arrived(t)
	again()
	if got := <-got; got != "ok" {
		t.Error(got)
	}
}

// The status doesn't wait for a driver that doesn't answer.
func TestSlowLook(t *testing.T) {
	t.Parallel()
	g := newGate(t)
	i, _ := gpu(t, g)
	answer := make(chan struct{})
	i.gpu.ask = func(context.Context) (*device.GPU, error) {
		<-answer
		return &device.GPU{State: device.GPUOK, Uncorrected: -1}, nil
	}
	if s := i.status(t); s.GPU != nil {
		t.Errorf("GPU %+v", s.GPU)
	}
	close(answer)
	i.gpu.wait(t.Context(), i.gpu.look(i.ctx, 0))
	if s := i.status(t); s.GPU == nil || s.GPU.State != device.GPUOK {
		t.Errorf("GPU %+v", s.GPU)
	}
}

// When a driver hangs its callers so that no signal reaches them, the daemon starts one process,
// and not one per request.
func TestStuck(t *testing.T) {
	t.Parallel()
	g := newGate(t)
	i, _ := gpu(t, g)
	ended := make(chan struct{})
	asked := 0 // looks wait for each other
	i.gpu.ask = func(context.Context) (*device.GPU, error) {
		asked++
		return nil, &loader.Stuck{Ended: ended, Err: errSlowLook}
	}
	for range 3 {
		i.gpu.wait(t.Context(), i.gpu.look(i.ctx, 0))
	}
	if asked != 1 {
		t.Errorf("%d processes hang", asked)
	}
	if s := i.status(t); s.GPU == nil || s.GPU.State != device.GPUUnknown {
		t.Errorf("GPU %+v", s.GPU)
	}
	close(ended)
	i.gpu.wait(t.Context(), i.gpu.look(i.ctx, 0))
	if asked != 2 {
		t.Errorf("asked %d times", asked)
	}
}
