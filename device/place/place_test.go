// SPDX-FileCopyrightText: The wcache authors
// SPDX-License-Identifier: MIT

package place

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/wcache/wcache/internal/testmain"
)

func TestMain(m *testing.M) { testmain.Run(m) }

const (
	first  = "GPU-3f8a1c2d-0b1e-4c6f-9a7d-5e2b8c4f1a90"
	second = "GPU-77777777-0b1e-4c6f-9a7d-5e2b8c4f1a90"
	cut    = "MIG-0fdc1a42-0000-4000-8000-000000000000"
)

// machine is a folder with what kernels show of two GPUs of NVIDIA's, of which the second
// was not used yet if fresh, and of two of AMD's.
func machine(t *testing.T, fresh bool) string {
	t.Helper()
	root := t.TempDir()
	uuids := []string{first, second}
	if fresh {
		uuids[1] = "GPU-????????-????-????-????-????????????"
	}
	for i, uuid := range uuids {
		dir := filepath.Join(root, "proc/driver/nvidia/gpus", []string{"0000:19:00.0", "0000:3b:00.0"}[i])
		if err := os.MkdirAll(dir, 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, "information"), []byte("GPU UUID: \t "+uuid+"\n"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for _, pci := range []string{"0000:01:00.0", "0000:c1:00.0"} {
		if err := os.MkdirAll(filepath.Join(root, "sys/bus/pci/drivers/amdgpu", pci), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	return root
}

// An instance would keep weights on another GPU than engines of that name use, or tell
// them another uuid.
func TestFind(t *testing.T) {
	nvidia := func(uuid string) Place {
		return Place{Device: uuid, UUID: uuid, Legacy: "legacy:" + uuid, GPU: true}
	}
	for _, tt := range []struct {
		name string
		want Place
		err  string
	}{
		{"host", Place{Device: "host"}, ""},
		{"0", nvidia(first), ""},
		{"1", nvidia(second), ""},
		{first[:12], nvidia(first), ""},
		{cut, nvidia(cut), ""},
		{"MIG-0fdc", Place{Device: "MIG-0fdc", GPU: true}, `find GPU "MIG-0fdc": a MIG slice has to be named by its whole uuid, which nvidia-smi -L shows`},
		{"7", Place{GPU: true}, `find GPU "7": /proc/driver/nvidia has 2 GPUs, 0 of this name: 0 (` + first + `), 1 (` + second + `) (an instance is named by one of these)`},
		{"hip:1", Place{Device: "hip:0000:c1:00.0", GPU: true, AMD: true}, ""},
		{"hip:0000:c1:00.0", Place{Device: "hip:0000:c1:00.0", GPU: true, AMD: true}, ""},
		{"hip:2", Place{Device: "hip:2", GPU: true, AMD: true}, `find GPU "hip:2": /sys/bus/pci/drivers/amdgpu has 2 GPUs, none of this name: 0000:01:00.0, 0000:c1:00.0`},
	} {
		got := Find(machine(t, false), os.Getenv, tt.name)
		if diff := cmp.Diff(tt.want, got, cmpopts.IgnoreFields(Place{}, "Env", "Err")); diff != "" {
			t.Errorf("%s: -want +got:\n%s", tt.name, diff)
		}
		if said := message(got.Err); said != tt.err {
			t.Errorf("%s: error %q\nwant %q", tt.name, said, tt.err)
		}
	}
	got := Find(machine(t, true), os.Getenv, "1")
	want := `find GPU "1": the driver hasn't said its uuid yet (run nvidia-smi, and start the daemon again: systemctl --user restart wcache@1.service)`
	if message(got.Err) != want {
		t.Errorf("a GPU that nobody has used: %v", got.Err)
	}
}

func message(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}

// A loader sees the GPU that it is to open, whatever the daemon's environment hides.
func TestEnv(t *testing.T) {
	for name, want := range map[string][]string{
		"0":     {"CUDA_VISIBLE_DEVICES=" + first},
		"hip:0": nil,
	} {
		for _, hides := range hidesHIP {
			t.Setenv(hides, "none")
		}
		var got []string
		for _, v := range Find(machine(t, false), os.Getenv, name).Env {
			if key, _, _ := strings.Cut(v, "="); key == "CUDA_VISIBLE_DEVICES" || want == nil && slices.Contains(hidesHIP, key) {
				got = append(got, v)
			}
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%s: -want +got:\n%s", name, diff)
		}
	}
}

// Nobody is asked about memory that no driver of NVIDIA's counts.
func TestUsersElsewhere(t *testing.T) {
	for _, name := range []string{Host, "hip:0000:01:00.0"} {
		if g := Users(t.Context(), name); g != nil {
			t.Errorf("%s: %+v", name, g)
		}
	}
}
