// SPDX-FileCopyrightText: The wcache authors
// SPDX-License-Identifier: MIT

package torch

import (
	"bytes"
	"encoding/binary"
	"flag"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/wcache/wcache/internal/testmain"
	"github.com/wcache/wcache/protocol"
	"github.com/wcache/wcache/tensor"
)

func TestMain(m *testing.M) { testmain.Run(m) }

var update = flag.Bool("update", false, "write the golden files anew")

// sample is a table with everything in it that a reply may have to describe,
// and the bytes of its segment.
func sample() (*tensor.Table, []byte) {
	t := &tensor.Table{Segment: 16<<10 + 512}
	at := int64(0)
	storage := func(n int64) int {
		t.Storages = append(t.Storages, tensor.Storage{Offset: at, Bytes: n})
		at += (n + tensor.Alignment - 1) / tensor.Alignment * tensor.Alignment
		return len(t.Storages) - 1
	}
	add := func(name string, kind tensor.Kind, d tensor.DType, shape, stride []int64, offset int64, storage int) {
		t.Tensors = append(t.Tensors, tensor.Tensor{Name: name, Kind: kind, DType: d, Shape: shape, Stride: stride, Offset: offset, Storage: storage})
	}
	for d := tensor.DType(1); d.Valid(); d++ {
		if d.Torch() != "" {
			add("all."+d.Torch(), tensor.Param, d, []int64{2, 3}, []int64{3, 1}, 0, storage(6*int64(d.Size())))
		}
	}
	add("scalar", tensor.Buffer, tensor.F32, []int64{}, []int64{}, 0, storage(4))
	add("scalar.i64", tensor.Buffer, tensor.I64, []int64{}, []int64{}, 0, storage(8))
	add("transposed", tensor.Param, tensor.F8E4M3, []int64{4, 16}, []int64{1, 4}, 0, storage(64))
	add("five", tensor.Param, tensor.I16, []int64{1, 2, 1, 2, 3}, []int64{12, 6, 6, 3, 1}, 0, storage(24))

	// As in DeepSeek: the weight of one module, and two strided views of it.
	kv := storage(2 * (16 + 8) * 32 * 2)
	add("kv_b_proj.weight", tensor.Param, tensor.BF16, []int64{2 * (16 + 8), 32}, []int64{32, 1}, 0, kv)
	add("W_UV", tensor.Param, tensor.BF16, []int64{2, 32, 8}, []int64{768, 1, 32}, 512, kv)
	add("W_UK_T", tensor.Param, tensor.BF16, []int64{2, 16, 32}, []int64{768, 32, 1}, 0, kv)
	add("kv.bits", tensor.Buffer, tensor.U16, []int64{4}, []int64{1}, 7, kv)

	add("empty", tensor.Param, tensor.F32, []int64{0}, []int64{1}, 0, storage(0))
	add("empty.2d", tensor.Param, tensor.F8E8M0, []int64{3, 0, 4}, []int64{4, 4, 1}, 0, storage(0))
	add("empty.view", tensor.Buffer, tensor.BF16, []int64{0, 32}, []int64{32, 1}, 0, kv)

	at = 16 << 10 // in the last piece
	add("last.piece", tensor.Param, tensor.F16, []int64{3}, []int64{1}, 0, storage(6))
	add("last.again", tensor.Param, tensor.F16, []int64{2}, []int64{1}, 0, storage(4))

	t.Aliases = []tensor.Alias{{Name: "tied", Target: "all.bfloat16"}, {Name: "tied.again", Target: "all.bfloat16"}}
	t.Attrs = []tensor.Attr{{Name: "has_own_lm_head", Value: false}, {Name: "has_own_embed_tokens", Value: true}}

	segment := make([]byte, t.Segment)
	for j := range segment {
		segment[j] = byte(j*7) & 1 // valid as bools too
	}
	for _, s := range t.Storages {
		x := segment[s.Offset : s.Offset+s.Bytes]
		for j := range x {
			if s.Offset != 0 { // the first is of bools
				x[j] = byte(int(s.Offset)/tensor.Alignment*31 + j*5)
			}
		}
	}
	return t, segment
}

// golden are the replies to the recorded requests of llama-tp1r0, with the
// sample as what is cached. 0.30 knows no attributes.
var golden = []struct {
	file, request string
	form          func(segment []byte) protocol.Form
	uuid          string
}{
	{"0.30.0-mapped", "0.30.0-get_state-llama-tp1r0", mapped, ""},
	{"0.30.0-by_value", "0.30.0-get_state-llama-tp1r0", byValue, "GPU-8f1c3c6e-0d2b-4a55-9c1e-2f7d5a1b9e60"},
	{"0.33.0-mapped", "0.33.0-get_state-llama-tp1r0", mapped, ""},
	{"0.33.0-by_value", "0.33.0-get_state-llama-tp1r0", byValue, "GPU-8f1c3c6e-0d2b-4a55-9c1e-2f7d5a1b9e60"},
	{"0.30.0-header24", "0.30.0-get_state-llama-tp1r0", header24, "GPU-8f1c3c6e-0d2b-4a55-9c1e-2f7d5a1b9e60"},
	{"0.33.0-header32", "0.33.0-get_state-llama-tp1r0", header32, "GPU-8f1c3c6e-0d2b-4a55-9c1e-2f7d5a1b9e60"},
	{"0.30.0-legacy24", "0.30.0-get_state-llama-tp1r0", legacy24, "GPU-8f1c3c6e-0d2b-4a55-9c1e-2f7d5a1b9e60"},
	{"0.33.0-legacy32", "0.33.0-get_state-llama-tp1r0", legacy32, "GPU-8f1c3c6e-0d2b-4a55-9c1e-2f7d5a1b9e60"},
	{"0.33.0-legacy", "0.33.0-get_state-llama-tp1r0", legacyBare, ""},
}

func mapped([]byte) protocol.Form          { return Mapped{PID: 4242, FD: 300} }
func byValue(segment []byte) protocol.Form { return ByValue{bytes.NewReader(segment)} }
func header24([]byte) protocol.Form        { return expandable(Header24) }
func header32([]byte) protocol.Form        { return expandable(Header32) }
func legacy24([]byte) protocol.Form        { return legacy(Header24) }
func legacy32([]byte) protocol.Form        { return legacy(Header32) }
func legacyBare([]byte) protocol.Form      { return legacy(0) }

func expandable(h Header) Expandable { return Expandable{PID: 4242, FDs: []int{7, 300}, Header: h} }

// legacy has a handle that counts up from 0x40.
func legacy(h Header) Legacy {
	l := Legacy{Header: h}
	for i := range l.Handle {
		l.Handle[i] = byte(0x40 + i)
	}
	return l
}

func TestGoldenReplies(t *testing.T) {
	table, segment := sample()
	for _, tt := range golden {
		t.Run(tt.file, func(t *testing.T) {
			req, err := protocol.DecodeRequest(payload(t, filepath.Join("../testdata/wire", tt.request+".bin")))
			if err != nil {
				t.Fatal(err)
			}
			state := protocol.State{Module: req.Module, Table: table, Attrs: req.KeyField == "cache_key", GPUUUID: tt.uuid}
			m, err := protocol.EncodeState(state, tt.form(segment))
			if err != nil {
				t.Fatal(err)
			}
			frame := written(t, m)
			b := frame[8:]
			path := filepath.Join("testdata", tt.file+".bin")
			if *update {
				if err := os.WriteFile(path, frame, 0o666); err != nil {
					t.Fatal(err)
				}
			}
			if !bytes.Equal(payload(t, path), b) {
				t.Errorf("reply differs from %s; -update writes it anew", path)
			}

			reply, err := protocol.DecodeReply(b)
			if err != nil {
				t.Fatal(err)
			}
			want := &protocol.Reply{Status: protocol.StatusOK, Aliases: table.Aliases, GPUUUID: tt.uuid, Entries: seen(table, segment, tt.form(segment))}
			if state.Attrs {
				want.HasAttrs, want.Attrs = true, table.Attrs
			}
			if diff := cmp.Diff(want, reply); diff != "" {
				t.Error(diff)
			}
		})
	}
}

// seen is a table as an engine sees it in a form.
func seen(t *tensor.Table, segment []byte, f protocol.Form) []protocol.Entry {
	var list []protocol.Entry
	for _, x := range t.Tensors {
		s := t.Storages[x.Storage]
		e := protocol.Entry{Name: x.Name, Kind: x.Kind, DType: x.DType, Shape: x.Shape, Stride: x.Stride, Offset: x.Offset}
		if g, ok := f.(Expandable); ok {
			e.Handle, e.HandleOffset, e.Bytes = g.handle(t.Segment), s.Offset, s.Bytes
		} else if l, ok := f.(Legacy); ok {
			e.Handle, e.HandleOffset, e.Bytes = l.handle(), s.Offset, s.Bytes
		} else if m, ok := f.(Mapped); ok && s.Bytes > 0 {
			e.Offset += s.Offset / int64(x.DType.Size())
			e.Path, e.Bytes = fmt.Sprintf("/proc/%d/fd/%d", m.PID, m.FD), t.Segment
		} else if s.Bytes > 0 {
			e.Data, e.Bytes = segment[s.Offset:s.Offset+s.Bytes], s.Bytes
		}
		list = append(list, e)
	}
	return list
}

// written is a message's frame as it goes over the wire.
func written(t testing.TB, m protocol.Message) []byte {
	t.Helper()
	var frame bytes.Buffer
	if err := protocol.WriteMessage(&frame, m, nil); err != nil {
		t.Fatal(err)
	}
	return frame.Bytes()
}

func payload(t testing.TB, path string) []byte {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if n := binary.BigEndian.Uint64(b); n != uint64(len(b)-8) {
		t.Fatalf("%s: frame of %d bytes", path, n)
	}
	return b[8:]
}

// TestElementTypes is about each of the 22 types of safetensors: torch's are
// carried through, the others refused by name (case W7).
func TestElementTypes(t *testing.T) {
	for d := tensor.DType(1); d.Valid(); d++ {
		table := &tensor.Table{
			Segment:  256,
			Storages: []tensor.Storage{{Bytes: 256}},
			Tensors:  []tensor.Tensor{{Name: "x", Kind: tensor.Param, DType: d, Shape: []int64{4, 2}, Stride: []int64{2, 1}}},
		}
		forms := []protocol.Form{
			Mapped{PID: 1, FD: 3},
			ByValue{bytes.NewReader(make([]byte, 256))},
			Expandable{PID: 1, FDs: []int{3}, Header: Header32},
			Legacy{Header: Header32},
		}
		for _, f := range forms {
			m, err := protocol.EncodeState(protocol.State{Module: "m", Table: table}, f)
			if d.Torch() == "" {
				want := fmt.Sprintf(`encode reply: tensor "x": torch has no element type %s`, d)
				if m != nil || err == nil || err.Error() != want {
					t.Errorf("%s as %T: error %v, want %s", d, f, err, want)
				}
				continue
			}
			if err != nil {
				t.Errorf("%s as %T: %v", d, f, err)
				continue
			}
			reply, err := protocol.DecodeReply(written(t, m)[8:])
			if err != nil || len(reply.Entries) != 1 || reply.Entries[0].DType != d {
				t.Errorf("%s as %T: came back as %+v, %v", d, f, reply, err)
			}
		}
	}
}

// TestRefuses checks that no reply is made of a table that an engine would take
// and read wrong memory through (cases W8 and W11), nor of too little memory.
func TestRefuses(t *testing.T) {
	const module = "vllm.protocol"
	for _, tt := range []struct {
		name   string
		module string
		form   func(segment []byte) protocol.Form
		change func(*tensor.Table)
		want   string
	}{
		{"view past its storage", module, mapped, func(t *tensor.Table) { named(t, "W_UV").Offset++ },
			`check table: tensor "W_UV": shape [2 32 8], stride [768 1 32], offset 513 overrun a storage of 3072 bytes`},
		{"storage past its segment", module, mapped, func(t *tensor.Table) { t.Segment = 16<<10 + 256 },
			"check table: storage 27: bytes 16640+4 are not an aligned part of a segment of 16640"},
		{"no tensors", module, mapped, func(t *tensor.Table) { t.Tensors = nil }, "check table: no tensors"},
		{"no bytes", module, mapped, func(t *tensor.Table) {
			*t = tensor.Table{Segment: 0, Storages: []tensor.Storage{{}}, Tensors: []tensor.Tensor{*named(t, "empty")}}
			t.Tensors[0].Storage = 0
		}, "check table: no bytes"},
		{"alias of nothing", module, mapped, func(t *tensor.Table) { t.Aliases[0].Target = "x" }, `check table: alias "tied": no tensor "x"`},
		{"no descriptor", module, func([]byte) protocol.Form { return Expandable{Header: Header32} }, func(*tensor.Table) {},
			`tensor "all.bool": a segment of 16896 bytes has 0 pieces`},
		{"pieces of no one size", module, func([]byte) protocol.Form { return Expandable{FDs: make([]int, 5), Header: Header32} }, func(*tensor.Table) {},
			`tensor "all.bool": a segment of 16896 bytes has 5 pieces`},
		{"no header", module, func([]byte) protocol.Form { return expandable(0) }, func(*tensor.Table) {},
			`tensor "all.bool": torch has no header of version 0`},
		{"no such header", module, func([]byte) protocol.Form { return legacy(4) }, func(*tensor.Table) {},
			`tensor "all.bool": torch has no header of version 4`},
		{"bytes short", module, func(s []byte) protocol.Form { return ByValue{bytes.NewReader(s[:256])} }, func(*tensor.Table) {},
			"read 6 bytes at 256: EOF"},
		{"bytes over an engine's limit", module, byValue, func(t *tensor.Table) {
			t.Segment, t.Storages[0].Bytes = 32<<30, 17<<30
			t.Storages[0].Offset = 16 << 10
		}, "message of 18253617471 bytes is over the limit of 17179869184"},
		{"module of another alphabet", "os;x", mapped, func(*tensor.Table) {}, `no module "os;x"`},
		{"no module", "", mapped, func(*tensor.Table) {}, `no module ""`},
	} {
		t.Run(tt.name, func(t *testing.T) {
			table, segment := sample()
			tt.change(table)
			m, err := protocol.EncodeState(protocol.State{Module: tt.module, Table: table}, tt.form(segment))
			if m != nil || err == nil {
				t.Fatalf("%d bytes, error %v", m.Len(), err)
			}
			if got := strings.TrimPrefix(err.Error(), "encode reply: "); got != tt.want {
				t.Errorf("error %q\n want %q", got, tt.want)
			}
		})
	}
}

// TestSmallStorages is about the many that are no longer than what describes them:
// they take no parts of a message. The large are not read before they are written.
func TestSmallStorages(t *testing.T) {
	table, segment := sample()
	m, err := protocol.EncodeState(protocol.State{Module: "m", Table: table}, byValue(segment))
	if err != nil {
		t.Fatal(err)
	}
	var ranges []int64
	for _, p := range m {
		if p.From != nil {
			ranges = append(ranges, p.N)
		}
	}
	if diff := cmp.Diff([]int64{3072}, ranges); diff != "" {
		t.Errorf("ranges -want +got:\n%s", diff)
	}
	kv := table.Storages[named(table, "W_UV").Storage]
	segment = segment[:kv.Offset+100]
	table.Tensors = slices.DeleteFunc(table.Tensors, func(x tensor.Tensor) bool { return strings.HasPrefix(x.Name, "last.") })
	if m, err = protocol.EncodeState(protocol.State{Module: "m", Table: table}, byValue(segment)); err != nil {
		t.Fatal(err)
	}
	err = protocol.WriteMessage(io.Discard, m, nil)
	if want := fmt.Sprintf("write frame: write 3072 bytes at %d, of which 100 went: unexpected EOF", kv.Offset); err == nil || err.Error() != want {
		t.Errorf("a segment that ends early: %v, want %s", err, want)
	}
}

func named(t *tensor.Table, name string) *tensor.Tensor {
	for i := range t.Tensors {
		if t.Tensors[i].Name == name {
			return &t.Tensors[i]
		}
	}
	panic("no tensor " + name)
}

// BenchmarkEncodeState makes the reply for a model of the size of Llama 3 8B.
func BenchmarkEncodeState(b *testing.B) {
	table := &tensor.Table{Segment: 16 << 30, Attrs: []tensor.Attr{{Name: "has_own_lm_head"}}}
	at := int64(0)
	add := func(name string, kind tensor.Kind, d tensor.DType, shape ...int64) {
		n := tensor.Elements(shape) * int64(d.Size())
		table.Tensors = append(table.Tensors, tensor.Tensor{Name: name, Kind: kind, DType: d, Shape: shape, Stride: tensor.Contiguous(shape), Storage: len(table.Storages)})
		table.Storages = append(table.Storages, tensor.Storage{Offset: at, Bytes: n})
		at += (n + tensor.Alignment - 1) / tensor.Alignment * tensor.Alignment
	}
	add("model.embed_tokens.weight", tensor.Param, tensor.BF16, 128256, 4096)
	for i := range 42 {
		layer := fmt.Sprintf("model.layers.%d.", i)
		add(layer+"self_attn.qkv_proj.weight", tensor.Param, tensor.BF16, 6144, 4096)
		add(layer+"self_attn.o_proj.weight", tensor.Param, tensor.BF16, 4096, 4096)
		add(layer+"mlp.gate_up_proj.weight", tensor.Param, tensor.BF16, 2800, 4096)
		add(layer+"mlp.down_proj.weight", tensor.Param, tensor.BF16, 4096, 1400)
		add(layer+"input_layernorm.weight", tensor.Param, tensor.BF16, 4096)
		add(layer+"post_attention_layernorm.weight", tensor.Param, tensor.BF16, 4096)
		for _, scale := range []string{"_k_scale", "_v_scale", "_q_scale", "_prob_scale"} {
			add(layer+"self_attn.attn."+scale, tensor.Buffer, tensor.F32)
		}
		if i > 0 {
			table.Aliases = append(table.Aliases, tensor.Alias{Name: layer + "self_attn.rotary_emb.cos_sin_cache", Target: "model.layers.0.self_attn.qkv_proj.weight"})
		}
	}
	state := protocol.State{Module: protocol.DefaultModule, Table: table, Attrs: true}
	for _, f := range []protocol.Form{Mapped{PID: 4242, FD: 7}, Expandable{PID: 4242, FDs: []int{7}, Header: Header32}} {
		b.Run(fmt.Sprintf("%T", f), func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				reply, err := protocol.EncodeState(state, f)
				if err != nil {
					b.Fatal(err)
				}
				b.ReportMetric(float64(reply.Len()), "bytes/reply")
			}
			b.ReportMetric(float64(len(table.Tensors)), "entries")
		})
	}
}
