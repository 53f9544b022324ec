// SPDX-FileCopyrightText: The wcache authors
// SPDX-License-Identifier: MIT

package nvml

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/wcache/wcache/device"
	"github.com/wcache/wcache/systemd/generator"
)

// timeless leaves out of a comparison what differs between runs.
var timeless = cmpopts.IgnoreFields(device.GPU{}, "Checked")

// nameless leaves out the names of processes, whose numbers are made up.
var nameless = cmpopts.IgnoreFields(device.GPUProcess{}, "Comm")

func TestNoLibrary(t *testing.T) {
	want := device.GPU{
		Index: -1, UUID: "GPU-", State: device.GPUUnknown, Uncorrected: -1, Processes: []device.GPUProcess{},
		Reason: "ask NVML: no libnvidia-ml-of-nobody.so.1; install the NVIDIA driver; a container has to be started with its GPUs",
	}
	if diff := cmp.Diff(want, look("libnvidia-ml-of-nobody.so.1", "GPU-"), timeless); diff != "" {
		t.Error(diff)
	}
}

// TestRead reads a library that is built for it, once, since what is bound to a
// library by its symbols stays so.
func TestRead(t *testing.T) {
	cc, err := exec.LookPath("cc")
	if err != nil {
		t.Skip("no C compiler to build a library with; TestReal reads a real one")
	}
	library := filepath.Join(t.TempDir(), "libnvidia-ml.so.1")
	if out, err := exec.Command(cc, "-shared", "-fPIC", "-Wall", "-Wextra", "-Werror", "-o", library, "testdata/nvml.c").CombinedOutput(); err != nil {
		t.Fatalf("cc: %v\n%s", err, out)
	}
	for _, want := range []device.GPU{{
		Driver:      "580.159.03",
		Index:       0,
		UUID:        "GPU-c0310b5e-fbba-55e6-a977-3f9ff9c728ca",
		Name:        "NVIDIA H200",
		State:       device.GPUOK,
		Total:       143157 << 20,
		Used:        2182 << 20,
		Free:        140975 << 20,
		Unowned:     1553 << 20,
		Uncorrected: -1,
		Processes:   []device.GPUProcess{{PID: 4242, Bytes: 629 << 20}, {PID: 4243, Bytes: -1}},
	}, { // the machine's other one
		Driver:      "580.159.03",
		Index:       -1,
		UUID:        "GPU-that-is-lost",
		State:       device.GPULost,
		Reason:      adviceLost,
		Uncorrected: -1,
		Processes:   []device.GPUProcess{},
	}} {
		if diff := cmp.Diff(want, look(library, want.UUID), timeless, nameless); diff != "" {
			t.Error(diff)
		}
	}

	testLook(t, library)
	testSlices(t, library)

	for result, do := range map[string]string{
		"9":  "load the kernel module: modprobe nvidia",
		"18": "the driver was updated while it was in use: restart the machine, which frees what all instances hold, or load its kernel modules anew when nothing uses it",
		"4":  "see who may open /dev/nvidiactl",
		"99": "see what nvidia-smi says",
		"6":  "see what nvidia-smi says", // nor is the GPU gone for what a library says of itself
		"15": "see what nvidia-smi says",
	} {
		t.Setenv("FAKE_NVML_INIT", result)
		if g := look(library, "GPU-"); g.State != device.GPUUnknown || !strings.HasSuffix(g.Reason, "; "+do) {
			t.Errorf("nvmlInit returns %s: %+v; want the advice %q", result, g, do)
		}
	}
}

func testSlices(t *testing.T, library string) {
	file := filepath.Join(t.TempDir(), "machine")
	t.Setenv("FAKE_NVML", file)
	if err := os.WriteFile(file, []byte("gpu GPU-whole\ngpu GPU-cut\nslice MIG-1\nslice MIG-2\ngpu GPU-odd\nfail 3\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for uuid, want := range map[string][]string{"GPU-whole": nil, "GPU-cut": {"MIG-1", "MIG-2"}} {
		if got, err := slicesOf(library, uuid); err != nil || cmp.Diff(want, got) != "" {
			t.Errorf("%s: got %q, %v, want %q", uuid, got, err, want)
		}
	}
	if got, err := slicesOf(library, "GPU-odd"); err == nil {
		t.Errorf("one that isn't there has %q", got)
	}
}

// testLook has one GPU after another in each state.
func testLook(t *testing.T, library string) {
	const whole, slice = "GPU-c0310b5e-fbba-55e6-a977-3f9ff9c728ca", "MIG-11111111-2222-3333-4444-555555555555"
	file := filepath.Join(t.TempDir(), "machine")
	t.Setenv("FAKE_NVML", file)
	for _, c := range []struct {
		about, machine, uuid string
		want                 device.GPU
	}{
		{
			about: "one that is well", uuid: whole,
			machine: "gpu GPU-other\ngpu " + whole + "\ntotal 1000\nused 300\necc 2\nprocess 7 100\ngraphics 6 50\ngraphics 7 100\nrecovery 3",
			want: device.GPU{
				Index: 1, UUID: whole, Name: "NVIDIA H200", Total: 1000 << 20, Used: 300 << 20, Free: 700 << 20, Unowned: 150 << 20,
				Uncorrected: 2, Processes: []device.GPUProcess{{PID: 6, Bytes: 50 << 20}, {PID: 7, Bytes: 100 << 20}},
			},
		},
		{
			about: "a slice, whose errors are its GPU's", uuid: slice,
			machine: "gpu " + whole + "\necc 3\nslice " + slice + "\ntotal 100\nused 1\nprocess 9 1",
			want: device.GPU{
				Index: -1, UUID: slice, Name: "NVIDIA H200 MIG 1g.18gb", Total: 100 << 20, Used: 1 << 20, Free: 99 << 20,
				Uncorrected: 3, Processes: []device.GPUProcess{{PID: 9, Bytes: 1 << 20}},
			},
		},
		{
			about: "one that hides who uses it", uuid: whole,
			machine: "gpu " + whole + "\ntotal 1000\nused 300\necc 2\nhidden 3\nprocess 7 100",
			want: device.GPU{
				UUID: whole, Name: "NVIDIA H200", Total: 1000 << 20, Used: 300 << 20, Free: 700 << 20, Unowned: 300 << 20,
				Uncorrected: 2,
			},
		},
		{
			about: "one that the driver wants reset", uuid: whole,
			machine: "gpu " + whole + "\nrecovery 1",
			want:    device.GPU{UUID: whole, Name: "NVIDIA H200", Uncorrected: -1, State: device.GPUReset, Reason: adviceReset},
		},
		{
			about: "one that answers nothing before a reset", uuid: whole,
			machine: "gpu " + whole + "\nfail 16",
			want:    device.GPU{Index: -1, UUID: whole, Uncorrected: -1, State: device.GPUReset, Reason: adviceReset},
		},
		{
			about: "one that is lost", uuid: whole,
			machine: "gpu " + whole + "\nfail 15",
			want:    device.GPU{Index: -1, UUID: whole, Uncorrected: -1, State: device.GPULost, Reason: adviceLost},
		},
		{
			about: "one that isn't there", uuid: whole,
			machine: "gpu GPU-other",
			want:    device.GPU{Index: -1, UUID: whole, Uncorrected: -1, State: device.GPUAbsent, Reason: adviceGone},
		},
	} {
		if err := os.WriteFile(file, []byte(c.machine), 0o600); err != nil {
			t.Fatal(err)
		}
		c.want.Driver = "580.159.03"
		if c.want.State == "" {
			c.want.State = device.GPUOK
		}
		if c.want.Processes == nil {
			c.want.Processes = []device.GPUProcess{}
		}
		if diff := cmp.Diff(c.want, look(library, c.uuid), timeless, nameless); diff != "" {
			t.Errorf("%s:\n%s", c.about, diff)
		}
	}
	if err := os.Remove(file); err != nil {
		t.Fatal(err)
	}
}

func TestReal(t *testing.T) {
	if _, err := Slices("GPU-"); errors.As(err, new(*NoDriver)) {
		t.Skipf("%v; TestRead reads a machine of its own", err)
	}
	for _, gpu := range generator.Read("/", os.Getuid(), os.Getenv).GPUs {
		g := Look(gpu.UUID)
		if g.State != device.GPUOK || len(g.UUID) != len("GPU-00000000-0000-0000-0000-000000000000") || g.Total <= 0 || g.Free <= 0 {
			t.Errorf("%+v", g)
		}
		t.Logf("%+v", g)
	}
}
