// SPDX-FileCopyrightText: The wcache authors
// SPDX-License-Identifier: MIT

package daemon

import (
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/wcache/wcache/config"
	"github.com/wcache/wcache/fingerprint"
	"github.com/wcache/wcache/protocol"
	"github.com/wcache/wcache/tensor"
)

// What an engine maps is bit for bit what vLLM's own daemon exports.
func TestHandedOut(t *testing.T) {
	t.Parallel()
	for _, handles := range []string{config.HandlesMapped, config.HandlesValue} {
		i := start(t, func(s *setup) { s.Config.Handles = handles })
		for _, name := range []string{"llama-tp2r1", "llama_tied-tp1r0", "qwen2-tp1r0"} {
			r := engineAsk(t, i.target, getState(t, key(t, name)))
			if answer(r) != "ok" {
				t.Fatalf("%s: %s", name, answer(r))
			}
			got, want := handedOut(t, r), exported(t, name)
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("%s by %s: -want +got:\n%s", name, handles, diff)
			}
		}
	}
}

// A socket is for one role.
func TestRoles(t *testing.T) {
	t.Parallel()
	i := start(t, nil)
	k := key(t, "llama-tp1r0")
	draft := set(t, k, "is_draft", true)
	wantAnswer(t, engineAsk(t, i.target, getState(t, draft)), "mismatch: is_draft")
	wantAnswer(t, engineAsk(t, i.draft, getState(t, k)), "mismatch: is_draft")
	wantAnswer(t, engineAsk(t, i.draft, getState(t, without(t, k, "is_draft"))), "mismatch: is_draft")
	wantAnswer(t, engineAsk(t, i.draft, getState(t, draft)), "mismatch: is_draft; …draft…")
	wantAnswer(t, engineAsk(t, i.target, getState(t, k)), "ok")
	// What is asked without a key is about the socket's role.
	for socket, want := range map[string]bool{i.target: true, i.draft: false} {
		if r := engineAsk(t, socket, recorded(t, "0.33.0-get_memory")); r.MemoryBytes > 0 != want {
			t.Errorf("%s: get_memory says %d", socket, r.MemoryBytes)
		}
	}
}

// Ranks of one model are told apart by the field that differs, and by no other.
func TestPinnedRanks(t *testing.T) {
	t.Parallel()
	pinned := func(s *setup) {
		s.Config.Policy = config.PolicyPinned
		s.Config.Pins = s.Config.Roots[:1] // llama
	}
	i := start(t, pinned)
	base := key(t, "llama-tp2r1")
	wantAnswer(t, engineAsk(t, i.target, getState(t, base)), "ok")
	for field, value := range map[string]any{
		"tp_rank": int64(0), "dp_rank": int64(1), "dtype": "torch.float16", "revision": "main", "moe_backend": "triton",
	} {
		wantAnswer(t, engineAsk(t, i.target, getState(t, set(t, base, field, value))), "mismatch: "+field)
	}
	wantAnswer(t, engineAsk(t, i.target, getState(t, set(t, base, "pp_size", int64(2)))), "mismatch: pp_size")
	wantAnswer(t, engineAsk(t, i.target, getState(t, set(t, set(t, base, "tp_rank", int64(0)), "dp_rank", int64(1)))), "mismatch: tp_rank; dp_rank")
	wantAnswer(t, engineAsk(t, i.target, getState(t, base)), "ok")

	wantAnswer(t, engineAsk(t, i.target, getState(t, key(t, "qwen2-tp1r0"))), "mismatch: checkpoint; model_arch; tp_size; tp_rank")

	pp := start(t, pinned)
	wantAnswer(t, engineAsk(t, pp.target, getState(t, key(t, "llama_pp-tp1r0-pp2r0"))), "ok")
	wantAnswer(t, engineAsk(t, pp.target, getState(t, key(t, "llama_pp-tp1r0-pp2r1"))), "mismatch: pp_rank")
}

// What isn't pinned is refused with what to write where, and nothing is loaded.
func TestPinnedOnly(t *testing.T) {
	t.Parallel()
	i := start(t, func(s *setup) {
		s.Config.Policy = config.PolicyPinned
		s.Config.Pins = s.Config.Roots[:1]
	})
	root, err := filepath.Abs(checkpoints)
	do(t, err)
	wantAnswer(t, engineAsk(t, i.target, getState(t, key(t, "qwen2-tp1r0"))),
		fmt.Sprintf(`mismatch: checkpoint; policy is "pinned" and %s/qwen2 is not pinned (set pins = [%q] in wcache.toml; after a change of wcache.toml: systemctl --user reload wcache@host.service, or SIGHUP)`, root, root+"/qwen2"))
	do(t, i.configure(func(c *config.Config) { c.Pins = append(c.Pins, root+"/qwen2") }, nil))
	wantAnswer(t, engineAsk(t, i.target, getState(t, key(t, "qwen2-tp1r0"))), "ok")
	if e := i.entry(t, key(t, "qwen2-tp1r0")); e == nil || !e.Pinned {
		t.Errorf("the entry isn't pinned: %+v", e)
	}
}

// Two ranks of one pinned model at the same moment: one is loaded, the other is
// told the difference.
func TestPinnedAtOnce(t *testing.T) {
	t.Parallel()
	i := start(t, func(s *setup) {
		s.Config.Policy = config.PolicyPinned
		s.Config.Pins = s.Config.Roots[:1]
	})
	got := make(chan string)
	for rank := range 4 {
		k := set(t, set(t, key(t, "llama-tp1r0"), "tp_size", int64(4)), "tp_rank", int64(rank))
		go func() {
			r, err := tryEngine(t.Context(), i.target, getState(t, k))
			if err != nil {
				got <- err.Error()
				return
			}
			got <- answer(r)
		}()
	}
	count := map[string]int{}
	for range 4 {
		count[<-got]++
	}
	if diff := cmp.Diff(map[string]int{"ok": 1, "mismatch: tp_rank": 3}, count); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
}

// Fields that this release doesn't know are kept and named; those that it misses
// are not made up.
func TestFieldsByName(t *testing.T) {
	t.Parallel()
	i := start(t, nil)
	base := key(t, "llama-tp1r0")
	tests := []struct {
		name string
		key  fingerprint.Key
		want string
	}{
		{"unknown field", set(t, base, "lora_backend", "auto"), "mismatch: lora_backend; …"},
		{"unknown field with a false value", set(t, base, "enable_lora", false), "mismatch: enable_lora; …"},
		{"release after all", set(t, base, "vllm_version", "0.99.0"), "mismatch: vllm_version; …0.99.0…"},
		{"no version", without(t, base, "vllm_version"), "mismatch: vllm_version; …"},
		{"version of another type", set(t, base, "vllm_version", int64(33)), "mismatch: vllm_version; …"},
		{"no checkpoint", without(t, base, "checkpoint"), "mismatch: checkpoint; …"},
		{"no arch", without(t, base, "model_arch"), "mismatch: model_arch; …"},
		{"no dtype", without(t, base, "dtype"), "mismatch: dtype; …"},
		{"no ranks", without(t, base, "tp_size", "tp_rank"), "mismatch: tp_…"},
		{"no moe_backend", without(t, base, "moe_backend"), "mismatch: moe_backend; …"},
		{"no rope hash", without(t, base, "rope_parameters_hash"), "mismatch: rope_parameters_hash; …"},
		{"rank out of range", set(t, base, "tp_rank", int64(1)), "mismatch: tp_rank; …"},
		{"negative rank", set(t, base, "tp_rank", int64(-1)), "mismatch: tp_rank; …"},
		{"huge size", set(t, base, "tp_size", int64(1)<<62), "mismatch: tp_size; …"},
		{"size of zero", set(t, base, "tp_size", int64(0)), "mismatch: tp_size; …"},
		{"rank of another type", set(t, base, "tp_rank", "0"), "mismatch: tp_rank; …"},
		{"no fields", newKey(t, nil), "mismatch: …"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			wantAnswer(t, engineAsk(t, i.target, getState(t, tt.key)), tt.want)
		})
	}
	wantAnswer(t, engineAsk(t, i.target, getState(t, base)), "ok")
}

// view is a tensor as it is exported.
type view struct {
	Name, Kind, DType string
	Shape, Stride     []int64
	SHA256            string
}

// exported are the tensors of a recorded layout, in order. The rope cache is left
// out: it may differ in the last place, and layout compares it.
func exported(t *testing.T, name string) []view {
	t.Helper()
	b, err := os.ReadFile(filepath.Join(layouts, name+".json"))
	do(t, err)
	var doc struct {
		Entries []struct {
			Name, Kind, DType, SHA256 string
			Shape, Stride             []int64
		}
	}
	do(t, json.Unmarshal(b, &doc))
	var list []view
	for _, e := range doc.Entries {
		if !strings.HasSuffix(e.Name, "cos_sin_cache") {
			list = append(list, view{e.Name, e.Kind, strings.TrimPrefix(e.DType, "torch."), e.Shape, e.Stride, e.SHA256})
		}
	}
	return list
}

// handedOut are the tensors of a reply, with what lies in their storages.
func handedOut(t *testing.T, r *protocol.Reply) []view {
	t.Helper()
	var list []view
	for _, e := range r.Entries {
		if strings.HasSuffix(e.Name, "cos_sin_cache") {
			continue
		}
		v, err := content(e)
		if err != nil {
			t.Fatalf("%s: %v", e.Name, err)
		}
		list = append(list, v)
	}
	return list
}

// content is a tensor with the hash of its bytes, which lie close in memory.
func content(e protocol.Entry) (view, error) {
	n := tensor.Elements(e.Shape) * int64(e.DType.Bits()) / 8
	b := make([]byte, n)
	at := e.Offset * int64(e.DType.Bits()) / 8
	switch {
	case !slices.Equal(e.Stride, tensor.Contiguous(e.Shape)):
		return view{}, fmt.Errorf("stride %v for shape %v", e.Stride, e.Shape)
	case e.Path != "":
		f, err := os.Open(e.Path)
		if err != nil {
			return view{}, err
		}
		_, err = f.ReadAt(b, at)
		if err := errors.Join(err, f.Close()); err != nil {
			return view{}, err
		}
	case at+n > int64(len(e.Data)):
		return view{}, fmt.Errorf("bytes %d to %d of %d", at, at+n, len(e.Data))
	default:
		copy(b, e.Data[at:])
	}
	return view{e.Name, string(e.Kind), e.DType.Torch(), e.Shape, e.Stride, fmt.Sprintf("%x", sha256.Sum256(b))}, nil
}
