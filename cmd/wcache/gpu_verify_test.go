// SPDX-FileCopyrightText: The wcache authors
// SPDX-License-Identifier: MIT

package main

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// TestGPUVerify is the verification of what is on a GPU, by a child of the daemon.
func TestGPUVerify(t *testing.T) {
	dir := drivers(t)
	for name, test := range map[string]func(*testing.T, string){
		"memory":        testVerifyGPU,
		"legacy memory": testVerifyKept,
		"faults":        testVerifyFaults,
	} {
		t.Run(strings.ReplaceAll(name, " ", "_"), func(t *testing.T) {
			t.Parallel()
			test(t, dir)
		})
	}
}

// verify runs the command and compares its exit status and what it says.
func (r *rig) verify(exit int, want string) {
	r.Helper()
	cmd := r.command("/proc/self/exe")
	cmd.Args = []string{"wcache", "--socket", r.socket, "verify"}
	out, err := cmd.Output()
	got := 0
	var status *exec.ExitError
	if errors.As(err, &status) {
		got = status.ExitCode()
	} else {
		must(r.T, err)
	}
	if got != exit {
		r.Errorf("it exits with %d, not %d", got, exit)
	}
	r.like(string(out), want)
}

// flip changes a byte of the GPU's memory, which a process holds.
func (r *rig) flip(pid int, at int64) {
	r.Helper()
	links, err := filepath.Glob(fmt.Sprintf("/proc/%d/fd/*", pid))
	must(r.T, err)
	for _, link := range links {
		if to, _ := os.Readlink(link); !strings.HasPrefix(to, "/memfd:fake-gpu:"+r.uuid) {
			continue
		}
		f, err := os.OpenFile(link, os.O_RDWR, 0)
		must(r.T, err)
		var b [1]byte
		_, err = f.ReadAt(b[:], at)
		b[0] ^= 0x40
		_, err2 := f.WriteAt(b[:], at)
		must(r.T, err, err2, f.Close())
		return
	}
	r.Fatal("the process has no memory of the GPU")
}

const (
	verifyHead  = "KEY            MODEL   RANK     MEMORY      FILES   RESULT\n"
	verifyEqual = verifyHead + "28dd04106153   llama   tp 0/1   202.7 KiB   6       equal, …\n"
	verifyWrong = verifyHead + "28dd04106153   llama   tp 0/1   202.7 KiB   6       differs, …\n" +
		"# 28dd04106153: memory differs from its files: byte … of tensor \"model.…\" is 0x…, the files give 0x…; 1 bytes of 1 tensors differ\n" +
		"#   it is loaded again for the next engine; those that have mapped it have to be restarted\n"
)

// A bit of a GPU's memory that turned is found while an engine maps it, and the next
// engine has the model loaded again. Nothing more than the weights is on the GPU before
// and after.
func testVerifyGPU(t *testing.T, dir string) {
	r := newRig(t, dir)
	r.serve("0")
	p := r.gets("llama-tp1r0")
	r.verify(0, verifyEqual)
	r.flip(r.cmd.Process.Pid, 150_000)
	r.verify(1, verifyWrong)
	s := r.status()
	if len(s.Entries) != 1 || s.Entries[0].State != "leaving" || !strings.HasPrefix(s.Entries[0].Reason, "memory differs from its files: ") {
		t.Errorf("left are %+v", s.Entries)
	}
	r.verify(0, "")
	next := r.gets("llama-tp1r0") // which compares each tensor with vLLM's own
	r.verify(0, verifyEqual)
	p.end()
	r.eventually("what is wrong is freed", func() bool { return r.used(r.uuid) == 2<<20 })
	next.end()
}

// So it is with memory that a process keeps.
func testVerifyKept(t *testing.T, dir string) {
	r := legacyRig(t, dir)
	r.serve("0")
	r.gets("llama-tp1r0").end()
	r.verify(0, verifyEqual)
	r.flip(r.oneKeeper(), 150_000)
	r.verify(1, verifyWrong)
	r.eventually("what is wrong is freed", func() bool { return r.used(r.uuid) == 0 })
	r.gets("llama-tp1r0").end()
	r.verify(0, verifyEqual)
	r.stopWhole()
}

// Where memory can't be read, that is said, and the entry stays.
func testVerifyFaults(t *testing.T, dir string) {
	r := newRig(t, dir)
	r.serve("0")
	r.gets("llama-tp1r0").end()
	for fault, want := range map[string]string{
		"cuInit:1:999":                       "open device …: load GPU driver: libcuda.so.1: cuInit: CUDA_ERROR_UNKNOWN; …\n#   wcache doctor looks for what is missing",
		"cuDevicePrimaryCtxRetain:1:2":       "open device …: make a context on GPU …: allocate 536870912 bytes: only 0 are free\n#   …",
		"cuMemImportFromShareableHandle:1:1": "map 2097152 bytes of GPU …: cuMemImportFromShareableHandle: CUDA_ERROR_INVALID_VALUE\n#   …",
		"cuMemHostRegister_v2:1:712":         "open reader of GPU …: cuMemHostRegister: CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED\n#   …",
		"cuMemcpyDtoHAsync_v2:2:719":         "…cuMemcpyDtoHAsync: CUDA_ERROR_LAUNCH_FAILED…\n#   …",
		"cuEventSynchronize:1:214":           "…cuEventSynchronize: CUDA_ERROR_ECC_UNCORRECTABLE…\n#   …",
		"cuMemMap:1:kill":                    "the loader ended early: signal: killed\n#   …",
	} {
		r.faults("FAKE_CUDA_FAIL=" + fault)
		r.verify(1, verifyHead+"28dd04106153   llama   tp 0/1   202.7 KiB   0       failed, …\n# 28dd04106153: verify memory: "+want+"\n")
		if t.Failed() {
			t.Fatalf("with the fault %s", fault)
		}
	}
	r.faults("")
	r.verify(0, verifyEqual)
	if s := r.status(); s.Counts.Loads != 1 || s.Bytes != 2<<20 {
		t.Errorf("%d bytes after %+v", s.Bytes, s.Counts)
	}
}
