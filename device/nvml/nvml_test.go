// SPDX-FileCopyrightText: The wcache authors
// SPDX-License-Identifier: MIT

package nvml

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
	"github.com/google/go-cmp/cmp"

	"github.com/wcache/wcache/systemd/generator"
)

func TestNoLibrary(t *testing.T) {
	g, err := find("libnvidia-ml-of-nobody.so.1", "GPU-")
	var none *NoDriver
	if !errors.As(err, &none) {
		t.Fatalf("find = %v, %v; want a NoDriver", g, err)
	}
	const want = "ask NVML: no libnvidia-ml-of-nobody.so.1; install the NVIDIA driver; a container has to be started with its GPUs"
	if err.Error() != want {
		t.Errorf("error %q\n want %q", err, want)
	}
}

// sameError compares errors by what is at their end.
func sameError() cmp.Option {
	return cmp.Comparer(func(a, b error) bool { return errors.Is(a, b) || errors.Is(b, a) })
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
	for _, want := range []*GPU{{
		Driver:      "580.159.03",
		Index:       0,
		UUID:        "GPU-c0310b5e-fbba-55e6-a977-3f9ff9c728ca",
		Name:        "NVIDIA H200",
		PCI:         "00000000:19:00.0",
		Total:       143157 << 20,
		Used:        2182 << 20,
		Free:        140975 << 20,
		Uncorrected: -1,
		Processes:   []Process{{4242, 629 << 20}, {4243, -1}},
	}, { // the machine's other one
		Driver:      "580.159.03",
		Index:       -1,
		UUID:        "GPU-that-is-lost",
		Uncorrected: -1,
		Err:         nvml.ERROR_GPU_IS_LOST,
	}} {
		got, err := find(library, want.UUID)
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(want, got, sameError()); diff != "" {
			t.Error(diff)
		}
	}

	testFind(t, library)
	testSlices(t, library)

	for result, do := range map[string]string{
		"9":  "load the kernel module: modprobe nvidia",
		"18": "the driver was updated while it was in use: restart the machine, which frees what all instances hold, or load its kernel modules anew when nothing uses it",
		"4":  "see who may open /dev/nvidiactl",
		"99": "see what nvidia-smi says",
	} {
		t.Setenv("FAKE_NVML_INIT", result)
		var none *NoDriver
		if _, err := find(library, "GPU-"); !errors.As(err, &none) || none.Do != do {
			t.Errorf("nvmlInit returns %s: %v; want the advice %q", result, err, do)
		}
	}
}

// testFind has one GPU after another in each state.
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

func testFind(t *testing.T, library string) {
	const whole, slice = "GPU-c0310b5e-fbba-55e6-a977-3f9ff9c728ca", "MIG-11111111-2222-3333-4444-555555555555"
	file := filepath.Join(t.TempDir(), "machine")
	t.Setenv("FAKE_NVML", file)
	for _, c := range []struct {
		about, machine, uuid string
		want                 GPU
		lost, reset, absent  bool
	}{
		{
			about: "one that is well", uuid: whole,
			machine: "gpu GPU-other\ngpu " + whole + "\ntotal 1000\nused 300\necc 2\nprocess 7 100\ngraphics 6 50\ngraphics 7 100\nrecovery 3",
			want: GPU{
				Index: 1, UUID: whole, Name: "NVIDIA H200", PCI: "00000000:19:00.0", Total: 1000 << 20, Used: 300 << 20, Free: 700 << 20,
				Uncorrected: 2, Processes: []Process{{6, 50 << 20}, {7, 100 << 20}},
			},
		},
		{
			about: "a slice, whose errors are its GPU's", uuid: slice,
			machine: "gpu " + whole + "\necc 3\nslice " + slice + "\ntotal 100\nused 1\nprocess 9 1",
			want: GPU{
				Index: -1, UUID: slice, Name: "NVIDIA H200 MIG 1g.18gb", PCI: "00000000:19:00.0", Total: 100 << 20, Used: 1 << 20, Free: 99 << 20,
				Uncorrected: 3, Processes: []Process{{9, 1 << 20}},
			},
		},
		{
			about: "one that hides who uses it", uuid: whole,
			machine: "gpu " + whole + "\ntotal 1000\nused 300\necc 2\nhidden 3\nprocess 7 100",
			want: GPU{
				UUID: whole, Name: "NVIDIA H200", PCI: "00000000:19:00.0", Total: 1000 << 20, Used: 300 << 20, Free: 700 << 20,
				Uncorrected: 2,
			},
		},
		{
			about: "one that the driver wants reset", uuid: whole, reset: true,
			machine: "gpu " + whole + "\nrecovery 1",
			want:    GPU{UUID: whole, Name: "NVIDIA H200", PCI: "00000000:19:00.0", Uncorrected: -1, Reset: true},
		},
		{
			about: "one that answers nothing before a reset", uuid: whole, reset: true,
			machine: "gpu " + whole + "\nfail 16",
			want:    GPU{Index: -1, UUID: whole, Uncorrected: -1, Err: nvml.ERROR_RESET_REQUIRED},
		},
		{
			about: "one that is lost", uuid: whole, lost: true,
			machine: "gpu " + whole + "\nfail 15",
			want:    GPU{Index: -1, UUID: whole, Uncorrected: -1, Err: nvml.ERROR_GPU_IS_LOST},
		},
		{
			about: "one that isn't there", uuid: whole, absent: true,
			machine: "gpu GPU-other",
			want:    GPU{Index: -1, UUID: whole, Uncorrected: -1, Err: nvml.ERROR_NOT_FOUND},
		},
	} {
		if err := os.WriteFile(file, []byte(c.machine), 0o600); err != nil {
			t.Fatal(err)
		}
		g, err := find(library, c.uuid)
		if err != nil {
			t.Fatalf("%s: %v", c.about, err)
		}
		c.want.Driver = "580.159.03"
		if diff := cmp.Diff(&c.want, g, sameError()); diff != "" {
			t.Errorf("%s:\n%s", c.about, diff)
		}
		if g.Lost() != c.lost || g.NeedsReset() != c.reset || g.Absent() != c.absent {
			t.Errorf("%s: lost %v, needs reset %v, absent %v", c.about, g.Lost(), g.NeedsReset(), g.Absent())
		}
	}
	if err := os.Remove(file); err != nil {
		t.Fatal(err)
	}
}

func TestReal(t *testing.T) {
	if _, err := Find("GPU-"); errors.As(err, new(*NoDriver)) {
		t.Skipf("%v; TestRead reads a machine of its own", err)
	}
	for _, gpu := range generator.Read("/", os.Getuid(), os.Getenv).GPUs {
		g, err := Find(gpu.UUID)
		if err != nil {
			t.Fatal(err)
		}
		if g.Err != nil || len(g.UUID) != len("GPU-00000000-0000-0000-0000-000000000000") || g.Total <= 0 || g.Free <= 0 {
			t.Errorf("%+v", g)
		}
		t.Logf("%+v", g)
	}
}
