// SPDX-FileCopyrightText: The wcache authors
// SPDX-License-Identifier: MIT

package client_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/wcache/wcache/client"
	"github.com/wcache/wcache/control"
	"github.com/wcache/wcache/internal/testmain"
	"github.com/wcache/wcache/protocol"
)

// The test binary also plays a process of another user that listens.
func TestMain(m *testing.M) {
	if os.Args[0] == "listen" {
		l, err := net.Listen("unix", os.Args[1])
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		fmt.Fprintln(os.Stdout, "listening")
		_, _ = io.Copy(io.Discard, os.Stdin)
		_ = l.Close()
		os.Exit(0)
	}
	testmain.Run(m)
}

// serve calls each for every connection to a new socket, one at a time.
func serve(t *testing.T, each func(net.Conn)) string {
	t.Helper()
	return listen(t, func(c net.Conn) {
		each(c)
		_ = c.Close()
	})
}

// serveAll is serve for all connections at once.
func serveAll(t *testing.T, each func(net.Conn)) string {
	t.Helper()
	var wait sync.WaitGroup
	t.Cleanup(wait.Wait) // after the listener's, which comes first
	return listen(t, func(c net.Conn) {
		wait.Go(func() {
			each(c)
			_ = c.Close()
		})
	})
}

func listen(t *testing.T, each func(net.Conn)) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "wcache")
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(dir, "s.sock")
	l, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			each(c)
		}
	}()
	t.Cleanup(func() {
		_ = l.Close()
		<-done
		_ = os.RemoveAll(dir)
	})
	return path
}

// stale is a socket that no process serves any more.
func stale(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: filepath.Join(dir, "s"), Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	l.SetUnlinkOnClose(false)
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	return filepath.Join(dir, "s")
}

// answers reads a line and writes others.
func answers(lines ...string) func(net.Conn) {
	return func(c net.Conn) {
		if _, err := bufio.NewReader(c).ReadString('\n'); err == nil {
			_, _ = c.Write([]byte(strings.Join(lines, "")))
		}
	}
}

func TestDo(t *testing.T) {
	none := filepath.Join(t.TempDir(), "none")
	gone := stale(t)
	tests := []struct {
		name   string
		socket string
		want   string // progress, then what came of it, with S for the socket
		code   string // of a control.Error
	}{
		{"answer", serve(t, answers(`{"final":true,"evicted":["k"]}`+"\n")), "evicted k", ""},
		{"answer after progress", serve(t, answers(`{"progress":{"done":1}}`+"\n", `{"progress":{"done":2}}`+"\n", `{"final":true}`+"\n")),
			"progress 1, progress 2, evicted ", ""},
		{"refusal", serve(t, answers(`{"final":true,"evicted":["k"],"error":{"code":"in-use","message":"m"}}`+"\n")), "evicted k, error m", "in-use"},
		{"hang-up", serve(t, answers()), `error ask "S": the daemon closed the connection`, ""},
		{"hang-up in a line", serve(t, answers(`{"final"`)), `error ask "S": the daemon closed the connection`, ""},
		{"nonsense", serve(t, answers("what?\n")), `error ask "S": read control line: invalid character 'w' looking for beginning of value`, ""},
		{"no socket", none, "error no socket at S", "not-running"},
		{"stale socket", gone, "error nobody serves S", "not-running"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			var got []string
			reply, err := client.Do(t.Context(), tt.socket, control.Request{Method: control.MethodEvict}, func(r control.Reply) {
				got = append(got, "progress "+string(rune('0'+r.Progress.Done)))
			})
			if reply != nil {
				got = append(got, "evicted "+strings.Join(reply.Evicted, " "))
			}
			code := ""
			if err != nil {
				got = append(got, "error "+strings.ReplaceAll(err.Error(), tt.socket, "S"))
				var no *control.Error
				if errors.As(err, &no) {
					code = no.Code
				}
			}
			if diff := cmp.Diff(tt.want, strings.Join(got, ", ")); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
			if code != tt.code {
				t.Errorf("code %q, want %q", code, tt.code)
			}
		})
	}
}

// A caller that gives up gets its own reason as the error.
func TestDoCancelled(t *testing.T) {
	ctx, cancel := context.WithCancelCause(t.Context())
	release := make(chan struct{})
	socket := serve(t, func(c net.Conn) {
		if _, err := bufio.NewReader(c).ReadString('\n'); err == nil {
			cancel(errors.New("interrupted"))
			<-release
		}
	})
	_, err := client.Do(ctx, socket, control.Request{Method: control.MethodStatus}, nil)
	close(release)
	if err == nil || !strings.HasSuffix(err.Error(), ": interrupted") {
		t.Errorf("got %v", err)
	}
}

func TestEngine(t *testing.T) {
	asked := make(chan string, 4)
	socket := serve(t, func(c net.Conn) {
		b, err := protocol.ReadFrame(c, protocol.MaxRequest)
		if err != nil {
			return
		}
		request, err := protocol.DecodeRequest(b)
		if err != nil {
			return
		}
		asked <- request.Cmd
		switch request.Cmd {
		case protocol.GetMemory:
			_ = protocol.WriteFrame(c, protocol.Memory(42))
		case protocol.Release:
			_ = protocol.WriteFrame(c, []byte("nonsense"))
		}
	})
	ask := func(cmd string) (*protocol.Reply, error) {
		payload, err := protocol.EncodeRequest(&protocol.Request{Cmd: cmd})
		if err != nil {
			t.Fatal(err)
		}
		reply, conn, err := client.Engine(t.Context(), socket, payload)
		if err == nil {
			err = conn.Close()
		}
		return reply, err
	}
	if r, err := ask(protocol.GetMemory); err != nil || r.MemoryBytes != 42 {
		t.Errorf("got %+v, %v", r, err)
	}
	if r, err := ask(protocol.Release); err == nil {
		t.Errorf("nonsense is %+v", r)
	}
	if _, err := ask(protocol.Watch); err == nil || !strings.HasSuffix(err.Error(), ": the daemon closed the connection") {
		t.Errorf("got %v", err)
	}
	if err := client.Start(t.Context(), socket); err != nil {
		t.Error(err)
	}
	for _, want := range []string{"get_memory", "release", "watch", "get_memory"} {
		if got := <-asked; got != want {
			t.Errorf("asked %s, want %s", got, want)
		}
	}
}

func TestSocket(t *testing.T) {
	for dir, want := range map[string]string{
		"/run/user/7": "/run/user/7/vllm_weight_cache/0.sock",
		"":            "/run/user/1000/vllm_weight_cache/0.sock",
		"relative":    "/run/user/1000/vllm_weight_cache/0.sock",
	} {
		env := func(string) string { return dir }
		if got := client.Socket(env, 1000, "0"); got != want {
			t.Errorf("with %q: %q, want %q", dir, got, want)
		}
	}
}

func TestPeer(t *testing.T) {
	if pid, err := client.Peer(t.Context(), serve(t, func(net.Conn) {})); pid != os.Getpid() || err != nil {
		t.Errorf("got %d, %v", pid, err)
	}
	var no *control.Error
	if _, err := client.Peer(t.Context(), stale(t)); !errors.As(err, &no) || no.Code != control.CodeNotRunning {
		t.Errorf("got %v", err)
	}
}
