// SPDX-FileCopyrightText: The wcache authors
// SPDX-License-Identifier: MIT

package daemon

import (
	"bytes"
	"encoding/binary"
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/wcache/wcache/protocol"
)

var update = flag.Bool("update", false, "write the golden files")

// What an engine of each release is told, to the byte: those of vLLM 0.30 to 0.33
// have asked exactly this. What is handed out is also read by the real client, in
// enginetest.
func TestRecordedRequests(t *testing.T) {
	t.Parallel()
	root, err := filepath.Abs(checkpoints)
	if err != nil {
		t.Fatal(err)
	}
	i := start(t, func(s *setup) {
		s.Config.Roots = nil
		for _, name := range []string{"llama", "llama_f32", "llama_tied", "qwen2", "rope_yarn", "fp8_block", "fp8_static", "qwen3moe"} {
			s.Config.Roots = append(s.Config.Roots, filepath.Join(root, name))
		}
	})
	files, err := filepath.Glob(wire + "/*.bin")
	if err != nil || len(files) == 0 {
		t.Fatalf("no recordings: %v", err)
	}
	var words strings.Builder
	for _, file := range files {
		name := strings.TrimSuffix(filepath.Base(file), ".bin")
		if strings.Contains(name, "-reply-") {
			continue
		}
		c := send(t, i.target, frame(recorded(t, name)))
		reply, err := protocol.ReadFrame(c, protocol.MaxReply)
		if err != nil {
			t.Fatal(err)
		}
		do(t, c.Close())
		decoded, err := protocol.DecodeReply(reply)
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		fmt.Fprintf(&words, "%s\n  %s%s\n", name, strings.ReplaceAll(answer(decoded), root, "ROOT"), extent(decoded))
		reply = bytes.ReplaceAll(anonymous(t, reply), []byte(root), []byte("ROOT"))
		compareGolden(t, name+".reply", reply)
	}
	compareGolden(t, "replies.txt", []byte(words.String()))
}

// extent says how much a reply hands out.
func extent(r *protocol.Reply) string {
	switch {
	case r.HasMemory:
		return fmt.Sprintf(", %d bytes", r.MemoryBytes)
	case len(r.Entries) == 0:
		return ""
	}
	return fmt.Sprintf(", %d tensors, %d aliases, %d attributes", len(r.Entries), len(r.Aliases), len(r.Attrs))
}

var mappedPath = regexp.MustCompile(`/proc/[0-9]+/fd/[0-9]+`)

// anonymous replaces this process's number, and those of its descriptors, in a
// reply, and keeps the lengths around them right.
func anonymous(t *testing.T, reply []byte) []byte {
	const path = "/proc/PID/fd/N"
	out := bytes.Clone(reply)
	for {
		at := mappedPath.FindIndex(out)
		if at == nil {
			break
		}
		if out[at[0]-2] != 0x8c { // SHORT_BINUNICODE
			t.Fatalf("a path follows %x", out[at[0]-2])
		}
		out[at[0]-1] = byte(len(path))
		out = slices.Replace(out, at[0], at[1], []byte(path)...)
	}
	if len(out) != len(reply) {
		if !bytes.HasPrefix(out, []byte("\x80\x05\x95")) { // PROTO, FRAME
			t.Fatalf("a reply begins with %x", out[:3])
		}
		n := binary.LittleEndian.Uint64(out[3:])
		binary.LittleEndian.PutUint64(out[3:], n+uint64(len(out)-len(reply)))
	}
	return out
}

// compareGolden compares with a file in testdata, or writes it.
func compareGolden(t *testing.T, name string, got []byte) {
	t.Helper()
	path := filepath.Join("testdata", name)
	if *update {
		do(t, os.MkdirAll("testdata", 0o755), os.WriteFile(path, got, 0o644))
		return
	}
	want, err := os.ReadFile(path)
	if errors.Is(err, os.ErrNotExist) {
		t.Errorf("%s is not there: go test -update", path)
		return
	}
	if err != nil {
		t.Fatal(err)
	}
	if bytes.Equal(got, want) {
		return
	}
	if strings.HasSuffix(name, ".txt") {
		t.Errorf("%s -want +got:\n%s", name, cmp.Diff(string(want), string(got)))
		return
	}
	at := 0
	for at < min(len(got), len(want)) && got[at] == want[at] {
		at++
	}
	t.Errorf("%s, from byte %d:\ngot  %.100q\nwant %.100q", name, at, got[at:], want[at:])
}
