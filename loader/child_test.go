// SPDX-FileCopyrightText: The wcache authors
// SPDX-License-Identifier: MIT

package loader

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/wcache/wcache/device"
	"github.com/wcache/wcache/device/host"
	"github.com/wcache/wcache/internal/fd"
	"github.com/wcache/wcache/tensor"
)

// moments are where a child may die or hang.
var moments = []string{
	"at start", "open", "alloc", "first block", "in fill", "seal",
	"after the segment", "before done", "after handing over",
}

// childMain is the child's main function: it works, or does what "how" says.
func childMain(how string) int {
	conn := os.NewFile(ChildFD, "loader")
	what, when, _ := strings.Cut(how, ": ")
	at := when
	switch what {
	case "truncate", "fail":
		at = "in fill"
	case "long message":
		at = "alloc"
	}
	if when == "stopped" || when == "deaf" {
		at = "in fill"
	}
	act := func(moment string) error {
		if moment != at {
			return nil
		}
		switch what {
		case "die":
			_ = unix.Kill(os.Getpid(), unix.SIGKILL)
			time.Sleep(time.Hour)
		case "hang":
			fmt.Fprintf(os.Stderr, "hanging %d\n", os.Getpid())
			if when == "stopped" {
				_ = unix.Kill(os.Getpid(), unix.SIGSTOP)
			}
			time.Sleep(time.Hour) // with no goroutine left, Go would call it a deadlock
		case "truncate":
			return os.Truncate(os.Getenv("WCACHE_TEST_FILE"), 10)
		case "fail":
			return errors.New("fell off the bus")
		case "long message":
			return errors.New(strings.Repeat("<", 1<<20))
		}
		return nil
	}
	switch what {
	case "fork and work", "fork and die":
		sleep := exec.Command("/bin/sleep", "3600")
		sleep.Stderr = os.Stderr
		sleep.ExtraFiles = []*os.File{conn} // it holds the socket open, too
		if err := sleep.Start(); err != nil {
			return 4
		}
		fmt.Fprintf(os.Stderr, "hanging %d\n", sleep.Process.Pid)
		if what == "fork and die" {
			return 1
		}
	case "exit":
		return 3
	case "keep":
		if err := Child(context.Background(), conn, openKept(when), nil); err != nil {
			return 1
		}
		return 0
	case "say":
		return sayNonsense(conn, when)
	case "parent":
		return parentMain()
	}
	_ = act("at start")
	switch {
	case what == "hang" && when == "deaf":
		// It never looks at the socket again, and its device hangs.
		go func() { _ = Child(context.Background(), conn, open(act), nil) }()
		time.Sleep(time.Hour)
	case when == "after the segment" || when == "before done" || when == "after handing over":
		if what == "hang" && when == "after handing over" { // from then on it may be killed at any moment
			fmt.Fprintf(os.Stderr, "hanging %d\n", os.Getpid())
		}
		return handOver(conn, act)
	}
	if err := Child(context.Background(), conn, open(act), nil); err != nil {
		return 1
	}
	return 0
}

// parentMain is a daemon that waits for a child that hangs.
func parentMain() int {
	opt := options(os.Getenv("WCACHE_TEST_HOW"))
	opt.Stderr = os.Stderr
	job, err := jobIn(os.Getenv("WCACHE_TEST_DIR"), make([]byte, 500_000))
	if err != nil {
		return 1
	}
	_, _ = Run(context.Background(), opt, job, nil)
	return 0
}

// open opens the host with hooks at its moments.
func open(act func(moment string) error) func(string, int) (device.Device, error) {
	return func(name string, _ int) (device.Device, error) {
		if name != "host" {
			return nil, errors.New("there is none")
		}
		return &hooked{host.Open(), act}, act("open")
	}
}

type hooked struct {
	device.Device
	act func(string) error
}

func (d *hooked) Alloc(bytes int64) (device.Buffer, error) {
	if err := d.act("alloc"); err != nil {
		return nil, err
	}
	b, err := d.Device.Alloc(bytes)
	if err != nil {
		return nil, err
	}
	return &hookedBuffer{b, d.act}, nil
}

func (d *hooked) View(s device.Segment) (device.View, error) {
	if err := d.act("view"); err != nil {
		return nil, err
	}
	v, err := d.Device.View(s)
	return &hookedView{v, d.act}, err
}

type hookedView struct {
	device.View
	act func(string) error
}

func (v *hookedView) Reader() (device.Reader, error) {
	r, err := v.View.Reader()
	return &hookedReader{r, v.act, 0}, err
}

type hookedReader struct {
	device.Reader
	act    func(string) error
	blocks int
}

func (r *hookedReader) Fetch(off int64, n int) error {
	r.blocks++
	if r.blocks == 10 {
		if err := r.act("in fill"); err != nil {
			return err
		}
	}
	return r.Reader.Fetch(off, n)
}

type hookedBuffer struct {
	device.Buffer
	act func(string) error
}

func (b *hookedBuffer) Writer() (device.Writer, error) {
	w, err := b.Buffer.Writer()
	return &hookedWriter{w, b.act, 0}, err
}

func (b *hookedBuffer) Seal() (device.Segment, error) {
	if err := b.act("seal"); err != nil {
		return device.Segment{}, err
	}
	return b.Buffer.Seal()
}

type hookedWriter struct {
	device.Writer
	act    func(string) error
	blocks int
}

func (w *hookedWriter) Block(off int64, n int) ([]byte, error) {
	w.blocks++
	moment := "next block"
	switch w.blocks {
	case 1:
		moment = "first block"
	case 10:
		moment = "in fill"
	}
	if err := w.act(moment); err != nil {
		return nil, err
	}
	return w.Writer.Block(off, n)
}

// handOver is a child that has done its job, with moments between the packets.
func handOver(conn *os.File, act func(string) error) int {
	p, err := newPipe(conn)
	if err != nil {
		return 4
	}
	if _, f, err := p.receive(); err != nil || f == nil {
		return 4
	}
	segment, table, err := finished()
	if err != nil {
		return 4
	}
	_ = p.send(&packet{Says: saysSegment, Bytes: 4096}, segment)
	_ = act("after the segment")
	_ = p.send(&packet{Says: saysProgress, Done: 4096, Total: 4096}, nil)
	_ = act("before done")
	_ = p.send(&packet{Says: saysDone}, table)
	_ = act("after handing over")
	return 0
}

// finished makes a segment of a page and its table.
func finished() (segment, table *fd.FD, err error) {
	if segment, err = fd.Sealed("segment", make([]byte, 4096)); err != nil {
		return nil, nil, err
	}
	b, err := pageTable(4096).Encode()
	if err != nil {
		return nil, nil, err
	}
	table, err = fd.Sealed("table", b)
	return segment, table, err
}

func pageTable(bytes int64) *tensor.Table {
	return &tensor.Table{
		Segment:  bytes,
		Storages: []tensor.Storage{{Bytes: bytes}},
		Tensors: []tensor.Tensor{{
			Name: "w", Kind: tensor.Param, DType: tensor.U8, Shape: []int64{bytes}, Stride: []int64{1},
		}},
	}
}

// nonsense is what a child might say that no child says.
var nonsense = []string{
	"not JSON", "nothing known", "a job", "too long", "an error without one",
	"a segment without a descriptor", "a segment with two", "a segment with ten", "progress with a descriptor",
	"done without a descriptor", "done without segments", "another size", "an open table", "a table that is none",
	"no table but a device", "endless segments", "a verdict", "a digest without one", "endless digests",
}

func sayNonsense(conn *os.File, what string) int {
	segment, table, err := finished()
	if err != nil {
		return 4
	}
	raw := func(text string, fds ...int) {
		_ = unix.Sendmsg(int(conn.Fd()), []byte(text), unix.UnixRights(fds...), nil, 0)
	}
	sealed := func(b []byte) int {
		f, err := fd.Sealed("nonsense", b)
		if err != nil {
			return -1
		}
		return f.Disown()
	}
	s, n := segment.Int(), table.Int()
	switch what {
	case "not JSON":
		raw("[", s)
	case "nothing known":
		raw(`{"says":"hello"}`)
	case "a job":
		raw(`{"says":"job"}`, s)
	case "too long":
		raw(`{"says":"segment","bytes":4096}`+strings.Repeat(" ", maxPacket), s)
	case "an error without one":
		raw(`{"says":"error"}`)
	case "a segment without a descriptor":
		raw(`{"says":"segment","bytes":4096}`)
	case "a segment with two":
		raw(`{"says":"segment","bytes":4096}`, s, s)
	case "a segment with ten":
		raw(`{"says":"segment","bytes":4096}`, s, s, s, s, s, s, s, s, s, s)
	case "progress with a descriptor":
		raw(`{"says":"progress"}`, s)
	case "done without a descriptor":
		raw(`{"says":"segment","bytes":4096}`, s)
		raw(`{"says":"done"}`)
	case "done without segments":
		raw(`{"says":"done"}`, n)
	case "another size":
		raw(`{"says":"segment","bytes":8192}`, s)
		raw(`{"says":"done"}`, n)
	case "an open table":
		f, err := fd.Memory("open")
		if err != nil {
			return 4
		}
		raw(`{"says":"segment","bytes":4096}`, s)
		raw(`{"says":"done"}`, f.Int())
	case "a table that is none":
		raw(`{"says":"segment","bytes":4096}`, s)
		raw(`{"says":"done"}`, sealed([]byte(`{"segments":[4096]}`)))
	case "no table but a device":
		raw(`{"says":"segment","bytes":4096}`, s)
		raw(`{"says":"done"}`, 0)
	case "a verdict":
		raw(`{"says":"verdict"}`)
	case "a digest without one":
		raw(`{"says":"digest"}`)
	case "endless digests":
		for range maxFiles + 1 {
			raw(`{"says":"digest","digest":{}}`)
		}
	case "endless segments":
		for range maxPieces + 2 {
			raw(`{"says":"segment","bytes":4096}`, s)
		}
	}
	time.Sleep(time.Hour)
	return 0
}
