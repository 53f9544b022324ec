// SPDX-FileCopyrightText: The wcache authors
// SPDX-License-Identifier: MIT

package main

import (
	"os"
	"strings"
	"testing"
)

// TestGPUReal is the part of TestGPU that a real GPU can show: the first one of this
// machine, with its own driver.
func TestGPUReal(t *testing.T) {
	if _, err := os.Stat("/proc/driver/nvidia/gpus"); err != nil {
		t.Skipf("%v; TestGPU has machines of its own", err)
	}
	r := newRig(t, t.TempDir())
	r.set(envRoot, "/")
	for _, name := range []string{"LD_LIBRARY_PATH", "FAKE_CUDA_GPUS", "FAKE_NVML"} {
		r.set(name, "")
	}
	r.managed(16)
	r.serve("0")
	p := r.gets("llama-tp1r0")
	g := r.seen("ok").GPU
	if g.Name == "" || g.Driver == "" || g.Total <= 0 || g.Free <= 0 || g.Index != 0 || g.UUID != r.status().Device.UUID {
		t.Errorf("status says %+v", g)
	}
	t.Logf("%+v", g)
	r.kill()
	r.faults("CUDA_VISIBLE_DEVICES=none") // nothing is loaded again
	r.serve("0")
	q := r.gets("llama-tp1r0")
	if s := r.status(); s.Counts.Loads != 0 || s.Counts.Hits != 1 || len(s.Problems) != 0 {
		t.Errorf("%+v, problems %q", s.Counts, s.Problems)
	}
	if sums := p.read(r); strings.Join(sums, "\n") != strings.Join(p.sums, "\n") {
		t.Error("the first engine reads other values")
	}
	p.end()
	q.end()
	r.refusedBy("0.33.0-get_state-llama-tp2r1", "error: load model: open device …")
}
