// SPDX-FileCopyrightText: The wcache authors
// SPDX-License-Identifier: MIT

package main

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"
)

// style says how an engine is started, and so whether the service can find its model.
type style int

const (
	silent   style = iota // a program that says nothing of its model
	serving               // vllm serve MODEL, itself
	core                  // an engine's process below vllm serve MODEL
	module                // python -m vllm.entrypoints.openai.api_server --model MODEL
	relative              // vllm serve with a path from its working directory
	styles                // how many there are
)

// arguments are the command line of an engine's first process, and its role.
func (s style) arguments(path string) (args []string, role, dir string) {
	switch s {
	case serving:
		return []string{"/usr/bin/vllm", "serve", path, "--load-format", "ipc_cache"}, roleEngine, ""
	case core:
		return []string{"vllm", "serve", "--load-format=ipc_cache", path}, roleServer, ""
	case module:
		return []string{"python3", "-m", "vllm.entrypoints.openai.api_server", "--model", path}, roleEngine, ""
	case relative:
		return []string{"vllm", "serve", "./" + filepath.Base(path)}, roleServer, filepath.Dir(path)
	}
	return []string{"python3", "generate.py"}, roleEngine, ""
}

// process is an engine's process, for the one that started it. It is not for concurrent use.
type process struct {
	cmd     *exec.Cmd
	in      io.WriteCloser
	reports chan report
	pid     int // of the process that asks
}

// errEnded is the error of an engine that has ended and gives no report.
var errEnded = errors.New("the engine has ended")

// startEngine starts an engine and waits until it can be told what to do.
func startEngine(s style, path string, p plan) (*process, error) {
	text, err := json.Marshal(p)
	if err != nil {
		return nil, err
	}
	args, role, dir := s.arguments(path)
	c := exec.Command("/proc/self/exe")
	c.Args, c.Dir = args, dir
	c.Env = append(os.Environ(), roleVariable+"="+role, planVariable+"="+string(text))
	c.Stderr = os.Stderr
	c.SysProcAttr = &unix.SysProcAttr{Pdeathsig: unix.SIGKILL}
	in, err := c.StdinPipe()
	if err != nil {
		return nil, err
	}
	out, err := c.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := c.Start(); err != nil {
		return nil, err
	}
	e := &process{cmd: c, in: in, reports: make(chan report)}
	go func() {
		defer close(e.reports)
		for lines := bufio.NewScanner(out); lines.Scan(); {
			var r report
			if json.Unmarshal(lines.Bytes(), &r) == nil {
				e.reports <- r
			}
		}
	}()
	hello, err := e.await()
	if err != nil {
		return nil, errors.Join(fmt.Errorf("start an engine: %w", err), e.end(true))
	}
	e.pid = hello.PID
	return e, nil
}

// await waits for a report, somewhat longer than the engine waits for an answer.
func (e *process) await() (report, error) {
	select {
	case r, ok := <-e.reports:
		if !ok {
			return report{}, errEnded
		}
		return r, nil
	case <-time.After(2 * patience):
		return report{Outcome: outcomeStuck, Message: "the engine says nothing"}, nil
	}
}

// tell sends the engine an order.
func (e *process) tell(order string) (report, error) {
	if _, err := io.WriteString(e.in, order+"\n"); err != nil {
		return report{}, errEnded
	}
	return e.await()
}

// end ends the engine: it gets time to end by itself, or is killed at once. If it takes too
// long, it is killed as well, which is an error.
func (e *process) end(kill bool) error {
	_ = e.in.Close() // Wait closes it too
	if kill {
		_ = e.cmd.Process.Kill() // it may have ended
	}
	late := time.AfterFunc(patience, func() { _ = e.cmd.Process.Kill() })
	for range e.reports { // until its output ends, as Wait wants it
	}
	err := e.cmd.Wait()
	switch {
	case !late.Stop():
		return errors.New("the engine doesn't end")
	case kill:
		return nil
	}
	return err
}

// sleep waits a random time up to most, usually a short one.
func sleep(rng *rand.Rand, most time.Duration) {
	x := rng.Float64()
	time.Sleep(time.Duration(x * x * x * float64(most)))
}
