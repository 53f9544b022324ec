// SPDX-FileCopyrightText: The wcache authors
// SPDX-License-Identifier: MIT

package daemon

import (
	"encoding/binary"
	"fmt"
	"io"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/wcache/wcache/config"
	"github.com/wcache/wcache/internal/testmain"
	"github.com/wcache/wcache/protocol/pickle"
)

// frame puts the length before a message.
func frame(payload []byte) []byte {
	return append(binary.BigEndian.AppendUint64(nil, uint64(len(payload))), payload...)
}

// pickled is a message of this package's own making.
func pickled(t *testing.T, v any) []byte {
	t.Helper()
	b, err := pickle.Encode(v)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// A message that isn't one is answered with what is wrong with it, while others
// are served.
func TestBadMessages(t *testing.T) {
	t.Parallel()
	i := start(t, nil)
	dict := func(key string, v any) []byte {
		return frame(pickled(t, &pickle.Dict{Items: []pickle.Item{{Key: "cmd", Value: "get_state"}, {Key: key, Value: v}}}))
	}
	tests := []struct {
		name  string
		bytes []byte
		close bool // the client sends no more
		want  string
	}{
		{"announces 2^40 bytes", binary.BigEndian.AppendUint64(nil, 1<<40), false, "error: read frame: message of 1099511627776 bytes is over the limit of 1048576"},
		{"announces 2^64-1 bytes", binary.BigEndian.AppendUint64(nil, 1<<64-1), false, "error: read frame: message of 18446744073709551615 bytes is over the limit of 1048576"},
		{"no bytes", frame(nil), false, "error: …"},
		{"no pickle", frame([]byte("GET / HTTP/1.1\r\n\r\n")), false, "error: …"},
		{"forbidden global", frame([]byte("\x80\x05\x8c\x05posix\x8c\x06system\x93\x8c\x02id\x85R.")), false, "error: decode request: decode pickle: global \"system\" of module \"posix\" is not allowed"},
		{"forbidden global, protocol 0", frame([]byte("cposix\nsystem\n(S'id'\ntR.")), false, "error: …"},
		{"no dict", frame(pickled(t, "get_state")), false, "error: …"},
		{"no command", frame(pickled(t, &pickle.Dict{})), false, "error: …"},
		{"command of another type", frame(pickled(t, &pickle.Dict{Items: []pickle.Item{{Key: "cmd", Value: int64(1)}}})), false, "error: …"},
		{"key of another type", dict("cache_key", "llama"), false, "error: Missing cache_key"},
		{"old key of another type", dict("cache_config", "llama"), false, "error: Missing cache_config"},
		{"no key, 0.33", dict("is_reload", false), false, "error: Missing cache_key"},
		{"unknown command", frame(recorded(t, "0.33.0-unknown-cmd")), false, "error: Unknown command 'frobnicate'"},
		{"cut short in the length", []byte{0, 0, 0}, true, "error: …unexpected EOF…"},
		{"cut short in the message", frame(recorded(t, "0.33.0-get_memory"))[:20], true, "error: …unexpected EOF…"},
		{"garbage after the message", append(frame(recorded(t, "0.33.0-get_memory")), "more"...), false, "ok"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			c := send(t, i.target, tt.bytes)
			if tt.close {
				do(t, c.CloseWrite())
			}
			wantAnswer(t, receive(t, c), tt.want)
			if r := engineAsk(t, i.target, recorded(t, "0.33.0-get_memory")); !r.HasMemory || r.MemoryBytes != 0 {
				t.Errorf("another is not served: %s", answer(r))
			}
		})
	}
	// One that is gone at once is no news.
	do(t, send(t, i.target, nil).Close())
}

// Clients that send nothing, or send byte by byte, don't block others, and the daemon closes
// their connections after request_timeout.
func TestSlowClients(t *testing.T) {
	t.Parallel()
	i := start(t, func(s *setup) { s.Config.RequestTimeout = config.Duration(2 * time.Second) })
	slow := make(chan error)
	message := frame(recorded(t, "0.33.0-get_state-llama-tp1r0"))
	for n := range 128 {
		c := send(t, i.target, nil)
		go func() {
			if n%2 == 1 { // a byte at a time: each is in time, the message never is
				for _, b := range message {
					if _, err := c.Write([]byte{b}); err != nil {
						break
					}
					time.Sleep(50 * time.Millisecond)
				}
			}
			rest, err := io.ReadAll(c)
			if n%2 == 1 && err != nil || err == nil && strings.Contains(string(rest), "it has not come within 2s") {
				err = nil // the answer, unless the last byte crossed it
			} else if err == nil {
				err = fmt.Errorf("got %q", rest)
			}
			slow <- err
		}()
	}
	wantAnswer(t, engineAsk(t, i.target, recorded(t, "0.33.0-get_state-llama-tp1r0")), "ok")
	for range 128 {
		if err := <-slow; err != nil {
			t.Errorf("a silent client: %v", err)
		}
	}
	testmain.Eventually(t, "no connection is left", func() bool { return i.crowd.open.Load() == 0 })
}

// The same for control clients.
func TestBadControl(t *testing.T) {
	t.Parallel()
	i := start(t, func(s *setup) { s.Config.RequestTimeout = config.Duration(time.Hour) })
	hasty := start(t, func(s *setup) { s.Config.RequestTimeout = config.Duration(100 * time.Millisecond) })
	tests := []struct {
		i          *instance
		send, want string
	}{
		{i, "{\"method\":\"dance\"}\n", `{"final":true,"error":{"code":"usage","message":"unknown request \"dance\"","hint":"wcache version shows whether client and daemon are of one version"}}` + "\n"},
		{i, "{\"method\":\"warm\"}\n", `{"final":true,"error":{"code":"usage","message":"unknown request \"warm\"","hint":"wcache version shows whether client and daemon are of one version"}}` + "\n"},
		{i, "nonsense\n", `{"final":true,"error":{"code":"usage","message":"read control line: invalid character 'o' in literal null (expecting 'u')"}}` + "\n"},
		{hasty, "{", `{"final":true,"error":{"code":"usage","message":"read request: it has not come within 100ms"}}` + "\n"},
		{hasty, "", `{"final":true,"error":{"code":"usage","message":"read request: it has not come within 100ms"}}` + "\n"},
	}
	for _, tt := range tests {
		c := send(t, tt.i.control, []byte(tt.send))
		got, err := io.ReadAll(c)
		if err != nil || string(got) != tt.want {
			t.Errorf("%q: got %q, %v\nwant %q", tt.send, got, err, tt.want)
		}
	}
	c := send(t, i.control, []byte(`{"method":"status"}`)) // as by echo -n … | nc -N
	do(t, c.CloseWrite())
	got, err := io.ReadAll(c)
	if want := `{"final":true,"error":{"code":"usage","message":"read control line: unexpected EOF"}}` + "\n"; err != nil || string(got) != want {
		t.Errorf("without the line's end: got %q, %v", got, err)
	}
	i.status(t)
}

// A name, a path and a hash that lead nowhere are final, and say where was looked.
func TestUnknownModels(t *testing.T) {
	t.Parallel()
	home := private(t)
	llama, err := filepath.Abs(filepath.Join(checkpoints, "llama"))
	if err != nil {
		t.Fatal(err)
	}
	i := start(t, func(s *setup) {
		s.Env = func(name string) string { return map[string]string{"HF_HOME": home}[name] }
	})
	k := key(t, "llama-tp1r0")
	tests := []struct{ name, checkpoint, want string }{
		{"model id", "meta-llama/Llama-3.1-8B", "mismatch: checkpoint; …meta-llama/Llama-3.1-8B…" + home + "…"},
		{"relative path", "./llama", "mismatch: checkpoint; …./llama…"},
		{"path to nothing", "/none/llama/", "mismatch: checkpoint; …/none/llama…"},
		{"hash", strings.Repeat("0", 32), "mismatch: checkpoint; no model directory with the checkpoint hash 00000000000000000000000000000000 is known…(add its folder to roots in wcache.toml, or run: wcache warm DIR; after a change of wcache.toml: systemctl --user reload wcache@host.service, or SIGHUP)"},
		{"empty", "", "mismatch: checkpoint; …"},
		{"path", llama, "ok"},
		{"path with a slash", llama + "/", "ok"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			wantAnswer(t, engineAsk(t, i.target, getState(t, set(t, k, "checkpoint", tt.checkpoint))), tt.want)
		})
	}
}
