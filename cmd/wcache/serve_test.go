// SPDX-FileCopyrightText: The wcache authors
// SPDX-License-Identifier: MIT

package main

import (
	"bufio"
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/wcache/wcache/client"
	"github.com/wcache/wcache/control"
)

// A daemon whose log nobody reads any more keeps what it holds: a pipe that has ended,
// or a journal that was started again, is no reason to end.
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
