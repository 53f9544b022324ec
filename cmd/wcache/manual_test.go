// SPDX-FileCopyrightText: The wcache authors
// SPDX-License-Identifier: MIT

package main

import (
	"bytes"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/wcache/wcache/internal/testmain"
	"github.com/wcache/wcache/protocol"
)

// manual is a daemon for the messages of the pages that only its log has.
type manual struct {
	*exec.Cmd
	log string // path
}

// startManual runs the command in a folder, which also has the program as
// bin/wcache.
func startManual(t *testing.T, dir string, prepare func(*exec.Cmd), args ...string) *manual {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	log, err := os.Create(filepath.Join(dir, "log"))
	if err != nil {
		t.Fatal(err)
	}
	defer log.Close()
	m := &manual{Cmd: exec.Command(self), log: log.Name()}
	m.Args, m.Dir, m.Stderr = append([]string{"wcache"}, args...), dir, log
	m.Env = append(os.Environ(), "GORACE=atexit_sleep_ms=0", "HOME="+dir, "HF_HUB_CACHE="+dir, "XDG_CONFIG_HOME="+dir)
	if prepare != nil {
		prepare(m.Cmd)
	}
	if err := m.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = m.Process.Kill()
		_ = m.Wait()
	})
	return m
}

// says waits until the log has a message.
func (m *manual) says(t *testing.T, message string) {
	t.Helper()
	var log []byte
	if !testmain.Within(func() bool {
		log, _ = os.ReadFile(m.log)
		return bytes.Contains(log, []byte(message))
	}) {
		t.Fatalf("it never said %q, but\n%s", message, log)
	}
}

func manualDir(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "wcache") // a socket's path is short
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	return dir
}

func write(t *testing.T, path, text string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

func (m *manual) signal(t *testing.T, s os.Signal) {
	t.Helper()
	if err := m.Process.Signal(s); err != nil {
		t.Fatal(err)
	}
}

// stop holds the daemon up, and returns when none of its threads runs.
func (m *manual) stop(t *testing.T) {
	t.Helper()
	m.signal(t, unix.SIGSTOP)
	testmain.Eventually(t, "it stops", func() bool {
		stats, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/stat", m.Process.Pid))
		return err == nil && !slices.ContainsFunc(stats, func(path string) bool {
			b, err := os.ReadFile(path)
			return err == nil && !bytes.Contains(b, []byte(") T "))
		})
	})
}

// dialled is a connection that may have been sent a frame.
func dialled(t *testing.T, socket string, payload []byte) net.Conn {
	t.Helper()
	c, err := net.Dial("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	if payload != nil {
		if err := protocol.WriteFrame(c, payload); err != nil {
			t.Fatal(err)
		}
	}
	return c
}

func encoded(t *testing.T, cmd string) []byte {
	t.Helper()
	b, err := protocol.EncodeRequest(&protocol.Request{Cmd: cmd})
	if err != nil {
		t.Fatal(err)
	}
	return b
}
