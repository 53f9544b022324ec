// SPDX-FileCopyrightText: The wcache authors
// SPDX-License-Identifier: MIT

package main

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"time"

	"golang.org/x/sys/unix"

	"github.com/wcache/wcache/protocol"
	"github.com/wcache/wcache/protocol/pickle"
)

const (
	roleEngine = "engine"
	roleServer = "server"
	// roleVariable names the role of a process whose arguments imitate another program's.
	roleVariable = "WCACHE_BENCH_ROLE"
)

// patience is how long an engine waits for a reply.
const patience = 5 * time.Second

// exchange sends a frame and reads the reply, and measures the time from the established
// connection on. The time includes two switches between processes and the copy of the
// reply.
func exchange(socket string, frame []byte) ([]byte, time.Duration, error) {
	conn, err := net.Dial("unix", socket)
	if err != nil {
		return nil, 0, err
	}
	defer conn.Close()
	begin := time.Now()
	if err := conn.SetDeadline(begin.Add(patience)); err != nil {
		return nil, 0, err
	}
	if _, err := conn.Write(frame); err != nil {
		return nil, 0, err
	}
	reply, err := protocol.ReadFrame(conn, protocol.MaxReply)
	return reply, time.Since(begin), err
}

// askMemory is the frame of a get_memory.
func askMemory() ([]byte, error) {
	payload, err := pickle.Encode(&pickle.Dict{Items: []pickle.Item{{Key: "cmd", Value: protocol.GetMemory}}})
	if err != nil {
		return nil, err
	}
	var frame bytes.Buffer
	err = protocol.WriteFrame(&frame, payload)
	return frame.Bytes(), err
}

// decode reads a reply, which must be a success.
func decode(b []byte) (*protocol.Reply, error) {
	r, err := protocol.DecodeReply(b)
	if err == nil && r.Status != protocol.StatusOK {
		err = fmt.Errorf("ask service: %s %s %q", r.Status, r.Message, r.Fields)
	}
	return r, err
}

// answer is an engine's report about its request.
type answer struct {
	Kind answerKind
	Took time.Duration
}

type answerKind uint8

const (
	granted answerKind = iota
	refused
	silent // no reply within patience
)

func (k answerKind) String() string {
	return [...]string{"granted", "refused", "no reply"}[k]
}

// playEngine is an engine's process: it asks for the memory, as vLLM does first, says that
// it is ready, asks for the state on command, reports the result, and ends with its
// standard input.
func playEngine(socket, request string) error {
	frame, err := os.ReadFile(request)
	if err != nil {
		return err
	}
	first, err := askMemory()
	if err != nil {
		return err
	}
	reply, _, err := exchange(socket, first)
	if err == nil {
		_, err = decode(reply)
	}
	if err != nil {
		return err
	}
	var one [1]byte
	if _, err := os.Stdout.Write(one[:]); err != nil {
		return err
	}
	if _, err := io.ReadFull(os.Stdin, one[:]); err != nil {
		if errors.Is(err, io.EOF) { // it is not needed
			return nil
		}
		return err
	}
	a := answer{}
	reply, took, err := exchange(socket, frame)
	var late net.Error
	switch {
	case errors.As(err, &late) && late.Timeout():
		a.Kind, took = silent, patience
	case err != nil:
		return err
	case !bytes.Contains(reply, []byte("lm_head")): // decoding would take time from the service
		a.Kind = refused
		_, err := decode(reply)
		fmt.Fprintf(os.Stderr, "bench: an engine is refused: %v\n", err)
	}
	a.Took = took
	if err := binary.Write(os.Stdout, binary.NativeEndian, a); err != nil {
		return err
	}
	_, err = io.Copy(io.Discard, os.Stdin)
	return err
}

// playServer is a process that looks like `vllm serve` and is the parent of the engine's
// process, as in vLLM.
func playServer(socket, request string) error {
	c := engineProcess(socket, request)
	c.Args = []string{"VLLM::EngineCore"} // and nothing else, as vLLM names it
	c.Env = append(os.Environ(), roleVariable+"="+roleEngine+" "+socket+" "+request)
	c.Stdin, c.Stdout = os.Stdin, os.Stdout
	return c.Run()
}

func engineProcess(socket, request string) *exec.Cmd {
	c := exec.Command("/proc/self/exe", "-role", roleEngine, socket, request)
	c.Stderr = os.Stderr
	c.SysProcAttr = &unix.SysProcAttr{Pdeathsig: unix.SIGKILL}
	return c
}

// launch says how engines are started.
type launch struct {
	socket, request string
	// served is the model of the `vllm serve` that appears as the engine's parent; "" for
	// an engine in another program.
	served string
}

func (l launch) command() *exec.Cmd {
	c := engineProcess(l.socket, l.request)
	if l.served != "" {
		// What /proc shows of a program that pip has installed.
		c.Args = []string{"/usr/bin/python3", "/usr/local/bin/vllm", "serve", l.served, "--load-format", "ipc_cache"}
		c.Env = append(os.Environ(), roleVariable+"="+roleServer+" "+l.socket+" "+l.request)
	}
	return c
}

// engines are processes that wait to ask, each once.
type engines struct {
	cmds []*exec.Cmd
	in   []io.WriteCloser
	out  []io.Reader
}

func startEngines(n int, l launch) (*engines, error) {
	e := new(engines)
	for range n {
		c := l.command()
		in, err := c.StdinPipe()
		if err != nil {
			return e, err
		}
		out, err := c.StdoutPipe()
		if err != nil {
			return e, err
		}
		if err := c.Start(); err != nil {
			return e, err
		}
		e.cmds, e.in, e.out = append(e.cmds, c), append(e.in, in), append(e.out, out)
	}
	for _, out := range e.out {
		var one [1]byte
		if _, err := io.ReadFull(out, one[:]); err != nil {
			return e, fmt.Errorf("wait for an engine: %w", err)
		}
	}
	return e, nil
}

// ask makes the engines from i to before j ask at once, and waits for their answers.
func (e *engines) ask(i, j int) ([]answer, error) {
	for _, in := range e.in[i:j] {
		if _, err := in.Write([]byte{0}); err != nil {
			return nil, err
		}
	}
	list := make([]answer, j-i)
	for k, out := range e.out[i:j] {
		if err := binary.Read(out, binary.NativeEndian, &list[k]); err != nil {
			return nil, fmt.Errorf("wait for an engine: %w", err)
		}
	}
	return list, nil
}

func (e *engines) end() error {
	for _, in := range e.in {
		_ = in.Close() // Wait closes it too
	}
	var first error
	for _, c := range e.cmds {
		if err := c.Wait(); err != nil && first == nil {
			first = err
		}
	}
	return first
}
