// SPDX-FileCopyrightText: The wcache authors
// SPDX-License-Identifier: MIT

package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/wcache/wcache/client"
	"github.com/wcache/wcache/control"
	"github.com/wcache/wcache/fingerprint"
	"github.com/wcache/wcache/protocol"
	"github.com/wcache/wcache/tensor"
)

// The roles that this program plays, beside the one that starts the others, by the
// variable roleVariable.
const (
	roleVariable = "CHURN_ROLE"
	roleEngine   = "engine"  // asks, maps and compares
	roleServer   = "server"  // is called vllm serve, and starts an engine
	roleHostile  = "hostile" // does what no engine does
)

// patience is how long an answer may take. Loads and restarts take much less, even on a busy
// machine; an answer that takes longer is stuck.
const patience = time.Minute

// plan is an engine's instructions at its start, as JSON in planVariable.
type plan struct {
	Socket string
	Family int // of families
	TP     int
	Rank   int
	Key    fingerprint.Key
}

const planVariable = "CHURN_PLAN"

// Orders to an engine, one per line. The end of its input ends it.
const (
	orderAsk     = "ask"     // get_state, then map and compare
	orderAgain   = "again"   // likewise, as one that has mapped the weights before
	orderCheck   = "check"   // compare once more what it has mapped
	orderWatch   = "watch"   // and keep the connection
	orderLook    = "look"    // has the watch ended?
	orderMemory  = "memory"  // get_memory
	orderRelease = "release" // release
)

// Outcomes of an order.
const (
	outcomeOK       = "ok"
	outcomeError    = "error"    // the service refused for now
	outcomeMismatch = "mismatch" // the service refused for good
	outcomeLost     = "lost"     // no answer: the service wasn't there, or closed the connection
	outcomeUnmapped = "unmapped" // answered, and the service was gone before the memory was mapped
	outcomeWrong    = "wrong"    // bytes that are in no version of the checkpoint
	outcomeStuck    = "stuck"    // no answer within patience
)

// report is the result of an order, a line of JSON.
type report struct {
	PID      int // of the engine
	Outcome  string
	Message  string   `json:",omitempty"` // why it isn't ok
	Versions []uint32 `json:",omitempty"` // that the tensors have
	Bytes    int      `json:",omitempty"` // that were compared
	Daemon   int      `json:",omitempty"` // the process whose memory was mapped
	From, To int64    // when it asked, and when it was answered, by clock
}

// clock is the time in nanoseconds, the same in all processes of the machine.
func clock() int64 {
	var t unix.Timespec
	_ = unix.ClockGettime(unix.CLOCK_MONOTONIC, &t) // fails for unknown clocks only
	return t.Nano()
}

// engine is the process that stands in for one of vLLM's.
type engine struct {
	plan
	want   []piece
	reply  *protocol.Reply
	mapped map[string][]byte
	watch  net.Conn
}

// playEngine does what it is told on its standard input until that ends.
func playEngine(in io.Reader, out io.Writer) error {
	e := new(engine)
	if err := json.Unmarshal([]byte(os.Getenv(planVariable)), &e.plan); err != nil {
		return fmt.Errorf("read plan: %w", err)
	}
	f := families()[e.Family]
	e.want = f.rank(f.version(0), e.TP, e.Rank)
	encode := json.NewEncoder(out)
	if err := encode.Encode(report{PID: os.Getpid(), Outcome: outcomeOK}); err != nil {
		return err
	}
	for lines := bufio.NewScanner(in); lines.Scan(); {
		r := e.do(lines.Text())
		r.PID = os.Getpid()
		if err := encode.Encode(r); err != nil {
			return err
		}
	}
	return nil
}

// do carries an order out.
func (e *engine) do(order string) report {
	switch order {
	case orderAsk, orderAgain:
		return e.ask(order == orderAgain)
	case orderCheck:
		return e.compare(report{From: clock()})
	case orderLook:
		return e.look()
	case orderWatch:
		r, _, conn := e.send(&protocol.Request{Cmd: protocol.Watch})
		if r.Outcome == outcomeOK {
			e.watch = conn
		}
		return r
	}
	cmd := map[string]string{orderMemory: protocol.GetMemory, orderRelease: protocol.Release}[order]
	r, _, conn := e.send(&protocol.Request{Cmd: cmd})
	if conn != nil {
		_ = conn.Close() // all is read
	}
	return r
}

// send asks, and gives the connection and the reply if there is one.
func (e *engine) send(request *protocol.Request) (report, *protocol.Reply, net.Conn) {
	r := report{From: clock()}
	payload, err := protocol.EncodeRequest(request)
	if err != nil {
		return report{Outcome: outcomeWrong, Message: err.Error()}, nil, nil
	}
	ctx, cancel := context.WithTimeoutCause(context.Background(), patience, errStuck)
	defer cancel()
	reply, conn, err := client.Engine(ctx, e.Socket, payload)
	r.To = clock()
	var absent *control.Error
	switch {
	case errors.Is(err, errStuck):
		r.Outcome, r.Message = outcomeStuck, err.Error()
	case errors.As(err, &absent), err != nil && strings.HasSuffix(err.Error(), "the daemon closed the connection"):
		r.Outcome, r.Message = outcomeLost, err.Error()
	case err != nil:
		r.Outcome, r.Message = outcomeWrong, err.Error()
	case reply.Status == protocol.StatusOK:
		r.Outcome = outcomeOK
	case reply.Status == protocol.StatusMismatch:
		r.Outcome, r.Message = outcomeMismatch, strings.Join(reply.Fields, ": ")
	default:
		r.Outcome, r.Message = outcomeError, reply.Message
	}
	return r, reply, conn
}

var errStuck = errors.New("no answer")

// ask asks for weights, maps them, and compares all bytes. The previous mapping stays until
// then.
func (e *engine) ask(again bool) report {
	r, reply, conn := e.send(&protocol.Request{
		Cmd: protocol.GetState, Key: e.Key, HasKey: true, KeyField: "cache_key", Module: protocol.DefaultModule, IsReload: again,
	})
	if conn != nil {
		_ = conn.Close() // all is read
	}
	if r.Outcome != outcomeOK {
		return r
	}
	e.unmap()
	e.reply = reply
	for i := range reply.Entries {
		path, bytes := reply.Entries[i].Path, reply.Entries[i].Bytes
		if path == "" || e.mapped[path] != nil {
			continue
		}
		if _, err := fmt.Sscanf(path, "/proc/%d/", &r.Daemon); err != nil {
			r.Outcome, r.Message = outcomeWrong, fmt.Sprintf("the path %q leads to no process", path)
			return r
		}
		if err := e.mapFile(path, bytes); err != nil {
			e.unmap()
			r.Outcome, r.Message = outcomeUnmapped, err.Error()
			return r
		}
	}
	return e.compare(r)
}

// mapFile maps a file as torch.UntypedStorage.from_file does.
func (e *engine) mapFile(path string, bytes int64) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	st, err := f.Stat()
	if err != nil {
		return err
	}
	if st.Size() < bytes { // or a read would end this process
		return fmt.Errorf("map %q: it has %d bytes, not %d", path, st.Size(), bytes)
	}
	mem, err := unix.Mmap(int(f.Fd()), 0, int(bytes), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE)
	if err != nil {
		return fmt.Errorf("map %q: %w", path, err)
	}
	if e.mapped == nil {
		e.mapped = make(map[string][]byte)
	}
	e.mapped[path] = mem
	return nil
}

func (e *engine) unmap() {
	for _, mem := range e.mapped {
		_ = unix.Munmap(mem)
	}
	e.mapped, e.reply = nil, nil
}

// compare compares what is mapped with the reference.
func (e *engine) compare(r report) report {
	if e.reply == nil {
		r.Outcome = outcomeOK
		return r
	}
	var err error
	r.Outcome = outcomeOK
	if r.Versions, err = compare(e.want, e.reply, e.bytes); err != nil {
		r.Outcome, r.Message = outcomeWrong, err.Error()
	}
	for _, p := range e.want {
		r.Bytes += len(p.bytes)
	}
	return r
}

// bytes are those of a tensor without gaps, as compare has made sure.
func (e *engine) bytes(x *protocol.Entry) ([]byte, error) {
	mem := x.Data
	if x.Path != "" {
		mem = e.mapped[x.Path]
	}
	size := int64(x.DType.Size())
	n, from := tensor.Elements(x.Shape)*size, x.Offset*size
	if from < 0 || from > int64(len(mem))-n {
		return nil, fmt.Errorf("%s: bytes %d+%d are not in %d that are there", x.Name, from, n, len(mem))
	}
	return mem[from : from+n], nil
}

// look reports whether the watch still exists: lost, if it has ended.
func (e *engine) look() report {
	r := report{Outcome: outcomeOK, From: clock()}
	if e.watch == nil {
		return r
	}
	_ = e.watch.SetReadDeadline(time.Now().Add(time.Millisecond)) // shows at the read
	_, err := e.watch.Read(make([]byte, 1))
	var wait net.Error
	if !errors.As(err, &wait) || !wait.Timeout() {
		_ = e.watch.Close() // it has ended anyway
		e.watch = nil
		r.Outcome, r.Message = outcomeLost, "the watch has ended"
	}
	return r
}

// playServer is the process above an engine, whose command line names the engine's model. It
// starts the engine under vLLM's name for it, and ends with it.
func playServer() error {
	c := exec.Command("/proc/self/exe")
	c.Args = []string{"VLLM::EngineCore"}
	c.Env = append(os.Environ(), roleVariable+"="+roleEngine)
	c.Stdin, c.Stdout, c.Stderr = os.Stdin, os.Stdout, os.Stderr
	c.SysProcAttr = &unix.SysProcAttr{Pdeathsig: unix.SIGKILL}
	return c.Run()
}
