// SPDX-FileCopyrightText: The wcache authors
// SPDX-License-Identifier: MIT

package protocol

import (
	"bytes"
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func FuzzReadFrame(f *testing.F) {
	for _, m := range recorded(f, "engine->daemon") {
		f.Add(m.frame, int64(MaxRequest))
	}
	f.Add([]byte("\x00\x00\x00\x00\x00\x00\x00\x04abcd"), int64(3))
	f.Fuzz(func(t *testing.T, in []byte, limit int64) {
		limit = max(limit, 0)
		b, err := ReadFrame(bytes.NewReader(in), limit)
		if err != nil {
			if b != nil {
				t.Fatalf("%d bytes and error %v", len(b), err)
			}
			return
		}
		if int64(len(b)) > limit {
			t.Fatalf("%d bytes are over the limit of %d", len(b), limit)
		}
		var frame bytes.Buffer
		if err := WriteFrame(&frame, b); err != nil || !bytes.HasPrefix(in, frame.Bytes()) {
			t.Fatalf("frame changed on its way: %v", err)
		}
	})
}

func FuzzDecodeRequest(f *testing.F) {
	for _, m := range recorded(f, "engine->daemon") {
		f.Add(m.pickle())
	}
	f.Fuzz(func(t *testing.T, in []byte) {
		req, err := DecodeRequest(in)
		if err != nil {
			if req != nil {
				t.Fatalf("request %+v and error %v", req, err)
			}
			return
		}
		if !req.HasKey {
			return
		}
		b, err := EncodeRequest(req)
		if err != nil {
			t.Fatalf("encode what was decoded: %v", err)
		}
		if len(b) > MaxRequest {
			return // values that were shared are written out
		}
		again, err := DecodeRequest(b)
		if err != nil {
			t.Fatalf("decode what was encoded: %v", err)
		}
		if again.Key.ID() != req.Key.ID() || again.Module != req.Module || again.KeyField != req.KeyField {
			t.Fatalf("request changed: %s", cmp.Diff(req, again, equalKeys))
		}
	})
}

func FuzzDecodeReply(f *testing.F) {
	for _, m := range recorded(f, "daemon->engine") {
		f.Add(m.pickle())
	}
	golden, err := filepath.Glob("../torch/testdata/*.bin")
	if err != nil || len(golden) == 0 {
		f.Fatalf("golden replies: %d, %v", len(golden), err)
	}
	for _, path := range golden {
		b, err := os.ReadFile(path)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(b[8:])
	}
	f.Fuzz(func(t *testing.T, in []byte) {
		r, err := DecodeReply(in)
		if err != nil && r != nil || err == nil && r == nil {
			t.Fatalf("reply %v and error %v", r, err)
		}
	})
}
