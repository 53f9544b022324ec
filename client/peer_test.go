// SPDX-FileCopyrightText: The wcache authors
// SPDX-License-Identifier: MIT

package client_test

import (
	"bufio"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/wcache/wcache/client"
	"github.com/wcache/wcache/control"
	"github.com/wcache/wcache/protocol"
)

// P3, C9: a client tells nothing to a process of another user.
func TestForeign(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("needs root, to be two users, and .ci/run is root; the others' sockets here are this user's")
	}
	const nobody = 65534
	dir, err := os.MkdirTemp("", "wcache")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	self, err := os.Open("/proc/self/exe")
	if err == nil {
		err = os.Chown(dir, nobody, nobody)
	}
	if err != nil {
		t.Fatal(err)
	}
	socket := filepath.Join(dir, "s.sock")
	c := exec.Command("/proc/self/fd/3")
	c.Args = []string{"listen", socket}
	c.ExtraFiles, c.Stderr = []*os.File{self}, os.Stderr
	c.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: nobody, Gid: nobody}}
	in, err := c.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := c.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(c.Start(), self.Close()); err != nil {
		t.Fatal(err)
	}
	defer func() { _, _ = in.Close(), c.Wait() }()
	if line, err := bufio.NewReader(out).ReadString('\n'); err != nil {
		t.Fatal(line, err)
	}
	payload, err := protocol.EncodeRequest(&protocol.Request{Cmd: protocol.GetMemory})
	if err != nil {
		t.Fatal(err)
	}
	_, doErr := client.Do(t.Context(), socket, control.Request{Method: control.MethodStatus}, nil)
	_, _, engineErr := client.Engine(t.Context(), socket, payload)
	_, peerErr := client.Peer(t.Context(), socket)
	want := fmt.Sprintf("connect to %q: user %d listens there, and this is user 0", socket, nobody)
	for what, err := range map[string]error{"Do": doErr, "Engine": engineErr, "Start": client.Start(t.Context(), socket), "Peer": peerErr} {
		var foreign *client.Foreign
		if !errors.As(err, &foreign) || foreign.UID != nobody || err.Error() != want {
			t.Errorf("%s: got %v, want %s", what, err, want)
		}
	}
}

// impatient gives up soon. Its peers answer at once or never.
func impatient(socket string) client.Asker {
	return client.Asker{Socket: socket, Patience: 50 * time.Millisecond}
}

// C8: a stopped or hanging daemon keeps a socket on which it doesn't accept.
func TestSilent(t *testing.T) {
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: filepath.Join(t.TempDir(), "s"), Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	asker := impatient(l.Addr().String())
	for _, method := range []string{control.MethodStatus, control.MethodMisses, control.MethodPing, control.MethodWarm, control.MethodEvict} {
		_, err := asker.Do(t.Context(), control.Request{Method: method}, nil)
		want := &client.Silent{Socket: asker.Socket, PID: os.Getpid(), Limit: asker.Patience}
		var got *client.Silent
		if !errors.As(err, &got) || cmp.Diff(want, got) != "" || !strings.HasSuffix(err.Error(), ": it has not answered within 50ms") {
			t.Errorf("%s: got %v, want %v", method, err, want)
		}
	}
	if pid, err := client.Peer(t.Context(), asker.Socket); pid != os.Getpid() || err != nil {
		t.Errorf("who is silent: %d, %v", pid, err)
	}
}

// A daemon with a full queue lets no client connect.
func TestFullQueue(t *testing.T) {
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: filepath.Join(t.TempDir(), "s"), Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	raw, err := l.SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	if err := raw.Control(func(n uintptr) { err = syscall.Listen(int(n), 0) }); err != nil {
		t.Fatal(err)
	}
	first, err := net.Dial("unix", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer first.Close()
	_, err = impatient(l.Addr().String()).Do(t.Context(), control.Request{Method: control.MethodStatus}, nil)
	if !errors.As(err, new(*client.Silent)) {
		t.Errorf("got %v", err)
	}
}

// A client waits for a long request as long as the daemon answers other questions.
func TestPatience(t *testing.T) {
	var pings atomic.Int64
	enough := make(chan struct{})
	socket := serveAll(t, func(c net.Conn) {
		var request control.Request
		if control.Read(bufio.NewReader(c), &request) != nil {
			return
		}
		if request.Method == control.MethodPing {
			if pings.Add(1) == 1 {
				close(enough)
			}
			_ = control.Write(c, control.Reply{Final: true})
			return
		}
		<-enough
		_ = control.Write(c, control.Reply{Final: true, Evicted: []string{"7c"}})
	})
	asker := client.Asker{Socket: socket, Patience: time.Second} // with the answer of a ping, too
	reply, err := asker.Do(t.Context(), control.Request{Method: control.MethodWarm}, nil)
	if err != nil || len(reply.Evicted) != 1 {
		t.Errorf("got %+v, %v after %d pings", reply, err, pings.Load())
	}
}
