// SPDX-FileCopyrightText: The wcache authors
// SPDX-License-Identifier: MIT

package socket

import (
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/wcache/wcache/internal/testmain"
)

// The test binary is also another daemon, which holds a lock or listens.
func TestMain(m *testing.M) {
	if len(os.Args) == 3 {
		var err error
		switch os.Args[1] {
		case "lock":
			err = lockMain(os.Args[2])
		case "listen":
			err = listenMain(os.Args[2])
		default:
			err = fmt.Errorf("unknown role %q", os.Args[1])
		}
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	testmain.Run(m)
}

// lockMain holds a lock as vLLM's daemon does, until its input ends.
func lockMain(path string) error {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return err
	}
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		return err
	}
	fmt.Fprintln(os.Stdout, "locked")
	_, err = io.Copy(io.Discard, os.Stdin)
	return err
}

// listenMain listens on a socket until its input ends, and takes no lock.
func listenMain(path string) error {
	l, err := net.Listen("unix", path)
	if err != nil {
		return err
	}
	fmt.Fprintln(os.Stdout, "listening")
	_, err = io.Copy(io.Discard, os.Stdin)
	return errors.Join(err, l.Close())
}

// another is a process that has said that it is ready, and ends with the test at the latest.
func another(t *testing.T, role, path string) *exec.Cmd {
	t.Helper()
	c := exec.Command("/proc/self/exe", role, path)
	c.Stderr = os.Stderr
	in, err := c.StdinPipe()
	do(t, err)
	out, err := c.StdoutPipe()
	do(t, err, c.Start())
	t.Cleanup(func() {
		_ = in.Close()
		_ = c.Wait()
	})
	_, err = out.Read(make([]byte, 1))
	do(t, err)
	return c
}

// kill ends a process without a chance to do anything, and waits for that.
func kill(c *exec.Cmd) {
	_ = c.Process.Kill()
	_ = c.Wait()
}

// private is a folder that Listen accepts, with a short name.
func private(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "wcache")
	do(t, err)
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	return dir
}

func do(t *testing.T, errs ...error) {
	t.Helper()
	for _, err := range errs {
		if err != nil {
			t.Fatal(err)
		}
	}
}
