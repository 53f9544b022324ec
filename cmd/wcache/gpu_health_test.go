// SPDX-FileCopyrightText: The wcache authors
// SPDX-License-Identifier: MIT

package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"golang.org/x/sys/unix"

	"github.com/wcache/wcache/client"
	"github.com/wcache/wcache/control"
	"github.com/wcache/wcache/device"
	"github.com/wcache/wcache/internal/testmain"
	"github.com/wcache/wcache/protocol"
)

// watch is an engine's watch.
func (r *rig) watch() net.Conn {
	r.Helper()
	payload, err := protocol.EncodeRequest(&protocol.Request{Cmd: protocol.Watch})
	must(r.T, err)
	_, conn, err := client.Engine(context.Background(), r.socket, payload)
	must(r.T, err)
	r.Cleanup(func() { _ = conn.Close() })
	return conn
}

// told checks that a watch ends.
func (r *rig) told(conn net.Conn) {
	r.Helper()
	must(r.T, conn.SetReadDeadline(time.Now().Add(testmain.Patience)))
	if _, err := conn.Read(make([]byte, 1)); !errors.Is(err, io.EOF) {
		r.Errorf("the watch: %v", err)
	}
}

// open checks that a watch has not ended.
func (r *rig) open(conn net.Conn) {
	r.Helper()
	raw, err := conn.(*net.UnixConn).SyscallConn()
	must(r.T, err)
	var got error
	must(r.T, raw.Read(func(n uintptr) bool {
		_, _, got = unix.Recvfrom(int(n), make([]byte, 1), unix.MSG_PEEK|unix.MSG_DONTWAIT)
		return true
	}))
	if !errors.Is(got, unix.EAGAIN) {
		r.Errorf("the watch: %v", got)
	}
}

// seen waits until the status has a condition of the GPU.
func (r *rig) seen(state string) *control.Status {
	r.Helper()
	var s *control.Status
	r.eventually("the GPU is seen to be "+state, func() bool { s = r.status(); return s.GPU != nil && s.GPU.State == state })
	return s
}

// goes breaks a GPU that an engine uses, and repairs it.
func (r *rig) goes(fault, state, why string) {
	r.Helper()
	r.managed(16)
	r.serve("0")
	p := r.gets("llama-tp1r0")
	r.seen("ok")
	watch := r.watch()
	r.eventually("the watch is kept", func() bool { return r.manager.names() == "s- t- w-" })
	r.nvml("gpu " + r.uuid + "\n" + fault)
	s := r.seen(state)
	want := fmt.Sprintf("GPU %s is %s: %s", r.uuid, state, why)
	if len(s.Problems) != 1 || s.Problems[0] != want {
		r.Errorf("problems %q", s.Problems)
	}
	r.eventually("no entry is left", func() bool { return len(r.status().Entries) == 0 })
	r.told(watch)
	r.eventually("the store is empty", func() bool { return r.manager.names() == "" })
	r.faults("FAKE_CUDA_FAIL=cuInit:1:kill") // nobody tries the GPU
	r.refused(fmt.Sprintf("error: GPU %s (NVIDIA H200) is %s: nothing can be loaded, and what was held is gone (%s)", r.uuid, state, why))
	p.end()
	r.free()
	r.says(`all entries are dropped" entries=1 reason="the GPU is ` + state)

	r.faults("")
	r.nvml("gpu " + r.uuid + "\necc 0")
	r.eventually("weights are loaded again", func() bool {
		p, answer := r.ask(llama)
		p.end()
		return strings.HasPrefix(answer, "ok")
	})
	if s := r.seen("ok"); len(s.Problems) != 0 {
		r.Errorf("problems are %q", s.Problems)
	}
}

// A GPU that falls off the bus takes all weights along: engines are told, the
// service stays up, and goes on when the GPU is there again.
func testLost(t *testing.T, dir string) {
	r := newRig(t, dir)
	r.goes("fail 15", "lost", "it has fallen off the bus: restart the machine, which frees what all instances hold; the kernel's log (dmesg, NVRM: Xid) says why")
}

func testResetRequired(t *testing.T, dir string) {
	r := newRig(t, dir)
	r.goes("recovery 1", "reset required", "nvidia-smi --gpu-reset as root when nothing uses it, or restart the machine, which frees what all instances hold; the kernel's log (dmesg, NVRM: Xid) says why")
}

// Memory with an uncorrected error is given up once, and loaded again: the driver gives out
// other memory.
func testMemoryErrors(t *testing.T, dir string) {
	r := newRig(t, dir)
	r.serve("0")
	p := r.gets("llama-tp1r0")
	r.seen("ok")
	watch := r.watch()
	r.nvml("gpu " + r.uuid + "\necc 2")
	r.told2(watch, func() { r.status() })
	p.end()
	r.free()
	r.says(`reason="the GPU's memory has had 2 uncorrected errors, 2 more than before"`)
	r.gets("llama-tp1r0").end()
	watch = r.watch()
	s := r.seen("ok")
	last := s.GPU.Checked
	r.eventually("it is looked again", func() bool { s = r.status(); return s.GPU.Checked.After(last) && s.GPU.State == "ok" })
	if len(s.Entries) != 1 || s.GPU.Uncorrected != 2 {
		t.Errorf("entries %+v, GPU %+v", s.Entries, s.GPU)
	}
	r.open(watch)
}

// told2 is told for a fault that is only noticed when a client asks.
func (r *rig) told2(conn net.Conn, ask func()) {
	r.Helper()
	ended := make(chan struct{})
	go func() {
		_, _ = conn.Read(make([]byte, 1))
		close(ended)
	}()
	r.eventually("the watch ends", func() bool {
		ask()
		select {
		case <-ended:
			return true
		default:
			return false
		}
	})
}

// If a load fails on a lost GPU, the answer is that the GPU is lost, not the call that
// happened to fail.
func testLostInLoad(t *testing.T, dir string) {
	r := newRig(t, dir)
	r.serve("0")
	r.gets("llama-tp1r0").end()
	r.seen("ok")
	r.nvml("gpu " + r.uuid + "\nfail 15")
	r.faults("FAKE_CUDA_FAIL=cuMemcpyHtoDAsync_v2:2:719")
	p, answer := r.ask("0.33.0-get_state-llama-tp2r1")
	p.end()
	r.like(answer, "error: GPU "+r.uuid+" (NVIDIA H200) is lost: nothing can be loaded, and what was held is gone (…)")
	r.free()
}

// Memory that a process keeps goes with the GPU, too, and with it the process.
func testLostKept(t *testing.T, dir string) {
	r := newRig(t, dir)
	must(t, os.WriteFile(r.path("wcache.toml"), []byte("handles = \"legacy\"\n"), 0o600))
	r.serve("0")
	warm := r.command("/proc/self/exe")
	warm.Args = []string{"wcache", "--socket", r.socket, "warm", "../../testdata/checkpoints/llama"}
	must(t, warm.Run())
	r.seen("ok")
	if n := r.used(r.uuid); n != 2<<20 {
		t.Errorf("%d bytes of the GPU are in use", n)
	}
	r.nvml("gpu " + r.uuid + "\nfail 15")
	r.seen("lost")
	r.free()
	r.says("keeper ended")
}

// With a driver that never answers, weights are still served and loaded. daemon's
// TestSlowLook tests that the status is answered meanwhile.
func testHangs(t *testing.T, dir string) {
	r := newRig(t, dir)
	r.nvml("hang nvmlDeviceGetHandleByUUID\ngpu " + r.uuid)
	r.serve("0")
	r.gets("llama-tp1r0").end()
	r.gets("llama-tp1r0").end()
	s := r.seen("unknown")
	if want := fmt.Sprintf("GPU %s is unknown: ask about GPU %[1]s: the driver doesn't answer", r.uuid); len(s.Problems) != 1 || s.Problems[0] != want {
		t.Errorf("problems are %q", s.Problems)
	}
	if len(s.Entries) != 1 {
		t.Errorf("entries %+v", s.Entries)
	}
}

// Errors of the memory while no daemon was there are found by the next one.
func testErrorsWhileAway(t *testing.T, dir string) {
	r := newRig(t, dir)
	r.managed(16)
	r.serve("0")
	r.gets("llama-tp1r0").end()
	r.seen("ok")
	r.eventually("the manifest has the count", func() bool {
		b, _ := os.ReadFile(r.path("state/manifest.toml"))
		return strings.Contains(string(b), "uncorrected_errors = 0\n")
	})
	r.kill()
	r.nvml("gpu " + r.uuid + "\necc 1")
	r.serve("0")
	r.eventually("they are found without being asked", func() bool { return strings.Contains(r.log.String(), "1 uncorrected errors, 1 more than before") })
	r.free()
}

// The status has the driver's report on the GPU and its processes.
func testStatusGPU(t *testing.T, dir string) {
	r := newRig(t, dir)
	comm, err := os.ReadFile("/proc/self/comm")
	must(t, err)
	r.nvml(fmt.Sprintf("gpu %s\ntotal 1000\nused 400\necc 0\nprocess %d 300\ngraphics 1234567 50\n", r.uuid, os.Getpid()))
	r.serve("0")
	got := r.seen("ok").GPU
	want := &device.GPU{
		Index: 0, UUID: r.uuid, Name: "NVIDIA H200", Driver: "580.159.03", State: "ok", Total: 1000 << 20, Used: 400 << 20, Free: 600 << 20,
		Unowned: 50 << 20, Processes: []device.GPUProcess{
			{PID: os.Getpid(), Comm: strings.TrimSpace(string(comm)), Bytes: 300 << 20}, {PID: 1234567, Bytes: 50 << 20},
		},
	}
	if diff := cmp.Diff(want, got, cmpopts.IgnoreFields(device.GPU{}, "Checked")); diff != "" {
		t.Error(diff)
	}
	if got.Checked.IsZero() {
		t.Error("it doesn't say when")
	}
}
