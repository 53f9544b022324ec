// SPDX-FileCopyrightText: The wcache authors
// SPDX-License-Identifier: MIT

package index

import (
	"context"
	"crypto/md5"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/wcache/wcache/internal/testmain"
)

func TestMain(m *testing.M) { testmain.Run(m) }

const checkpoints = "../../testdata/checkpoints"

// The hashes of golden checkpoints, from their layouts.
const (
	llamaHash   = "d0b480a03b1c2a44061558d5eab5335f" // llama and llama_consolidated
	qwen3Hash   = "bc21eefee30a52e78781b27a0b65763f"
	mistralHash = "3eb77e322e2c93942ae9289fd0323cc0"
)

// start makes an index that ends with the test.
func start(t testing.TB, o Options, roots ...string) *Index {
	t.Helper()
	if o.Gather == 0 {
		o.Gather = time.Millisecond
	}
	x := New(o)
	t.Cleanup(x.Close)
	x.SetRoots(roots)
	return x
}

func lookup(t testing.TB, x *Index, hash string) Answer {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	a, err := x.Lookup(ctx, hash)
	if err != nil {
		t.Fatal(err)
	}
	if ctx.Err() != nil {
		t.Fatalf("Lookup took a minute:\n%s", text(a, ""))
	}
	return a
}

// text describes an answer; dir is left out of paths.
func text(a Answer, dir string) string {
	var b strings.Builder
	for _, d := range a.Dirs {
		fmt.Fprintf(&b, "dir %s\n", d.Path)
	}
	for _, u := range a.Unsure {
		fmt.Fprintf(&b, "unsure %s: %v\n", u.Path, u.Err)
	}
	for _, r := range a.Roots {
		fmt.Fprintf(&b, "root %s %s: %s\n", r.Path, r.State, r.Reason)
	}
	if dir == "" {
		return b.String()
	}
	return strings.ReplaceAll(b.String(), dir, "DIR")
}

func same(t testing.TB, what, got string, want ...string) {
	t.Helper()
	w := strings.Join(want, "\n")
	if w != "" {
		w += "\n"
	}
	if diff := cmp.Diff(w, got); diff != "" {
		t.Errorf("%s (-want +got):\n%s", what, diff)
	}
}

// shard is a safetensors file of one tensor. Its header depends on the tensor's name and
// the length of the data.
func shard(name, data string) []byte {
	header := fmt.Sprintf(`{%q:{"dtype":"U8","shape":[%d],"data_offsets":[0,%d]}}`, name, len(data), len(data))
	b := binary.LittleEndian.AppendUint64(nil, uint64(len(header)))
	return append(append(b, header...), data...)
}

// hashOf is the checkpoint hash of files whose tensors have one byte of data: tensor
// names by base name.
func hashOf(files map[string]string) string {
	sum := md5.New()
	var names []string
	for base := range files {
		names = append(names, base)
	}
	slices.Sort(names)
	for _, base := range names {
		b := shard(files[base], "1")
		n := binary.LittleEndian.Uint64(b)
		sum.Write([]byte(base))
		sum.Write(b[:8+n])
	}
	return hex.EncodeToString(sum.Sum(nil))
}

func write(t testing.TB, path string, b []byte) {
	t.Helper()
	must(t, os.MkdirAll(filepath.Dir(path), 0o700))
	must(t, os.WriteFile(path, b, 0o600))
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
