// SPDX-FileCopyrightText: The wcache authors
// SPDX-License-Identifier: MIT

package systemdtest

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/wcache/wcache/client"
	"github.com/wcache/wcache/control"
	"github.com/wcache/wcache/internal/testmain"
	"github.com/wcache/wcache/protocol"
)

// stage is the folder that run.sh has filled, "" outside of the test bed.
func stage() string { return os.Getenv("WCACHE_BED") }

func TestMain(m *testing.M) {
	if request := os.Getenv(victimVariable); request != "" {
		if err := playVictim(request); err != nil {
			fmt.Fprintln(os.Stderr, "engine:", err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	if stage() == "" {
		fmt.Println("systemdtest: these tests run in a user manager of their own: make test-systemd")
		os.Exit(0)
	}
	os.Exit(m.Run())
}

const (
	unit    = "wcache@host.service"
	sockets = "wcache@host.socket"
)

// systemctl runs systemctl --user and returns its output.
func systemctl(t *testing.T, args ...string) string {
	t.Helper()
	out, err := exec.Command("systemctl", append([]string{"--user"}, args...)...).CombinedOutput()
	if err != nil {
		t.Fatalf("systemctl %s: %v\n%s", strings.Join(args, " "), err, out)
	}
	return strings.TrimSpace(string(out))
}

// property returns a property of the service.
func property(t *testing.T, name string) string {
	t.Helper()
	return systemctl(t, "show", "-P", name, unit)
}

func mainPID(t *testing.T) int {
	t.Helper()
	pid, err := strconv.Atoi(property(t, "MainPID"))
	if err != nil {
		t.Fatal(err)
	}
	return pid
}

func socket() string { return client.Socket(os.Getenv, os.Getuid(), "host") }

func draftSocket() string { return strings.TrimSuffix(socket(), ".sock") + "_draft.sock" }

// recorded returns the payload of a recorded message, without its frame.
func recorded(t *testing.T, name string) []byte {
	t.Helper()
	b, err := os.ReadFile(filepath.Join(stage(), "testdata/wire", name+".bin"))
	if err != nil {
		t.Fatal(err)
	}
	return b[8:]
}

const llama = "0.33.0-get_state-llama-tp1r0"

// ask sends one payload, returns the reply and closes the connection.
func ask(t *testing.T, path string, payload []byte) *protocol.Reply {
	t.Helper()
	reply, conn, err := client.Engine(t.Context(), path, payload)
	if err != nil {
		t.Fatal(err)
	}
	_ = conn.Close()
	return reply
}

// watch opens a watch connection, as an engine holds one.
func watch(t *testing.T) net.Conn {
	t.Helper()
	reply, conn, err := client.Engine(t.Context(), socket(), recorded(t, "0.33.0-watch"))
	if err != nil || reply.Status != protocol.StatusOK {
		t.Fatalf("watch: %v, %v", reply, err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	return conn
}

// stillOpen reports whether the other end is open.
func stillOpen(t *testing.T, conn net.Conn) bool {
	t.Helper()
	raw, err := conn.(*net.UnixConn).SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	var got error
	if err := raw.Read(func(n uintptr) bool {
		_, _, got = unix.Recvfrom(int(n), make([]byte, 1), unix.MSG_PEEK|unix.MSG_DONTWAIT)
		return true
	}); err != nil {
		t.Fatal(err)
	}
	return errors.Is(got, unix.EAGAIN)
}

// status asks the daemon, which must run.
func status(t *testing.T) *control.Status {
	t.Helper()
	var reply *control.Reply
	var err error
	if !testmain.Within(func() bool { // a daemon that starts makes its control socket last
		reply, err = client.Do(t.Context(), control.Path(socket()), control.Request{Method: control.MethodStatus}, nil)
		return err == nil
	}) {
		t.Fatal(err)
	}
	return reply.Status
}

// journal waits until the service's journal has a text, and returns its last lines.
func journal(t *testing.T, text string) string {
	t.Helper()
	var out []byte
	testmain.Eventually(t, "the journal says "+text, func() bool {
		var err error
		out, err = exec.Command("journalctl", "--user", "-u", unit, "-o", "cat", "-n", "40").Output()
		return err == nil && strings.Contains(string(out), text)
	})
	return string(out)
}

// configure writes the user's configuration.
func configure(t *testing.T, more string) {
	t.Helper()
	dir := filepath.Join(os.Getenv("HOME"), ".config/wcache")
	if err := os.MkdirAll(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	text := fmt.Sprintf("roots = [%q]\n%s\n", filepath.Join(stage(), "testdata/checkpoints/llama"), more)
	if err := os.WriteFile(filepath.Join(dir, "wcache.toml"), []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

// begin enables the socket, after it has stopped the service and reset its counts.
func begin(t *testing.T, config string) {
	t.Helper()
	configure(t, config)
	systemctl(t, "stop", sockets, unit)
	systemctl(t, "reset-failed")
	systemctl(t, "enable", "--now", sockets)
	t.Cleanup(func() { _ = exec.Command("systemctl", "--user", "disable", "--now", sockets).Run() })
}

// dropIn adds a drop-in to the service for the rest of a test.
func dropIn(t *testing.T, text string) {
	t.Helper()
	dir := filepath.Join(os.Getenv("HOME"), ".config/systemd/user", unit+".d")
	if err := os.MkdirAll(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "test.conf"), []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	systemctl(t, "daemon-reload")
	t.Cleanup(func() {
		_ = os.RemoveAll(dir)
		_ = exec.Command("systemctl", "--user", "daemon-reload").Run()
	})
}

func kill(t *testing.T, pid int, sig syscall.Signal) {
	t.Helper()
	if err := syscall.Kill(pid, sig); err != nil {
		t.Fatalf("kill %d: %v", pid, err)
	}
}

// wcache runs the command and returns its output and exit status.
func wcache(t *testing.T, args ...string) (string, int) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), testmain.Patience)
	defer cancel()
	c := exec.CommandContext(ctx, "/usr/bin/wcache", append([]string{"--gpu", "host"}, args...)...)
	out, err := c.CombinedOutput()
	if c.ProcessState == nil {
		t.Fatal(err)
	}
	return string(out), c.ProcessState.ExitCode()
}

// sparse makes a llama checkpoint of about the given bytes. It is a hole on disk, so
// reads get zeros at the speed of memory.
func sparse(t *testing.T, dir string, bytes int64) {
	t.Helper()
	const hidden, layerBytes = 2048, int64(2 * (4*2048*2048 + 3*2048*8192 + 2*2048))
	layers := max(bytes/layerBytes, 1)
	config := map[string]any{
		"architectures": []string{"LlamaForCausalLM"}, "model_type": "llama", "dtype": "bfloat16", "hidden_size": hidden,
		"intermediate_size": 8192, "num_hidden_layers": layers, "num_attention_heads": 16, "num_key_value_heads": 16,
		"head_dim": 128, "vocab_size": 64, "max_position_embeddings": 64, "tie_word_embeddings": false, "rms_norm_eps": 1e-5,
		"rope_parameters": map[string]any{"rope_theta": 10000.0, "rope_type": "default"},
	}
	header := map[string]any{}
	var at int64
	add := func(name string, shape ...int64) {
		n := int64(2)
		for _, d := range shape {
			n *= d
		}
		header[name] = map[string]any{"dtype": "BF16", "shape": shape, "data_offsets": []int64{at, at + n}}
		at += n
	}
	add("model.embed_tokens.weight", 64, hidden)
	for i := range layers {
		p := fmt.Sprintf("model.layers.%d.", i)
		for _, n := range []string{"q", "k", "v", "o"} {
			add(p+"self_attn."+n+"_proj.weight", hidden, hidden)
		}
		add(p+"mlp.gate_proj.weight", 8192, hidden)
		add(p+"mlp.up_proj.weight", 8192, hidden)
		add(p+"mlp.down_proj.weight", hidden, 8192)
		add(p+"input_layernorm.weight", hidden)
		add(p+"post_attention_layernorm.weight", hidden)
	}
	add("model.norm.weight", hidden)
	add("lm_head.weight", 64, hidden)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	text, err := json.Marshal(config)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "config.json"), text, 0o600); err != nil {
		t.Fatal(err)
	}
	if text, err = json.Marshal(header); err != nil {
		t.Fatal(err)
	}
	f, err := os.Create(filepath.Join(dir, "model.safetensors"))
	if err != nil {
		t.Fatal(err)
	}
	length := []byte{byte(len(text)), byte(len(text) >> 8), byte(len(text) >> 16), 0, 0, 0, 0, 0}
	if _, err := f.Write(append(length, text...)); err != nil {
		t.Fatal(err)
	}
	if err := f.Truncate(int64(8+len(text)) + at); err != nil {
		t.Fatal(err)
	}
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
}
