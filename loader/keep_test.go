// SPDX-FileCopyrightText: The wcache authors
// SPDX-License-Identifier: MIT

package loader

import (
	"context"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/wcache/wcache/device"
	"github.com/wcache/wcache/device/host"
	"github.com/wcache/wcache/internal/testmain"
)

// keptDevice is a device whose memory stays in the child.
type keptDevice struct {
	device.Device
	deaf     bool
	released <-chan struct{}
}

type keptBuffer struct {
	device.Buffer
	device *keptDevice
}

// openKept opens one, of which it can be said that it is "deaf": it doesn't notice
// when it is of no use any more.
func openKept(how string) Opener {
	return func(string, int) (device.Device, error) {
		return &keptDevice{Device: host.Open(), deaf: how == "deaf"}, nil
	}
}

func (d *keptDevice) Alloc(bytes int64) (device.Buffer, error) {
	b, err := d.Device.Alloc(bytes)
	return &keptBuffer{b, d}, err
}

func (d *keptDevice) Wait() {
	<-d.released
	if d.deaf {
		time.Sleep(time.Hour)
	}
}

func (b *keptBuffer) Seal() (s device.Segment, err error) {
	s, b.device.released, err = device.Keep([device.HandleBytes]byte{'h'}, b.Bytes())
	return s, err
}

// runKept runs a job whose context ends with it, as a load's does.
func runKept(t *testing.T, how string, wait time.Duration) *Result {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	job, _ := testJob(t, 10_000)
	opt := options("keep: " + how)
	opt.ExitWait = wait
	r, err := Run(ctx, opt, job, nil)
	if err != nil {
		t.Fatal(err)
	}
	if r.Keeper == nil {
		t.Fatal("the child is no keeper")
	}
	return r
}

// A keeper stays after its load, whose context has ended, until the last descriptor
// of the segment is closed.
func TestKeeper(t *testing.T) {
	r := runKept(t, "", testmain.Patience)
	second, err := r.Segment.Pieces[0].Dup()
	if err != nil {
		t.Fatal(err)
	}
	handle, kept, err := r.Segment.Handle()
	if handle[0] != 'h' || !kept || err != nil {
		t.Errorf("handle %q, kept %v, %v", handle, kept, err)
	}
	// It keeps weights now, so the kernel must not kill it before its parent.
	if got, want := oomScore(t, r.Keeper.PID()), oomScore(t, os.Getpid()); got != want {
		t.Errorf("its oom_score_adj is %s, want %s", got, want)
	}
	r.Close()
	select {
	case <-r.Keeper.Ended():
		t.Error("it has ended while somebody holds the segment")
	case <-time.After(20 * time.Millisecond):
	}
	if err := unix.Kill(r.Keeper.PID(), 0); err != nil {
		t.Errorf("process %d: %v", r.Keeper.PID(), err)
	}
	_ = second.Close()
	if got := r.Keeper.End(); got != "exit status 0" {
		t.Errorf("it ended with %q", got)
	}
}

func oomScore(t *testing.T, pid int) string {
	t.Helper()
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/oom_score_adj", pid))
	if err != nil {
		t.Fatal(err)
	}
	return strings.TrimSpace(string(b))
}

func TestKeeperDies(t *testing.T) {
	r := runKept(t, "", testmain.Patience)
	defer r.Close()
	if err := unix.Kill(r.Keeper.PID(), unix.SIGTERM); err != nil {
		t.Fatal(err)
	}
	<-r.Keeper.Ended()
	if err := r.Segment.Gone(); err == nil {
		t.Error("the segment isn't gone")
	}
	if got := r.Keeper.End(); !strings.HasPrefix(got, "signal: terminated") {
		t.Errorf("it ended with %q", got)
	}
}

// One that doesn't go by itself is killed.
func TestKeeperHangs(t *testing.T) {
	r := runKept(t, "deaf", 20*time.Millisecond)
	r.Close()
	r.Keeper.End()     // kills it, and waits only as long again
	<-r.Keeper.Ended() // how long the kernel takes is its own affair
	if got := r.Keeper.End(); got != "signal: killed" {
		t.Errorf("it ended with %q", got)
	}
}

// A keeper ends with its parent, which is all that holds the segment.
func TestKeeperOrphan(t *testing.T) {
	t.Setenv("WCACHE_TEST_HOW", "keep: ")
	t.Setenv("WCACHE_TEST_DIR", t.TempDir())
	t.Setenv(childEnv, "parent")
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	p, err := os.StartProcess("/proc/self/exe", []string{"parent"}, &os.ProcAttr{Files: []*os.File{nil, nil, w}})
	_ = w.Close() // of which the parent and its keeper have the other ends
	if err != nil {
		t.Fatal(err)
	}
	if _, err := p.Wait(); err != nil { // Run returns, and the parent with it
		t.Fatal(err)
	}
	if err := r.SetReadDeadline(time.Now().Add(testmain.Patience)); err != nil {
		t.Fatal(err)
	}
	if n, err := r.Read(make([]byte, 100)); n != 0 || os.IsTimeout(err) {
		t.Errorf("the keeper says something or is still there: %d bytes, %v", n, err)
	}
}
