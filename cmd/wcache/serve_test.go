// SPDX-FileCopyrightText: The wcache authors
// SPDX-License-Identifier: MIT

package main

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/wcache/wcache/client"
	"github.com/wcache/wcache/control"
	"github.com/wcache/wcache/internal/testmain"
)

// A daemon whose log isn't read, because journald is stopped, serves as usual: it says so in
// its status and, once the log is read again, in the log. It ends when told to.
func TestLogUnread(t *testing.T) {
	dir := manualDir(t)
	r, w, err := os.Pipe()
	must(t, err)
	m := startManual(t, dir, func(c *exec.Cmd) { c.Stderr = w }, "serve", "--listen", filepath.Join(dir, "s.sock"), "--state", dir)
	must(t, w.Close())
	defer r.Close()
	ask := func(method string, warm *control.Warm) *control.Reply {
		t.Helper()
		reply, err := client.Do(t.Context(), filepath.Join(dir, "s.control"), control.Request{Method: method, Warm: warm}, nil)
		if reply == nil {
			t.Fatal(err)
		}
		return reply
	}
	read := bufio.NewReaderSize(r, 1<<20)
	said := func(what string) (before int) {
		t.Helper()
		for {
			line, err := read.ReadString('\n')
			must(t, err)
			if strings.Contains(line, what) {
				return before
			}
			before++
		}
	}
	said("msg=serving")
	const requests = 60
	method := func(n int) string { return fmt.Sprintf("%d %s", n, strings.Repeat("x", 60_000)) } // which is logged
	for n := range requests {
		ask(method(n), nil)
	}
	problem := regexp.MustCompile(`^log is not read: records dropped since \S+Z: \d+$`)
	if got := ask(control.MethodStatus, nil).Status.Problems; len(got) != 1 || !problem.MatchString(got[0]) {
		t.Errorf("problems: %q", got)
	}
	llama, err := filepath.Abs("../../testdata/checkpoints/llama")
	must(t, err)
	if reply := ask(control.MethodWarm, &control.Warm{Model: llama}); reply.Error != nil {
		t.Errorf("a load: %v", reply.Error)
	}
	for n := range 5 {
		said(fmt.Sprintf("msg=%q", method(n)))
	}
	kept := 5 + said("records are dropped")
	if kept < 7 || kept >= requests {
		t.Errorf("%d records were kept", kept)
	}
	testmain.Eventually(t, "the log goes on", func() bool { return len(ask(control.MethodStatus, nil).Status.Problems) == 0 })
	for n := range requests {
		ask(method(n), nil)
	}
	m.signal(t, os.Interrupt)
	if err := m.Wait(); err != nil {
		t.Error(err)
	}
}

// A daemon keeps its weights when its log's reader ends: a closed pipe or a restarted
// journal must not end it.
func TestLogEnds(t *testing.T) {
	dir, err := os.MkdirTemp("", "wcache") // with a short name
	must(t, err)
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	socket := filepath.Join(dir, "s.sock")
	serve := exec.Command("/proc/self/exe")
	serve.Args = []string{"wcache", "serve", "--listen", socket, "--state", dir}
	serve.Env = append(os.Environ(), "HOME="+dir, "XDG_CONFIG_HOME="+dir, "HF_HUB_CACHE="+dir)
	log, err := serve.StderrPipe()
	must(t, err)
	must(t, serve.Start())
	t.Cleanup(func() {
		_ = serve.Process.Signal(os.Interrupt)
		if err := serve.Wait(); err != nil {
			t.Errorf("serve: %v", err)
		}
	})
	for lines := bufio.NewScanner(log); lines.Scan(); {
		if strings.Contains(lines.Text(), "serving") {
			break
		}
	}
	must(t, log.Close())
	for range 2 { // which is logged
		_, err := client.Do(context.Background(), control.Path(socket), control.Request{Method: control.MethodEvict, Evict: &control.Evict{}}, nil)
		must(t, err)
	}
}
