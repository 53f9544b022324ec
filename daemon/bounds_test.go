// SPDX-FileCopyrightText: The wcache authors
// SPDX-License-Identifier: MIT

package daemon

import (
	"encoding/binary"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/wcache/wcache/weights"
)

// A directory whose headers no model is like is a lasting no, for an engine that names
// it, and is not read (case W6).
func TestHeadersOverLimit(t *testing.T) {
	t.Parallel()
	root := private(t)
	dir := model(t, root, "llama", "m")
	for i := range 2 {
		f, err := os.Create(filepath.Join(dir, fmt.Sprintf("extra-%d.safetensors", i)))
		do(t, err)
		_, err = f.Write(binary.LittleEndian.AppendUint64(nil, 90_000_000))
		do(t, err, f.Truncate(90_000_008), f.Close())
	}
	do(t, os.Remove(filepath.Join(dir, weights.ShardIndexName)))
	i := start(t, func(s *setup) { s.Config.Roots = nil })
	r := engineAsk(t, i.target, getState(t, set(t, key(t, "llama-tp1r0"), "checkpoint", dir)))
	wantAnswer(t, r, "mismatch: checkpoint; …bytes of headers in all, of which a model has 134217728 at most; see that its files are what they should be, and move those away that are not…")
}

// Many loads give back what they have read of their directories.
func TestHeadersAreGivenBack(t *testing.T) {
	t.Parallel()
	i := start(t, func(s *setup) { s.Headers = 200_000 }) // enough for one and a half
	for _, name := range []string{"llama-tp1r0", "llama-tp2r0", "llama-tp2r1", "llama_tied-tp1r0", "qwen2-tp1r0"} {
		wantAnswer(t, engineAsk(t, i.target, getState(t, key(t, name))), "ok")
	}
	if got, want := i.hint(&weights.Busy{}), "ask again when those are loaded"; got != want {
		t.Errorf("hint %q, want %q", got, want)
	}
}
