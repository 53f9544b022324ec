// SPDX-FileCopyrightText: The wcache authors
// SPDX-License-Identifier: MIT

package daemon

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/wcache/wcache/client"
	"github.com/wcache/wcache/config"
	"github.com/wcache/wcache/control"
	"github.com/wcache/wcache/fingerprint"
	"github.com/wcache/wcache/internal/fd"
	"github.com/wcache/wcache/internal/testmain"
	"github.com/wcache/wcache/protocol"
	"github.com/wcache/wcache/weights"
)

// wide makes a model below root whose two largest tensors have rows times 128 bytes
// each, and gives its directory and its key.
func wide(t *testing.T, root string, rows int64) (string, fingerprint.Key) {
	t.Helper()
	dir := model(t, root, "llama_f16", fmt.Sprint("wide-", rows))
	edit := func(name string, change func(map[string]any)) []byte {
		var v map[string]any
		b, err := os.ReadFile(filepath.Join(dir, name))
		do(t, err, json.Unmarshal(b, &v))
		change(v)
		b, err = json.Marshal(v)
		do(t, err)
		return b
	}
	do(t, os.WriteFile(filepath.Join(dir, "config.json"), edit("config.json", func(v map[string]any) { v["vocab_size"] = rows }), 0o600))
	path := filepath.Join(dir, "model.safetensors")
	old, err := os.ReadFile(path)
	do(t, err)
	data := old[8+binary.LittleEndian.Uint64(old):]
	var header map[string]map[string]any
	do(t, json.Unmarshal(old[8:len(old)-len(data)], &header))
	delete(header, "__metadata__")
	var out []byte
	for _, name := range slices.Sorted(maps.Keys(header)) {
		x := header[name]
		at := x["data_offsets"].([]any)
		part := data[int(at[0].(float64)):int(at[1].(float64))]
		if name == "lm_head.weight" || name == "model.embed_tokens.weight" {
			x["shape"].([]any)[0] = rows
			part = bytes.Repeat(part, int(rows*128)/len(part)+1)[:rows*128]
		}
		x["data_offsets"] = []int{len(out), len(out) + len(part)}
		out = append(out, part...)
	}
	text, err := json.Marshal(header)
	do(t, err)
	file := append(binary.LittleEndian.AppendUint64(nil, uint64(len(text))), text...)
	do(t, os.WriteFile(path, append(file, out...), 0o600))
	d, err := weights.Open(dir)
	do(t, err)
	k, err := fingerprint.Compute(d, fingerprint.Options{TPSize: 1, PPSize: 1, Release: "0.33.0"})
	do(t, err)
	return dir, k
}

// Unread replies by value take no memory of the daemon, at any size of the model, and are complete
// when they are read (case C4). The test runs alone, since it measures the whole process's
// allocations.
func TestUnreadByValue(t *testing.T) {
	dir, k := wide(t, private(t), 60_000) // 15 MB
	i := start(t, func(s *setup) {
		s.Config.Handles = config.HandlesValue
		s.Config.Roots = []string{dir}
	})
	request := frame(getState(t, k))
	want := received(t, send(t, i.target, request))
	const engines = 20
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	var unread []*net.UnixConn
	for range engines {
		unread = append(unread, send(t, i.target, request))
	}
	for _, c := range unread {
		if n := length(t, c); n != len(want) || n < 15_000_000 { // each is being written
			t.Fatalf("a reply of %d bytes is no test", n)
		}
	}
	runtime.ReadMemStats(&after)
	if n := after.TotalAlloc - before.TotalAlloc; n > 10_000_000 {
		t.Errorf("%d bytes were allocated for %d replies", n, engines)
	}
	got := make([]byte, len(want))
	for _, c := range unread {
		_, err := io.ReadFull(c, got)
		do(t, err)
		if !bytes.Equal(got, want) {
			t.Fatal("another reply than the first")
		}
	}
}

// length reads how long the reply on a connection is.
func length(t *testing.T, c *net.UnixConn) int {
	t.Helper()
	_ = c.SetReadDeadline(time.Now().Add(20 * time.Second))
	head := make([]byte, 8)
	_, err := io.ReadFull(c, head)
	do(t, err)
	return int(binary.BigEndian.Uint64(head))
}

// received is the reply on a connection, undecoded, which has to be an ok.
func received(t *testing.T, c *net.UnixConn) []byte {
	t.Helper()
	b := make([]byte, length(t, c))
	_, err := io.ReadFull(c, b)
	do(t, err)
	r, err := protocol.DecodeReply(b)
	do(t, err)
	wantAnswer(t, r, "ok")
	return b
}

// A segment stays until a slow engine has read it, even if the entry was evicted; then it is freed,
// and the release of an engine that releases at once frees it.
func TestEvictedByValue(t *testing.T) {
	t.Parallel()
	dir, k := wide(t, private(t), 30_000)
	i := start(t, func(s *setup) {
		s.Config.Handles = config.HandlesValue
		s.Config.Roots = append(s.Config.Roots, dir)
	})
	request := frame(getState(t, k))
	want := received(t, send(t, i.target, request))
	c := send(t, i.target, request)
	got := make([]byte, length(t, c))
	_, err := client.Do(t.Context(), i.control, control.Request{Method: control.MethodEvict, Evict: &control.Evict{Key: k.ID(), Force: true}}, nil)
	do(t, err)
	wantAnswer(t, engineAsk(t, i.target, getState(t, key(t, "llama-tp1r0"))), "ok") // whose descriptors would take the numbers
	_, err = io.ReadFull(c, got)
	do(t, err)
	if !bytes.Equal(got, want) {
		t.Fatal("another reply than before the eviction")
	}
	wantAnswer(t, engineAsk(t, i.target, recorded(t, "0.33.0-release")), "ok")
	testmain.Eventually(t, "nothing is held", func() bool { return len(i.status(t).Entries) == 0 })
}

// The server's end waits for no engine that has all time and reads nothing.
func TestStopUnread(t *testing.T) {
	t.Parallel()
	dir, k := wide(t, private(t), 30_000)
	i := start(t, func(s *setup) {
		s.Config.Handles = config.HandlesValue
		s.Config.Roots = []string{dir}
		s.Config.RequestTimeout = config.Duration(time.Hour)
	})
	c := send(t, i.target, frame(getState(t, k)))
	length(t, c)
	do(t, i.stop())
	if n, err := io.Copy(io.Discard, c); err != nil || n > 7_000_000 {
		t.Errorf("%d bytes came, %v", n, err)
	}
}

// All replies together take a limited amount of memory; a reply that exceeds it waits, and then
// becomes a passing error.
func TestReplyMemory(t *testing.T) {
	t.Parallel()
	i := start(t, func(s *setup) { s.Config.RequestTimeout = config.Duration(500 * time.Millisecond) })
	request := getState(t, key(t, "llama-tp1r0"))
	wantAnswer(t, engineAsk(t, i.target, request), "ok")
	all, err := i.replies.room.Take(t.Context(), i.replies.room.Total())
	do(t, err)
	wantAnswer(t, engineAsk(t, i.target, request), "error: make reply: replies that other engines don't read use all memory for replies")
	all.Give()
	wantAnswer(t, engineAsk(t, i.target, request), "ok")
}

// A model that no reply can hold is a lasting no.
func TestTooLong(t *testing.T) {
	t.Parallel()
	i := start(t, nil)
	err := fmt.Errorf("encode reply: %w", &protocol.FrameSizeError{Bytes: 1<<34 + 1, Limit: protocol.MaxReply})
	r, err := protocol.DecodeReply(i.refuse(tooLong(err)))
	do(t, err)
	wantAnswer(t, r, `mismatch: checkpoint; a reply by value has at most 17179869184 bytes, and this one has 17179869185 (set handles = "mapped" in wcache.toml; after a change of wcache.toml: systemctl --user reload wcache@host.service, or SIGHUP)`)
}

// pair is a connected pair of sockets.
func pair(t *testing.T) (ours, theirs *net.UnixConn) {
	t.Helper()
	n, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	do(t, err)
	for i, to := range []**net.UnixConn{&ours, &theirs} {
		f := os.NewFile(uintptr(n[i]), "pair")
		c, err := net.FileConn(f)
		do(t, err, f.Close())
		*to = c.(*net.UnixConn)
		t.Cleanup(func() { _ = c.Close() })
	}
	return ours, theirs
}

// A segment goes out as it lies there, within the connection's time, and no further
// than it is long.
func TestOutlet(t *testing.T) {
	t.Parallel()
	data := make([]byte, 3<<20+17)
	for i := range data {
		data[i] = byte(i * i >> 8)
	}
	f, err := fd.Sealed("segment", data)
	do(t, err)
	defer func() { do(t, f.Close()) }()
	d := descriptor(f.Int())
	copyPart := func(c *net.UnixConn, off, n int64) (int64, error) {
		return io.Copy(outlet{c}, io.NewSectionReader(d, off, n))
	}
	ours, theirs := pair(t)
	done := make(chan error, 1)
	go func() {
		_, err := copyPart(ours, 5, int64(len(data)-5))
		if err == nil {
			_, err = io.Copy(outlet{ours}, strings.NewReader("the end")) // of no segment
		}
		done <- errors.Join(err, ours.CloseWrite())
	}()
	got, err := io.ReadAll(theirs)
	do(t, err, <-done)
	if want := append(slices.Clone(data[5:]), "the end"...); !bytes.Equal(got, want) {
		t.Errorf("%d other bytes came, want %d", len(got), len(want))
	}
	for _, tt := range []struct {
		name    string
		prepare func(ours, theirs *net.UnixConn)
		off     int64
		want    error
	}{
		{"nobody reads", func(ours, _ *net.UnixConn) { do(t, ours.SetWriteDeadline(time.Now().Add(50*time.Millisecond))) }, 0, os.ErrDeadlineExceeded},
		{"the reader is gone", func(_, theirs *net.UnixConn) { do(t, theirs.Close()) }, 0, unix.EPIPE},
		{"the segment ends early", func(*net.UnixConn, *net.UnixConn) {}, int64(len(data) - 10), io.ErrUnexpectedEOF},
	} {
		ours, theirs := pair(t)
		tt.prepare(ours, theirs)
		if n, err := copyPart(ours, tt.off, 1<<20); !errors.Is(err, tt.want) || n == 1<<20 {
			t.Errorf("%s: %d bytes and %v, want %v", tt.name, n, err, tt.want)
		}
	}
}
