// SPDX-FileCopyrightText: The wcache authors
// SPDX-License-Identifier: MIT

package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/wcache/wcache/client"
	"github.com/wcache/wcache/control"
	"github.com/wcache/wcache/control/schematest"
	"github.com/wcache/wcache/device"
	"github.com/wcache/wcache/systemd/generator"
)

// See screenCommand.
const screensFolder = "../../docs/screens"

// typed is what the real command prints on a rig's machine.
func (r *rig) typed(args ...string) string {
	r.Helper()
	cmd := r.command("/proc/self/exe")
	cmd.Args = append([]string{"wcache"}, args...)
	cmd.Stderr = nil
	out, err := cmd.CombinedOutput()
	var status *exec.ExitError
	if err != nil && !errors.As(err, &status) {
		r.Fatal(err)
	}
	return string(out)
}

// screen compares what a command prints with docs/screens.
func (r *rig) screen(name string, args ...string) {
	r.Helper()
	text := "$ wcache " + strings.Join(args, " ") + "\n" + r.typed(args...)
	uid := fmt.Sprintf("vllm_weight_cache_%d/", os.Getuid())
	models, err := filepath.Abs("../../testdata/checkpoints")
	must(r.T, err)
	text = sameEachDay(text, map[string]string{
		r.uuid: "GPU-3f8a1c2d-0b1e-4c6f-9a7d-5e2b8c4f1a90", r.path("t"): "/tmp", r.dir: "/run/user/1000", models: "/home/ada/models",
		uid: "vllm_weight_cache_1000/",
	})
	if err := compareScreen(screensFolder, name, text); err != nil {
		r.Error(err)
	}
}

// TestGPUScreens shows an instance of a GPU to people: with an engine, while it
// loads, when the GPU is lost, and what doctor finds.
func TestGPUScreens(t *testing.T) {
	r := newRig(t, drivers(t))
	r.socket = r.path("vllm_weight_cache/0.sock")
	must(t, os.Mkdir(r.path("t"), 0o700), os.Mkdir(filepath.Dir(r.socket), 0o700), os.WriteFile(r.path("wcache.toml"), []byte("workers = 1\n"), 0o600))
	r.set("TMPDIR", r.path("t"))
	machine := "gpu " + r.uuid + "\ntotal 143157\nused %d\necc 0\n"
	r.nvml(fmt.Sprintf(machine, 634))
	r.serve("0")
	engine := r.gets("llama-tp1r0")
	r.nvml(fmt.Sprintf(machine+"process %d 41200\n", 41836, engine.Process.Pid))
	r.eventually("the driver is asked again", func() bool { g := r.status().GPU; return g != nil && len(g.Processes) == 1 })
	r.screen("status", "status")
	r.valid()

	r.faults("FAKE_CUDA_FAIL=cuMemcpyHtoDAsync_v2:17:hang")
	const stands = 123_040 // bytes were filled by the copies before
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		model, _ := filepath.Abs("../../testdata/checkpoints/qwen2") // or the load fails
		_, _ = client.Do(ctx, control.Path(r.socket), control.Request{Method: control.MethodWarm, Warm: &control.Warm{Model: model}}, nil)
	}()
	r.eventually("the load stands still", func() bool {
		s := r.status()
		return len(s.Entries) == 2 && s.Entries[1].Progress != nil && s.Entries[1].Progress.Done == stands
	})
	r.screen("status-loading", "status")
	r.valid()
	cancel()
	<-done

	r.healthy()
	r.screen("doctor-gpu", "doctor")

	r.nvml("gpu " + r.uuid + "\nfail 15\n")
	r.eventually("the loss is noticed", func() bool { return r.status().GPU.State == "lost" })
	r.screen("status-lost", "status")
	r.valid()
	engine.end()
	r.stop()
}

// valid holds the daemon's status against its schema.
func (r *rig) valid() {
	r.Helper()
	schema, err := schematest.Read("../../control/status.schema.json")
	must(r.T, err, schematest.Validate(schema, []byte(r.typed("status", "--json"))))
	if err := checkMetrics(r.typed("status", "--prometheus")); err != nil {
		r.Error(err)
	}
}

// healthy gives the machine all that doctor looks for, with a service manager that
// says what systemd would.
func (r *rig) healthy() {
	r.Helper()
	self, err := user.Current()
	must(r.T, err)
	pid := strconv.Itoa(r.cmd.Process.Pid)
	root := r.path("root")
	for path, text := range map[string]string{
		"dev/nvidiactl": "", "dev/nvidia-uvm": "", "dev/nvidia0": "", "var/lib/systemd/linger/" + self.Username: "", "tmp/file": "",
		"proc/driver/nvidia/gpus/0000:01:00.0/information": "GPU UUID: \t " + r.uuid + "\nDevice Minor: \t 0\n",
	} {
		must(r.T, os.MkdirAll(filepath.Dir(filepath.Join(root, path)), 0o700), os.WriteFile(filepath.Join(root, path), []byte(text), 0o600))
	}
	must(r.T, os.MkdirAll(filepath.Join(root, "proc", pid), 0o700), os.Symlink(root, filepath.Join(root, "proc", pid, "root")))
	listen := ""
	env := func(name string) string {
		for _, v := range r.env {
			if value, ok := strings.CutPrefix(v, name+"="); ok {
				return value
			}
		}
		return ""
	}
	for _, p := range generator.Read(root, os.Getuid(), env).EnginePaths(r.uuid) {
		listen += "Listen=" + p.Path + " (Stream)\\n"
	}
	script := `#!/bin/sh
case "$*" in
*Version) echo 257 ;;
*.socket) printf 'LoadState=loaded\nUnitFileState=enabled\nActiveState=active\nResult=success\n` + listen + `' ;;
*.service) printf 'ActiveState=active\nResult=success\nStatusText=1 model, 0.0 GiB, 1 engine attached\nNRestarts=0\nMainPID=` + pid + `\nFileDescriptorStoreMax=2048\nNFileDescriptorStore=4\nLimitNOFILESoft=8192\nLimitNOFILE=524288\n' ;;
esac
`
	must(r.T, os.Mkdir(r.path("bin"), 0o700), os.WriteFile(r.path("bin/systemctl"), []byte(script), 0o700))
	r.set("PATH", r.path("bin")+":"+os.Getenv("PATH"))
}

// What a driver does to who asks it, doctor survives.
func TestAskDriver(t *testing.T) {
	dir := drivers(t)
	well := device.GPU{
		State: device.GPUOK, Driver: "580.159.03", Name: "NVIDIA H200", Total: 16384 << 20, Free: 16384 << 20,
		Processes: []device.GPUProcess{},
	}
	unasked := device.GPU{Index: -1, State: device.GPUUnknown, Uncorrected: -1, Processes: []device.GPUProcess{}}
	for name, tt := range map[string]struct {
		fault string
		want  device.Report
	}{
		"well":      {"", device.Report{CUDA: device.CUDA{CUDAVersion: 13000, Exports: true}, GPU: well}},
		"exclusive": {"FAKE_CUDA_COMPUTE_MODE=3", device.Report{CUDA: device.CUDA{CUDAVersion: 13000, Exports: true, ComputeMode: 3}, GPU: well}},
		"mismatch":  {"FAKE_CUDA_FAIL=cuInit:1:803", device.Report{GPU: unasked, Fault: "cuInit: CUDA_ERROR_SYSTEM_DRIVER_MISMATCH", Mend: "the driver was updated while its old kernel module stays loaded: restart the machine, which frees what all instances hold"}},
		"too old":   {"FAKE_CUDA_VERSION=11020", device.Report{GPU: unasked, Fault: "it is for CUDA 11.2", Mend: "update the NVIDIA driver to 470 or later"}},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, dir)
			variable, value, _ := strings.Cut(tt.fault, "=")
			r.set(variable, value)
			var got device.Report
			must(t, json.Unmarshal([]byte(r.typed("probe", r.uuid)), &got))
			tt.want.UUID = r.uuid
			if diff := cmp.Diff(tt.want, got, cmpopts.IgnoreFields(device.GPU{}, "Checked")); diff != "" {
				t.Errorf("-want +got:\n%s", diff)
			}
		})
	}
}

// A process that hangs is given up in its time.
func TestOutput(t *testing.T) {
	if out, err := output(t.Context(), time.Minute, "echo", "well"); string(out) != "well\n" || err != nil {
		t.Errorf("got %q, %v", out, err)
	}
	if out, err := output(t.Context(), 20*time.Millisecond, "sleep", "100"); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("got %q, %v", out, err)
	}
}
