// SPDX-FileCopyrightText: The wcache authors
// SPDX-License-Identifier: MIT

package main

import (
	"bufio"
	"context"
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/wcache/wcache/client"
	"github.com/wcache/wcache/control"
	"github.com/wcache/wcache/internal/testmain"
	"github.com/wcache/wcache/protocol"
)

// The test binary is also the command, under the names below, and the loader that the
// command starts through /proc/self/exe.
func TestMain(m *testing.M) {
	switch name := filepath.Base(os.Args[0]); {
	case name == "wcache", len(os.Args) > 1 && slices.Contains([]string{"load", "probe"}, os.Args[1]):
		os.Exit(runOn(machine()))
	case name == "service":
		exit(service(os.Args[1:]))
	case name == "gpuengine":
		exit(gpuEngine(os.Args[1], os.Args[2]))
	case name == "tenant":
		but, _ := strconv.ParseInt(os.Args[2], 10, 64)
		exit(occupy(os.Args[1], but))
	case name == "engine":
		exit(engine(os.Args[1], os.Args[2:]))
	case name == "activate":
		exit(activate(os.Args[1], os.Args[2:]))
	}
	testmain.Run(m)
}

func exit(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(0)
}

// engine sends recorded requests on a socket and prints the replies' status. With the last
// argument "stay:FILE" it makes that file and runs until it is killed.
func engine(socket string, files []string) error {
	for _, f := range files {
		if path, ok := strings.CutPrefix(f, "stay:"); ok {
			if err := os.WriteFile(path, []byte("attached"), 0o600); err != nil {
				return err
			}
			select {}
		}
		b, err := os.ReadFile(f)
		if err != nil {
			return err
		}
		if uint64(len(b)-8) != binary.BigEndian.Uint64(b) {
			return fmt.Errorf("%s: no frame", f)
		}
		reply, conn, err := client.Engine(context.Background(), socket, b[8:])
		if err != nil {
			return err
		}
		defer conn.Close()
		switch {
		case reply.Status == protocol.StatusError:
			fmt.Fprintln(os.Stdout, "error:", reply.Message)
		case reply.Status == protocol.StatusMismatch:
			fmt.Fprintln(os.Stdout, "mismatch:", strings.Join(reply.Fields, "; "))
		case reply.HasMemory:
			fmt.Fprintln(os.Stdout, "ok,", reply.MemoryBytes, "bytes")
		default:
			fmt.Fprintln(os.Stdout, "ok,", len(reply.Entries), "entries")
		}
	}
	return nil
}

// activate listens and becomes the command when a client connects, as
// systemd-socket-activate does.
func activate(socket string, command []string) error {
	if err := os.MkdirAll(filepath.Dir(socket), 0o700); err != nil {
		return err
	}
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: socket, Net: "unix"})
	if err != nil {
		return err
	}
	f, err := l.File()
	if err != nil {
		return err
	}
	if err := wait(f); err != nil {
		return err
	}
	if f, err = first(f); err != nil {
		return err
	}
	path, err := exec.LookPath(command[0])
	if err != nil {
		return err
	}
	env := append(os.Environ(), "LISTEN_PID="+strconv.Itoa(os.Getpid()), "LISTEN_FDS=1")
	return execve(path, command, env, f)
}

// serveOne answers one control connection with fixed lines, as a daemon would.
func serveOne(t *testing.T, lines ...string) (socket string) {
	t.Helper()
	l, socket := listenControl(t)
	go func() {
		c, err := l.Accept()
		if err != nil {
			return
		}
		defer c.Close()
		if _, err := bufio.NewReader(c).ReadString('\n'); err == nil {
			_, _ = io.WriteString(c, strings.Join(lines, "\n")+"\n")
		}
	}()
	return socket
}

// listenControl listens on the control socket of an engine's socket; the engine's socket
// itself doesn't exist.
func listenControl(t *testing.T) (l net.Listener, socket string) {
	t.Helper()
	dir, err := os.MkdirTemp("", "wcache")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	socket = filepath.Join(dir, "s.sock")
	l, err = net.Listen("unix", control.Path(socket))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	return l, socket
}
