// SPDX-FileCopyrightText: The wcache authors
// SPDX-License-Identifier: MIT

package daemon

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
	"runtime"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/wcache/wcache/daemon/peer"
	"github.com/wcache/wcache/device"
	"github.com/wcache/wcache/device/host"
	"github.com/wcache/wcache/internal/fd"
	"github.com/wcache/wcache/internal/testmain"
	"github.com/wcache/wcache/loader"
	"github.com/wcache/wcache/protocol"
)

// The test binary is also the loader child, an engine, and another daemon that
// holds a lock.
func TestMain(m *testing.M) {
	if len(os.Args) > 1 {
		switch os.Args[1] {
		case "load":
			exit(loadMain(os.Args[2:]))
		case "small load":
			exit(smallMain(os.Args[2]))
		case "engine":
			exit(engineMain(os.Args[2]))
		case "weak engine":
			exit(weakMain(os.Args[2]))
		case "above":
			exit(aboveMain())
		case "below":
			exit(belowMain())
		case "hasty":
			exit(hastyMain(os.Args[2]))
		case "serve": // as "vllm serve MODEL", which waits for the end of its input
			_, err := io.Copy(io.Discard, os.Stdin)
			exit(err)
		}
	}
	// The race detector would have each child sleep for a second at its end.
	_ = os.Setenv("GORACE", "atexit_sleep_ms=0")
	testmain.Run(m)
}

func exit(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(0)
}

// loadMain is the loader child. With a gate's path it waits there: before it has
// anything if "early" is said too, else with its memory allocated and files open.
func loadMain(args []string) error {
	open := func(string, int) (device.Device, error) { return host.Open(), nil }
	if len(args) > 0 {
		wait := sync.OnceValue(func() error {
			c, err := net.Dial("unix", args[0])
			if err != nil {
				return err
			}
			_, err = io.Copy(io.Discard, c)
			return err
		})
		open = func(string, int) (device.Device, error) {
			if len(args) > 1 {
				return host.Open(), wait()
			}
			return &gated{Device: host.Open(), wait: wait}, nil
		}
	}
	return loader.Child(context.Background(), os.NewFile(loader.ChildFD, "job"), open, nil)
}

// smallMain is the loader child of a device that has so many bytes, less what its
// parent holds.
func smallMain(total string) error {
	n, err := strconv.ParseInt(total, 10, 64)
	if err != nil {
		return err
	}
	open := func(string, int) (device.Device, error) { return &small{host.Open(), n}, nil }
	return loader.Child(context.Background(), os.NewFile(loader.ChildFD, "job"), open, nil)
}

type small struct {
	device.Device
	total int64
}

func (s *small) Alloc(bytes int64) (device.Buffer, error) {
	free := s.total
	held, err := filepath.Glob(fmt.Sprintf("/proc/%d/fd/*", os.Getppid()))
	if err != nil {
		return nil, err
	}
	for _, f := range held {
		to, err := os.Readlink(f)
		if err != nil || !strings.HasPrefix(to, "/memfd:wcache-segment") {
			continue
		}
		st, err := os.Stat(f)
		if err != nil {
			return nil, err
		}
		free -= st.Size()
	}
	if bytes > free {
		return nil, &device.NoMemory{Want: bytes, Free: free}
	}
	return s.Device.Alloc(bytes)
}

// gated is a device on which nothing is filled or read back before wait has returned.
type gated struct {
	device.Device
	wait func() error
}

type gatedBuffer struct {
	device.Buffer
	wait func() error
}

func (g *gated) Alloc(bytes int64) (device.Buffer, error) {
	b, err := g.Device.Alloc(bytes)
	if err != nil {
		return nil, err
	}
	return &gatedBuffer{b, g.wait}, nil
}

func (g *gated) View(s device.Segment) (device.View, error) {
	if err := g.wait(); err != nil {
		return nil, err
	}
	return g.Device.View(s)
}

func (b *gatedBuffer) Writer() (device.Writer, error) {
	if err := b.wait(); err != nil {
		return nil, err
	}
	return b.Buffer.Writer()
}

// engineMain asks on a socket what it reads from its standard input, line by line
// a file with a request, and says the reply's status. It ends with its input.
func engineMain(socket string) error {
	in := bufio.NewScanner(os.Stdin)
	for in.Scan() {
		payload, err := os.ReadFile(in.Text())
		if err != nil {
			return err
		}
		conn, err := net.Dial("unix", socket)
		if err != nil {
			return err
		}
		defer conn.Close() // open until the end
		if err := protocol.WriteFrame(conn, payload); err != nil {
			return err
		}
		frame, err := protocol.ReadFrame(conn, protocol.MaxReply)
		if err != nil {
			return err
		}
		reply, err := protocol.DecodeReply(frame)
		if err != nil {
			return err
		}
		if reply.HasMemory {
			fmt.Fprintln(os.Stdout, reply.Status, reply.MemoryBytes, "bytes")
			continue
		}
		fmt.Fprintln(os.Stdout, reply.Status, reply.Message, reply.Fields)
	}
	return in.Err()
}

// weakMain is engineMain without the right to look into any process, which root has.
func weakMain(socket string) error {
	runtime.LockOSThread() // bounds are a thread's
	if err := unix.Prctl(unix.PR_CAPBSET_DROP, unix.CAP_SYS_PTRACE, 0, 0, 0); err != nil {
		return err
	}
	return syscall.Exec("/proc/self/exe", []string{"engine", "engine", socket}, os.Environ())
}

// aboveMain is an engine beside a container of its own user, in which is the daemon. It
// says what the daemon finds to be in the way, and whether it is.
func aboveMain() error {
	var out strings.Builder
	c := exec.Command("/proc/self/exe", "below")
	c.SysProcAttr = within(syscall.CLONE_NEWUSER, os.Getuid())
	c.Stdout, c.Stderr = &out, os.Stderr
	in, err := c.StdinPipe()
	if err != nil {
		return err
	}
	if err := c.Start(); err != nil {
		return err
	}
	_, err = os.Stat(fmt.Sprintf("/proc/%d/fd/0", c.Process.Pid))
	_, _ = in.Close(), c.Wait()
	fmt.Fprintf(os.Stdout, "barrier %q, %v\n", out.String(), err)
	return nil
}

// belowMain is the daemon in the container: it says what it finds of its parent.
func belowMain() error {
	what, _ := peer.Process{PID: os.Getppid(), UID: os.Getuid(), GID: os.Getgid()}.Barrier()
	fmt.Fprint(os.Stdout, what)
	_, err := io.Copy(io.Discard, os.Stdin) // until it has been looked at
	return err
}

// within is for a process in new namespaces, in which the user of that number is root.
func within(kind uintptr, uid int) *syscall.SysProcAttr {
	ids := []syscall.SysProcIDMap{{ContainerID: 0, HostID: uid, Size: 1}}
	return &syscall.SysProcAttr{Cloneflags: kind, UidMappings: ids, GidMappings: ids}
}

// hastyMain sends what it reads and ends without waiting for an answer.
func hastyMain(socket string) error {
	b, err := io.ReadAll(os.Stdin)
	if err != nil {
		return err
	}
	conn, err := net.Dial("unix", socket)
	if err != nil {
		return err
	}
	_, err = conn.Write(b)
	return err // the end of the process closes the connection
}

// process is a child that is the test binary in another role.
type process struct {
	*exec.Cmd
	in  io.WriteCloser
	out *bufio.Reader
	dir string
}

func startProcess(t *testing.T, args ...string) *process {
	t.Helper()
	p := &process{Cmd: exec.Command("/proc/self/exe", args...), dir: t.TempDir()}
	if err := p.begin(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.end)
	return p
}

func (p *process) begin() error {
	p.Stderr = os.Stderr
	in, err := p.StdinPipe()
	if err != nil {
		return err
	}
	out, err := p.StdoutPipe()
	if err != nil {
		return errors.Join(err, in.Close())
	}
	p.in, p.out = in, bufio.NewReader(out)
	return p.Start()
}

// end ends the process, which has its input no more, and waits for that.
func (p *process) end() {
	_ = p.in.Close()
	_ = p.Wait()
}

// kill ends the process without a chance to do anything, and waits for that.
func (p *process) kill() {
	_ = p.Process.Kill()
	p.end()
}

func (p *process) line(t *testing.T) string {
	t.Helper()
	line, err := p.out.ReadString('\n')
	if err != nil {
		t.Fatalf("read from process: %v", err)
	}
	return strings.TrimRight(line, " []\n")
}

// send has an engine ask; line then reads what it was told.
func (p *process) send(t *testing.T, payload []byte) {
	t.Helper()
	f, err := os.CreateTemp(p.dir, "request")
	if err != nil {
		t.Fatal(err)
	}
	_, err = f.Write(payload)
	if err := errors.Join(err, f.Close()); err != nil {
		t.Fatal(err)
	}
	if _, err := fmt.Fprintln(p.in, f.Name()); err != nil {
		t.Fatal(err)
	}
}

// gate is a socket that loaders connect to, and wait at until that is closed.
type gate struct {
	*net.UnixListener
	path string
}

func newGate(t *testing.T) gate {
	t.Helper()
	path := filepath.Join(private(t), "gate")
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	return gate{l, path}
}

// arrived waits for a loader, and lets it through when what it returns is called.
func (g gate) arrived(t *testing.T) (open func()) {
	t.Helper()
	_, open = g.loader(t)
	return open
}

// loader is arrived with the number of the process that has come.
func (g gate) loader(t *testing.T) (pid int, open func()) {
	t.Helper()
	_ = g.SetDeadline(time.Now().Add(testmain.Patience))
	c, err := g.AcceptUnix()
	if err != nil {
		t.Fatalf("no loader comes to the gate: %v", err)
	}
	t.Cleanup(func() { _ = c.Close() })
	peer, err := fd.Peer(c)
	do(t, err)
	return int(peer.Pid), func() { _ = c.Close() }
}
