// SPDX-FileCopyrightText: The wcache authors
// SPDX-License-Identifier: MIT

package main

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"time"

	"golang.org/x/sys/unix"

	"github.com/wcache/wcache/protocol"
)

const roleEngine = "engine"

// exchange sends a frame and reads the reply, and tells how long that took from
// the moment that the connection was there. It is more than the service's part
// by two switches between processes and the copy of the reply.
func exchange(socket string, frame []byte) ([]byte, time.Duration, error) {
	conn, err := net.Dial("unix", socket)
	if err != nil {
		return nil, 0, err
	}
	defer conn.Close()
	begin := time.Now()
	if _, err := conn.Write(frame); err != nil {
		return nil, 0, err
	}
	reply, err := protocol.ReadFrame(conn, protocol.MaxReply)
	return reply, time.Since(begin), err
}

// decode reads a reply, which has to be good.
func decode(b []byte) (*protocol.Reply, error) {
	r, err := protocol.DecodeReply(b)
	if err == nil && r.Status != protocol.StatusOK {
		err = fmt.Errorf("ask service: %s %s %q", r.Status, r.Message, r.Fields)
	}
	return r, err
}

// playEngine is an engine's process: it says that it is ready, asks when it is
// told, says that it has the answer, and ends when its standard input does.
func playEngine(socket, request string) error {
	frame, err := os.ReadFile(request)
	if err != nil {
		return err
	}
	var one [1]byte
	if _, err := os.Stdout.Write(one[:]); err != nil {
		return err
	}
	if _, err := io.ReadFull(os.Stdin, one[:]); err != nil {
		return err
	}
	reply, _, err := exchange(socket, frame)
	if err != nil {
		return err
	}
	if !bytes.Contains(reply, []byte("lm_head")) { // decoding would take time from the service
		return fmt.Errorf("ask service: %q", reply)
	}
	if _, err := os.Stdout.Write(one[:]); err != nil {
		return err
	}
	_, err = io.Copy(io.Discard, os.Stdin)
	return err
}

// engines are processes that wait to ask.
type engines struct {
	cmds []*exec.Cmd
	in   []io.WriteCloser
	out  []*bufio.Reader
}

func startEngines(n int, socket, request string) (*engines, error) {
	e := new(engines)
	for range n {
		c := exec.Command("/proc/self/exe", "-role", roleEngine, socket, request)
		c.Stderr = os.Stderr
		c.SysProcAttr = &unix.SysProcAttr{Pdeathsig: unix.SIGKILL}
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
		e.cmds, e.in, e.out = append(e.cmds, c), append(e.in, in), append(e.out, bufio.NewReader(out))
	}
	return e, e.await(0, n)
}

// ask lets engines from i to before j ask at once, and waits for their answers.
func (e *engines) ask(i, j int) error {
	for _, in := range e.in[i:j] {
		if _, err := in.Write([]byte{0}); err != nil {
			return err
		}
	}
	return e.await(i, j)
}

func (e *engines) await(i, j int) error {
	for _, out := range e.out[i:j] {
		if _, err := out.ReadByte(); err != nil {
			return fmt.Errorf("wait for an engine: %w", err)
		}
	}
	return nil
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
