// SPDX-FileCopyrightText: The wcache authors
// SPDX-License-Identifier: MIT

package cuda_test

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/wcache/wcache/device/cuda"
)

// Each call of the driver fails once in a load, at its first and second use. What
// comes of it names the call, and nothing of the load is left: neither memory, nor
// descriptors, nor anything in the context, of which the fake would complain.
func TestFaults(t *testing.T) {
	library := build(t)
	for i, tt := range []struct {
		call string
		once bool // in a load
	}{
		{"cuDeviceGetCount", true},
		{"cuDeviceGet", true},
		{"cuDeviceGetUuid_v2", true},
		{"cuDeviceGetUuid", true},
		{"cuDeviceGetAttribute", false},
		{"cuMemGetAllocationGranularity", true},
		{"cuDevicePrimaryCtxRetain", false},
		{"cuCtxSetCurrent", false},
		{"cuMemGetInfo_v2", true},
		{"cuMemCreate", true},
		{"cuMemAddressReserve", false},
		{"cuMemMap", false},
		{"cuMemSetAccess", false},
		{"cuStreamCreate", false},
		{"cuEventCreate", false},
		{"cuMemHostRegister_v2", false},
		{"cuMemcpyHtoDAsync_v2", false},
		{"cuEventRecord", false},
		{"cuEventSynchronize", false},
		{"cuStreamSynchronize", false},
		{"cuCtxSynchronize", true},
		{"cuMemExportToShareableHandle", true},
		{"cuMemImportFromShareableHandle", true},
		{"cuMemcpyDtoH_v2", true},
		{"cuMemcpyDtoHAsync_v2", false},
	} {
		for use := 1; use <= 2; use++ {
			if use == 2 && tt.once {
				continue
			}
			t.Run(fmt.Sprintf("%s:%d", tt.call, use), func(t *testing.T) {
				uuid := newGPU(t, 2*i+use)
				t.Setenv("FAKE_CUDA_FAIL", fmt.Sprintf("%s:%d:700", tt.call, use))
				refused(t, load(library, uuid), tt.call)
				t.Setenv("FAKE_CUDA_FAIL", "")
				unused(t, library, uuid)
			})
		}
	}
}

// What fails to let go of something says so, and lets go of all else.
func TestFaultsAtTheEnd(t *testing.T) {
	library := build(t)
	for _, call := range []string{
		"cuMemUnmap", "cuMemAddressFree", "cuMemRelease", "cuDevicePrimaryCtxRelease_v2",
		"cuEventDestroy_v2", "cuMemHostUnregister", "cuStreamDestroy_v2",
	} {
		t.Run(call, func(t *testing.T) {
			t.Parallel()
			out, err := child(t, "loader", library, "0", "FAKE_CUDA_FAIL="+call+":1:700").CombinedOutput()
			if name := strings.TrimSuffix(call, "_v2"); err == nil || !strings.Contains(string(out), name+": CUDA_ERROR_ILLEGAL_ADDRESS") {
				t.Errorf("load: %v\n%s", err, out)
			}
		})
	}
}

func refused(t *testing.T, err error, call string) {
	t.Helper()
	var e *cuda.Error
	if !errors.As(err, &e) || e.Result != 700 {
		t.Fatalf("load: %v, want result 700 of %s", err, call)
	}
	// A call that only makes a context current has the name of what needed it.
	if name := strings.TrimSuffix(call, "_v2"); call != "cuCtxSetCurrent" && strings.TrimSuffix(e.Call, "_v2") != name {
		t.Errorf("load: %v, want the error of %s", err, name)
	}
	if strings.Contains(err.Error(), "ILLEGAL_STATE") {
		t.Errorf("load left something behind: %v", err)
	}
}

// A buffer that lacks a writer's bytes is never a segment.
func TestNoSealAfterFailure(t *testing.T) {
	library, uuid := build(t), newGPU(t, 0)
	for _, call := range []string{"cuMemHostRegister_v2", "cuMemcpyHtoDAsync_v2", "cuEventSynchronize", "cuStreamSynchronize"} {
		t.Setenv("FAKE_CUDA_FAIL", call+":1:700")
		d := open(t, library, uuid)
		b, err := d.Alloc(8 << 20)
		if err != nil {
			t.Fatal(err)
		}
		if err := write(b); err == nil {
			t.Errorf("%s: no error of the writer", call)
		}
		if s, err := b.Seal(); err == nil {
			_ = s.Close()
			t.Errorf("%s: the buffer is sealed", call)
		}
		if err := errors.Join(b.Close(), d.Close()); err != nil {
			t.Errorf("%s: %v", call, err)
		}
	}
}

// unused checks that nobody has memory of a GPU, and that it is as good as new.
func unused(t *testing.T, library, uuid string) {
	t.Helper()
	d := open(t, library, uuid)
	if free, err := d.Free(); err != nil || free != 16<<30 {
		t.Errorf("%d bytes are free, %v; want all", free, err)
	}
	if err := load(library, uuid); err != nil {
		t.Errorf("load after one that failed: %v", err)
	}
}

// Case S2: a loader that dies in mid-copy leaves nothing.
func TestKilled(t *testing.T) {
	library, uuid := build(t), newGPU(t, 0)
	err := child(t, "loader", library, uuid, "FAKE_CUDA_FAIL=cuMemcpyHtoDAsync_v2:3:kill").Run()
	if err == nil || err.Error() != "signal: "+unix.SIGKILL.String() {
		t.Fatalf("loader: %v, want it killed", err)
	}
	unused(t, library, uuid)
}

// Case D3: a machine without a usable driver, each with what to do about it.
func TestNoDriver(t *testing.T) {
	library := build(t)
	empty := another(t, library)
	if err := os.Truncate(empty, 0); err != nil {
		t.Fatal(err)
	}
	const (
		install = "install the NVIDIA driver, or start the container with its GPUs (nvidia-container-toolkit)"
		update  = "update the NVIDIA driver to 470 or later"
	)
	for _, tt := range []struct{ name, library, env, value, want string }{
		{"none", "libcuda-of-nobody.so.1", "", "", "libcuda-of-nobody.so.1: cannot open shared object file: No such file or directory; " + install},
		{"no library", empty, "", "", empty + ": file too short; " + install},
		{"missing call", build(t, "cuMemCreate"), "", "", "LIBRARY: it has no cuMemCreate; " + update},
		{"too old", library, "FAKE_CUDA_VERSION", "11020", "LIBRARY: it is for CUDA 11.2; " + update},
		{"no GPU", library, "CUDA_VISIBLE_DEVICES", "GPU-none", "LIBRARY: cuInit: CUDA_ERROR_NO_DEVICE; no GPU is visible: nvidia-smi -L lists those of the machine, CUDA_VISIBLE_DEVICES hides some"},
		{"updated", library, "FAKE_CUDA_FAIL", "cuInit:1:803", "LIBRARY: cuInit: CUDA_ERROR_SYSTEM_DRIVER_MISMATCH; the driver was updated while its old kernel module stays loaded: restart the machine, which frees what all instances hold"},
		{"no fabric", library, "FAKE_CUDA_FAIL", "cuInit:1:802", "LIBRARY: cuInit: CUDA_ERROR_SYSTEM_NOT_READY; the GPUs are still being set up: is nvidia-fabricmanager running?"},
		{"a later result", library, "FAKE_CUDA_FAIL", "cuInit:1:12345", "LIBRARY: cuInit: CUDA error 12345; nvidia-smi and the kernel's log may say more"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if tt.env != "" {
				t.Setenv(tt.env, tt.value)
			}
			_, err := cuda.Open("0", cuda.Options{Library: tt.library})
			if !errors.As(err, new(*cuda.NoDriver)) {
				t.Fatalf("Open: %v, want a NoDriver", err)
			}
			if want := "load GPU driver: " + strings.ReplaceAll(tt.want, "LIBRARY", tt.library); err.Error() != want {
				t.Errorf("Open:\n got %s\nwant %s", err, want)
			}
		})
	}
}

func TestNoExport(t *testing.T) {
	t.Setenv("FAKE_CUDA_NO_VMM", "1")
	_, err := cuda.Open("0", cuda.Options{Library: build(t)})
	if !errors.As(err, new(*cuda.NoExport)) {
		t.Errorf("Open: %v, want a NoExport", err)
	}
}
