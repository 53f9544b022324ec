// SPDX-FileCopyrightText: The wcache authors
// SPDX-License-Identifier: MIT

package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/wcache/wcache/client"
	"github.com/wcache/wcache/control"
	"github.com/wcache/wcache/device/cuda/fake"
	"github.com/wcache/wcache/internal/testmain"
)

// Variables of a rig's processes.
const (
	envRoot     = "TEST_ROOT"     // holds the driver's part of /proc
	envFaults   = "TEST_FAULTS"   // a file of NAME=value lines for children that open a driver
	envFiles    = "TEST_NOFILE"   // limit of open files
	envAsRoot   = "TEST_AS_ROOT"  // anything: what is said is for root
	envPatience = "TEST_PATIENCE" // how long an instance may be silent
)

// machine is the machine that the command sees in a test's process. The user counts as not
// root, whoever runs the tests. A child that opens a driver also gets the faults that a test
// has set.
func machine() *app {
	a := &app{sysroot: "/", isRoot: os.Getenv(envAsRoot) != ""}
	a.patience, _ = time.ParseDuration(os.Getenv(envPatience)) // 0: the default
	b, err := os.ReadFile(os.Getenv(envFaults))
	if err == nil && os.Args[1] == "load" {
		for line := range strings.Lines(string(b)) {
			name, value, _ := strings.Cut(strings.TrimSpace(line), "=")
			_ = os.Setenv(name, value)
		}
	}
	if root := os.Getenv(envRoot); root != "" {
		a.sysroot = root
	}
	return a
}

// drivers builds the libraries of a machine with GPUs into a folder.
func drivers(t *testing.T) string {
	t.Helper()
	if _, err := exec.LookPath("cc"); err != nil {
		t.Skip("no C compiler to build drivers with; script tests and daemon's have host memory")
	}
	dir := t.TempDir()
	must(t, os.Chmod(dir, 0o755), os.Chmod(filepath.Dir(dir), 0o755)) // for processes of other users
	if _, err := fake.Build(dir); err != nil {
		t.Fatal(err)
	}
	out, err := exec.Command("cc", "-shared", "-fPIC", "-o", filepath.Join(dir, "libnvidia-ml.so.1"), "../../device/nvml/testdata/nvml.c").CombinedOutput()
	if err != nil {
		t.Fatalf("cc: %v\n%s", err, out)
	}
	return dir
}

// rig is a machine with GPUs and a service manager, on which a test runs one
// instance of the real command.
type rig struct {
	*testing.T
	dir    string // short, private
	uuid   string // of the first GPU
	socket string
	env    []string
	log    testmain.Log

	cmd      *exec.Cmd
	listener *os.File
	manager  *manager // nil: the command listens by itself
	program  string   // what is run, usually /proc/self/exe
	user     uint32   // whose processes all are; 0: the test's own
}

// number gives each test its own GPU number, also across processes.
var number = struct {
	sync.Mutex
	n int
}{}

// newUUID names a GPU, or with the prefix MIG a slice.
func newUUID(prefix string) string {
	number.Lock()
	defer number.Unlock()
	number.n++
	return fmt.Sprintf("%s-%08x-%04x-4000-8000-%012x", prefix, os.Getpid(), number.n, time.Now().UnixNano()&(1<<48-1))
}

// newRig makes a machine. CUDA's order of the GPUs is the reverse of the bus order, as the
// default of CUDA_DEVICE_ORDER can have it.
func newRig(t *testing.T, drivers string, gpus ...string) *rig {
	t.Helper()
	dir, err := os.MkdirTemp("", "wcache")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	if len(gpus) == 0 {
		gpus = []string{newUUID("GPU")}
	}
	var list []string
	for i, g := range gpus {
		list = append([]string{fmt.Sprintf("%s@%02x", g, i+1)}, list...)
		if !strings.HasPrefix(g, "GPU-") {
			continue
		}
		folder := filepath.Join(dir, "root/proc/driver/nvidia/gpus", fmt.Sprintf("0000:%02x:00.0", i+1))
		must(t, os.MkdirAll(folder, 0o700))
		must(t, os.WriteFile(filepath.Join(folder, "information"), []byte("Model: \t\t NVIDIA H200\nGPU UUID: \t "+g+"\n"), 0o600))
	}
	r := &rig{T: t, dir: dir, uuid: gpus[0], socket: filepath.Join(dir, "s.sock"), program: "/proc/self/exe"}
	r.env = []string{
		"PATH=" + os.Getenv("PATH"), "HOME=" + dir, "XDG_RUNTIME_DIR=" + dir, "TMPDIR=" + dir, "GORACE=atexit_sleep_ms=0",
		"LD_LIBRARY_PATH=" + drivers, "FAKE_CUDA_GPUS=" + strings.Join(list, ","), "FAKE_NVML=" + r.path("nvml"),
		envRoot + "=" + r.path("root"), envFaults + "=" + r.path("faults"),
	}
	r.nvml("gpu " + r.uuid + "\ntotal 16384\nused 0\necc 0")
	must(t, os.WriteFile(r.path("wcache.toml"), []byte("load_timeout = \"5m\"\nmemory_wait = \"1500ms\"\nworkers = 2\n"), 0o600))
	t.Cleanup(r.end)
	return r
}

func must(t *testing.T, errs ...error) {
	t.Helper()
	if err := errors.Join(errs...); err != nil {
		t.Fatal(err)
	}
}

func (r *rig) path(name string) string { return filepath.Join(r.dir, name) }

// nvml sets what the driver's library reports from now on.
func (r *rig) nvml(machine string) {
	r.Helper()
	must(r.T, os.WriteFile(r.path("nvml.new"), []byte(machine), 0o600), os.Rename(r.path("nvml.new"), r.path("nvml")))
}

// faults sets faults for later loads: lines of NAME=value.
func (r *rig) faults(lines string) {
	r.Helper()
	must(r.T, os.WriteFile(r.path("faults"), []byte(lines), 0o600))
}

// set changes the environment of processes that are started later.
func (r *rig) set(name, value string) {
	r.env = slices.DeleteFunc(r.env, func(v string) bool { return strings.HasPrefix(v, name+"=") })
	r.env = append(r.env, name+"="+value)
}

// serve starts the command for an instance and waits until it listens.
func (r *rig) serve(instance string) {
	r.Helper()
	args := []string{
		"serve", "--instance", instance, "--config", r.path("wcache.toml"), "--state", r.path("state"),
		"--root", "../../testdata/checkpoints/llama", "--root", "../../testdata/checkpoints/qwen2",
	}
	cmd := r.command(r.program)
	if r.manager == nil {
		cmd.Args = append(append([]string{"wcache"}, args...), "--listen", r.socket)
	} else {
		cmd.Args = append([]string{"service"}, args...)
		must(r.T, r.manager.pass(cmd, r.listener))
	}
	err := cmd.Start()
	for i, f := range cmd.ExtraFiles {
		if i > 0 { // the first is the socket
			_ = f.Close()
		}
	}
	must(r.T, err)
	r.cmd = cmd
	r.eventually("the daemon listens", func() bool { return client.Listening(control.Path(r.socket)) })
}

// command is a process of the rig's machine and user.
func (r *rig) command(program string) *exec.Cmd {
	cmd := exec.Command(program)
	cmd.Env, cmd.Stderr = r.env, &r.log
	if r.user != 0 {
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: r.user, Gid: r.user}}
	}
	return cmd
}

// managed gives the machine a service manager that keeps the socket and up to room
// descriptors.
func (r *rig) managed(room int) {
	r.Helper()
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: r.socket, Net: "unix"})
	must(r.T, err)
	l.SetUnlinkOnClose(false)
	must(r.T, os.Chmod(r.socket, 0o600))
	r.listener, err = l.File()
	must(r.T, err, l.Close())
	r.manager, err = newManager(r.path("notify"))
	must(r.T, err)
	r.set("NOTIFY_SOCKET", r.path("notify"))
	r.set("FDSTORE", fmt.Sprint(room))
}

// kill ends the daemon without a chance to do anything.
func (r *rig) kill() {
	r.Helper()
	must(r.T, r.cmd.Process.Kill())
	_ = r.cmd.Wait() // killed
	r.cmd = nil
}

// stop ends the daemon as systemctl does.
func (r *rig) stop() {
	r.Helper()
	must(r.T, r.cmd.Process.Signal(unix.SIGTERM))
	must(r.T, r.cmd.Wait())
	r.cmd = nil
}

func (r *rig) end() {
	if r.cmd != nil {
		_ = r.cmd.Process.Signal(unix.SIGTERM)
		_ = r.cmd.Wait()
	}
	if r.manager != nil {
		r.manager.close()
		_ = r.listener.Close()
	}
	if r.Failed() {
		r.Logf("log:\n%s", r.log.String())
	}
	// The loader may still be ending after its job.
	r.eventually("nothing of the GPU is in use", func() bool { return r.used(r.uuid) == 0 })
}

// eventually waits for an event in another process.
func (r *rig) eventually(what string, ok func() bool) {
	r.Helper()
	testmain.Eventually(r.T, what, ok)
}

// says waits until the log has a text: the log comes through a pipe, later than answers.
func (r *rig) says(text string) {
	r.Helper()
	r.eventually("the log says "+text, func() bool { return strings.Contains(r.log.String(), text) })
}

// configure writes the configuration for later processes, or for a SIGHUP.
func (r *rig) configure(text string) {
	r.Helper()
	must(r.T, os.WriteFile(r.path("wcache.toml"), []byte(text), 0o600))
}

// status asks the daemon for its status.
func (r *rig) status() *control.Status {
	r.Helper()
	reply, err := client.Do(context.Background(), control.Path(r.socket), control.Request{Method: control.MethodStatus}, nil)
	must(r.T, err)
	return reply.Status
}

// used is the memory of a GPU that all processes hold, by descriptors or mapped.
func (r *rig) used(uuid string) int64 {
	var sum int64
	seen := make(map[uint64]bool)
	links, _ := filepath.Glob("/proc/[0-9]*/fd/*")
	maps, _ := filepath.Glob("/proc/[0-9]*/map_files/*")
	for _, link := range append(links, maps...) {
		to, err := os.Readlink(link)
		if err != nil || !strings.HasPrefix(to, "/memfd:fake-gpu:"+uuid) {
			continue
		}
		st, err := os.Stat(link)
		if err != nil {
			continue
		}
		if inode := st.Sys().(*syscall.Stat_t).Ino; !seen[inode] {
			seen[inode] = true
			sum += st.Size()
		}
	}
	return sum
}

// free checks that nothing is left of a load: no memory, no entry.
func (r *rig) free() {
	r.Helper()
	r.eventually("the GPU's memory is free", func() bool { return r.used(r.uuid) == 0 })
	if s := r.status(); len(s.Entries) != 0 || s.Bytes != 0 {
		r.Errorf("left are %d entries of %d bytes", len(s.Entries), s.Bytes)
	}
}

// like compares whole texts, in which "…" stands for anything.
func (r *rig) like(got, want string) {
	r.Helper()
	pattern := "(?s)^" + strings.ReplaceAll(regexp.QuoteMeta(want), "…", ".*?") + "$"
	if !regexp.MustCompile(pattern).MatchString(got) {
		r.Errorf("got  %s\nwant %s", got, want)
	}
}

// gpuProcess is an engine in another process.
type gpuProcess struct {
	*exec.Cmd
	in   io.WriteCloser
	out  *bufio.Reader
	sums []string // of what it has mapped
}

// asking is ask in the background, by an engine that ends with its answer.
func (r *rig) asking(request string) <-chan string {
	answered := make(chan string, 1)
	go func() {
		p, answer := r.ask(request)
		p.end()
		answered <- answer
	}()
	return answered
}

// ask starts an engine that sends a recorded request, and gives its answer. An engine that
// got weights keeps them mapped until it is ended.
func (r *rig) ask(request string) (*gpuProcess, string) {
	r.Helper()
	p := &gpuProcess{Cmd: r.command("/proc/self/exe")}
	p.Args = []string{"gpuengine", r.socket, "../../testdata/wire/" + request + ".bin"}
	p.Env = slices.DeleteFunc(slices.Clone(r.env), func(v string) bool {
		return strings.HasPrefix(v, "CUDA_") || strings.HasPrefix(v, "FAKE_CUDA_FAIL=")
	})
	in, err := p.StdinPipe()
	must(r.T, err)
	out, err := p.StdoutPipe()
	must(r.T, err, p.Start())
	p.in, p.out = in, bufio.NewReader(out)
	r.Cleanup(p.end)
	answer, err := p.out.ReadString('\n')
	must(r.T, err)
	if answer = strings.TrimSpace(answer); strings.HasPrefix(answer, "ok") {
		p.sums = p.read(r)
	}
	return p, answer
}

// read gives the checksums of everything that the engine has mapped, by name.
func (p *gpuProcess) read(r *rig) []string {
	r.Helper()
	_, err := io.WriteString(p.in, "read\n")
	must(r.T, err)
	var sums []string
	for {
		line, err := p.out.ReadString('\n')
		must(r.T, err)
		if line == "end\n" {
			return sums
		}
		sums = append(sums, strings.TrimSpace(line))
	}
}

// end ends an engine, which frees its mappings.
func (p *gpuProcess) end() {
	_ = p.in.Close()
	_ = p.Wait()
}

const llama = "0.33.0-get_state-llama-tp1r0"

// gets lets an engine get a model and compares each tensor with vLLM's own. The engine stays
// until it is ended.
func (r *rig) gets(model string) *gpuProcess {
	r.Helper()
	p, answer := r.ask("0.33.0-get_state-" + model)
	if !strings.HasPrefix(answer, "ok") {
		r.Fatalf("the engine is told %q", answer)
	}
	if diff := cmp.Diff(golden(r.T, model), p.sums); diff != "" {
		r.Errorf("%s (-vLLM's own +mapped):\n%s", model, diff)
	}
	return p
}

// refused starts an engine and checks its refusal.
func (r *rig) refused(want string) {
	r.Helper()
	r.refusedBy(llama, want)
}

func (r *rig) refusedBy(request, want string) {
	r.Helper()
	p, answer := r.ask(request)
	p.end()
	if r.like(answer, want); strings.HasPrefix(answer, "ok") {
		r.FailNow()
	}
}
