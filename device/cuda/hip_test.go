// SPDX-FileCopyrightText: The wcache authors
// SPDX-License-Identifier: MIT

package cuda_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/wcache/wcache/device/cuda"
)

// A place on the bus is one GPU's, or an error says which there are.
func TestHIPNames(t *testing.T) {
	library := buildHIP(t)
	const gpu = "GPU-%s-0000-4000-8000-000000000001@"
	t.Setenv("FAKE_CUDA_GPUS", strings.Join([]string{
		strings.Replace(gpu, "%s", "11111111", 1) + "c1", strings.Replace(gpu, "%s", "22222222", 1) + "3b",
		strings.Replace(gpu, "%s", "33333333", 1) + "41", strings.Replace(gpu, "%s", "44444444", 1) + "41", // two parts of one
	}, ","))
	const have = "it names none or several of 0000:c1:00.0, 0000:3b:00.0, 0000:41:00.0, 0000:41:00.0"
	for name, want := range map[string]string{
		"0000:c1:00.0": "0000:c1:00.0",
		"0000:3B:00.0": "0000:3b:00.0",
		"0000:41:00.0": `open GPU "0000:41:00.0": ` + have,
		"0000:42:00.0": `open GPU "0000:42:00.0": ` + have,
		"0":            `open GPU "0": ` + have,
		"":             `open GPU "": ` + have,
	} {
		d, err := cuda.OpenHIP(name, cuda.Options{Library: library})
		var got string
		if err == nil {
			got, err = d.UUID(), d.Close()
		}
		if err != nil {
			got = err.Error()
		}
		if got != want {
			t.Errorf("OpenHIP(%q)\n got %s\nwant %s", name, got, want)
		}
	}
}

// A machine without a usable HIP, each with what to do about it, and all of it in
// HIP's words.
func TestNoHIP(t *testing.T) {
	library := buildHIP(t)
	const (
		install = "install ROCm's HIP runtime, or start the container with its GPUs (--device /dev/kfd --device /dev/dri)"
		update  = "update ROCm to 5.2 or later"
		look    = "does rocminfo list the GPU? This user has to be allowed to open /dev/kfd and /dev/dri/renderD* (groups render and video)"
	)
	for _, tt := range []struct{ name, library, env, value, want string }{
		{"none", "libamdhip64-of-nobody.so", "", "", "libamdhip64-of-nobody.so: cannot open shared object file: No such file or directory; " + install},
		{"missing call", buildHIP(t, "hipIpcGetMemHandle"), "", "", "LIBRARY: it has no hipIpcGetMemHandle; " + update},
		{"no GPU", library, "FAKE_CUDA_GPUS", "", "LIBRARY: hipInit: hipErrorNoDevice; " + look},
		{"a later result", library, "FAKE_CUDA_FAIL", "hipInit:1:12345", "LIBRARY: hipInit: HIP error 12345; " + look},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if tt.env != "" {
				t.Setenv(tt.env, tt.value)
			}
			_, err := cuda.OpenHIP("0000:01:00.0", cuda.Options{Library: tt.library})
			if !errors.As(err, new(*cuda.NoDriver)) {
				t.Fatalf("OpenHIP: %v, want a NoDriver", err)
			}
			if want := "load GPU driver: " + strings.ReplaceAll(tt.want, "LIBRARY", tt.library); err.Error() != want {
				t.Errorf("OpenHIP:\n got %s\nwant %s", err, want)
			}
		})
	}
}
