// SPDX-FileCopyrightText: The wcache authors
// SPDX-License-Identifier: MIT

package cuda_test

import (
	"errors"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/wcache/wcache/device"
	"github.com/wcache/wcache/device/cuda"
)

func TestLook(t *testing.T) {
	library, uuid := build(t), newGPU(t, 0)
	t.Setenv("FAKE_CUDA_COMPUTE_MODE", "3")
	got, err := cuda.Look(uuid, cuda.Options{Library: library})
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(&device.CUDA{CUDAVersion: 13000, ComputeMode: 3, Exports: true}, got); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
	var unknown *cuda.NotFound
	if _, err := cuda.Look("GPU-none", cuda.Options{Library: library}); !errors.As(err, &unknown) {
		t.Errorf("got %v", err)
	}
	var none *cuda.NoDriver
	if _, err := cuda.Look(uuid, cuda.Options{Library: "libcuda-of-nobody.so.1"}); !errors.As(err, &none) {
		t.Errorf("got %v", err)
	}
}
