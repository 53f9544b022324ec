// SPDX-FileCopyrightText: The wcache authors
// SPDX-License-Identifier: MIT

package main

import (
	"encoding/binary"
	"encoding/json"
	"fmt"
	"math"
	"slices"

	"github.com/wcache/wcache/protocol"
	"github.com/wcache/wcache/tensor"
)

// family is a kind of checkpoint: all directories of a family have equal headers, and so
// equal keys. Its tensors are those of the Llama in testdata/checkpoints/llama, except for
// two sizes.
type family struct {
	name  string
	inner int // intermediate_size
	vocab int // vocab_size
}

// The sizes that all families share.
const (
	hidden    = 64
	heads     = 8
	kvHeads   = 4
	headSize  = hidden / heads
	layers    = 2
	positions = 128
	padTo     = 64 // rows to which vLLM fills up a vocabulary
	element   = 2  // bytes of a bfloat16
	word      = 8  // bytes of what a version's data is made of
)

// families are small ones, with many directories per key, one whose load takes a moment, and
// one that may be the only one of its key.
func families() []family {
	return []family{{"small", 96, 259}, {"medium", 8192, 8195}, {"single", 96, 131}}
}

// shape is one tensor of a checkpoint: rows of so many elements, all of them bfloat16.
type shape struct {
	name       string
	rows, cols int // a norm has one row
	flat       bool
}

func (s shape) bytes() int { return s.rows * s.cols * element }

func (s shape) dims() []int {
	if s.flat {
		return []int{s.cols}
	}
	return []int{s.rows, s.cols}
}

// shards are the files of a checkpoint and what is in each, in the order of its bytes.
func (f family) shards() [][]shape {
	layer := func(i int, names ...string) []shape {
		const attention = heads * headSize
		of := map[string]shape{
			"input_layernorm":          {rows: 1, cols: hidden, flat: true},
			"mlp.down_proj":            {rows: hidden, cols: f.inner},
			"mlp.gate_proj":            {rows: f.inner, cols: hidden},
			"mlp.up_proj":              {rows: f.inner, cols: hidden},
			"post_attention_layernorm": {rows: 1, cols: hidden, flat: true},
			"self_attn.k_proj":         {rows: kvHeads * headSize, cols: hidden},
			"self_attn.o_proj":         {rows: hidden, cols: attention},
			"self_attn.q_proj":         {rows: attention, cols: hidden},
			"self_attn.v_proj":         {rows: kvHeads * headSize, cols: hidden},
		}
		var list []shape
		for _, n := range names {
			s := of[n]
			s.name = fmt.Sprintf("model.layers.%d.%s.weight", i, n)
			list = append(list, s)
		}
		return list
	}
	attention := []string{"self_attn.k_proj", "self_attn.o_proj", "self_attn.q_proj", "self_attn.v_proj"}
	rest := []string{"input_layernorm", "mlp.down_proj", "mlp.gate_proj", "mlp.up_proj", "post_attention_layernorm"}
	return [][]shape{
		slices.Concat([]shape{{name: "model.embed_tokens.weight", rows: f.vocab, cols: hidden}}, layer(0, attention...)),
		slices.Concat(layer(0, rest...), layer(1, attention...)),
		slices.Concat(layer(1, rest...), []shape{{name: "model.norm.weight", rows: 1, cols: hidden, flat: true}}),
		{{name: "lm_head.weight", rows: f.vocab, cols: hidden}},
	}
}

// config is the text of config.json.
func (f family) config() ([]byte, error) {
	return json.Marshal(map[string]any{
		"architectures": []string{"LlamaForCausalLM"}, "model_type": "llama", "dtype": "bfloat16", "hidden_act": "silu",
		"hidden_size": hidden, "intermediate_size": f.inner, "num_hidden_layers": layers, "num_attention_heads": heads,
		"num_key_value_heads": kvHeads, "head_dim": headSize, "vocab_size": f.vocab, "max_position_embeddings": positions,
		"rms_norm_eps": 1e-5, "tie_word_embeddings": false, "attention_bias": false, "mlp_bias": false,
		"rope_parameters": map[string]any{"rope_theta": 10000.0, "rope_type": "default"},
	})
}

// checkpoint is the data of each tensor, by name.
type checkpoint map[string][]byte

// version is a checkpoint in which every word has the number of its version in the upper
// half, and its place in the checkpoint in the lower half, counted from 1.
func (f family) version(version uint32) checkpoint {
	c := make(checkpoint)
	place := uint64(0)
	for _, shard := range f.shards() {
		for _, s := range shard {
			b := make([]byte, 0, s.bytes())
			for len(b) < s.bytes() {
				place++
				b = binary.LittleEndian.AppendUint64(b, uint64(version)<<32|place)
			}
			c[s.name] = b
		}
	}
	return c
}

// files are the files of a version's directory, by name.
func (f family) files(version uint32) (map[string][]byte, error) {
	data := f.version(version)
	out := make(map[string][]byte)
	index := make(map[string]string)
	for i, shard := range f.shards() {
		name := fmt.Sprintf("model-%05d-of-%05d.safetensors", i+1, len(f.shards()))
		header, end := make(map[string]any), 0
		var body []byte
		for _, s := range shard {
			header[s.name] = map[string]any{"dtype": "BF16", "shape": s.dims(), "data_offsets": []int{end, end + s.bytes()}}
			end += s.bytes()
			body = append(body, data[s.name]...)
			index[s.name] = name
		}
		text, err := json.Marshal(header)
		if err != nil {
			return nil, err
		}
		for len(text)%word != 0 {
			text = append(text, ' ')
		}
		out[name] = slices.Concat(binary.LittleEndian.AppendUint64(nil, uint64(len(text))), text, body)
	}
	var err error
	if out["model.safetensors.index.json"], err = json.Marshal(map[string]any{"weight_map": index}); err != nil {
		return nil, err
	}
	out["config.json"], err = f.config()
	return out, err
}

// piece is a tensor that an engine must get.
type piece struct {
	name  string
	kind  tensor.Kind
	dtype tensor.DType
	shape []int64
	bytes []byte
}

// rank is what vLLM makes of a checkpoint for one of tp ranks, by the rules of tensor
// parallelism alone: rows or columns are split in equal parts, and parts that are computed
// together are stored together.
func (f family) rank(c checkpoint, tp, rank int) []piece {
	var list []piece
	param := func(name string, cols int, parts ...[]byte) {
		b := slices.Concat(parts...)
		dims := []int64{int64(len(b) / cols / element), int64(cols)}
		list = append(list, piece{name, tensor.Param, tensor.BF16, dims, b})
	}
	norm := func(name string) {
		list = append(list, piece{name, tensor.Param, tensor.BF16, []int64{hidden}, c[name]})
	}
	rows := func(name string) []byte {
		b := c[name]
		return b[len(b)/tp*rank : len(b)/tp*(rank+1)]
	}
	cols := func(name string, n int) []byte {
		var out []byte
		for b := c[name]; len(b) > 0; b = b[n*element:] {
			out = append(out, b[n/tp*rank*element:n/tp*(rank+1)*element]...)
		}
		return out
	}
	vocab := func(name string) []byte {
		whole := make([]byte, (f.vocab+padTo-1)/padTo*padTo*hidden*element)
		copy(whole, c[name])
		return whole[len(whole)/tp*rank : len(whole)/tp*(rank+1)]
	}
	param("model.embed_tokens.weight", hidden, vocab("model.embed_tokens.weight"))
	for i := range layers {
		of := func(name string) string { return fmt.Sprintf("model.layers.%d.%s.weight", i, name) }
		param(of("self_attn.qkv_proj"), hidden, rows(of("self_attn.q_proj")), rows(of("self_attn.k_proj")), rows(of("self_attn.v_proj")))
		param(of("self_attn.o_proj"), heads*headSize/tp, cols(of("self_attn.o_proj"), heads*headSize))
		param(of("mlp.gate_up_proj"), hidden, rows(of("mlp.gate_proj")), rows(of("mlp.up_proj")))
		param(of("mlp.down_proj"), f.inner/tp, cols(of("mlp.down_proj"), f.inner))
		norm(of("input_layernorm"))
		norm(of("post_attention_layernorm"))
	}
	norm("model.norm.weight")
	param("lm_head.weight", hidden, vocab("lm_head.weight"))
	list = append(list, piece{ropeName(0), tensor.Buffer, tensor.BF16, []int64{positions, headSize}, rope()})
	one := binary.LittleEndian.AppendUint32(nil, math.Float32bits(1))
	for i := range layers {
		for _, scale := range []string{"k", "v", "q", "prob"} {
			name := fmt.Sprintf("model.layers.%d.self_attn.attn._%s_scale", i, scale)
			list = append(list, piece{name, tensor.Buffer, tensor.F32, []int64{}, one})
		}
	}
	return list
}

func ropeName(layer int) string {
	return fmt.Sprintf("model.layers.%d.self_attn.rotary_emb.cos_sin_cache", layer)
}

// aliases and attrs are the other parts of a reply, equal for every family.
func aliases() []tensor.Alias { return []tensor.Alias{{Name: ropeName(1), Target: ropeName(0)}} }

func attrs() []tensor.Attr {
	return []tensor.Attr{{Name: "has_own_lm_head"}, {Name: "has_own_embed_tokens"}}
}

// rope is the cache of cosines and sines: one row per position, in bfloat16.
func rope() []byte {
	var out []byte
	for p := range positions {
		for _, f := range []func(float64) float64{math.Cos, math.Sin} {
			for i := range headSize / 2 {
				frequency := float32(1 / math.Pow(10000, float64(2*i)/headSize))
				out = binary.LittleEndian.AppendUint16(out, bfloat16(float32(f(float64(float32(p)*frequency)))))
			}
		}
	}
	return out
}

// bfloat16 rounds to the nearest one, to the even one of two.
func bfloat16(x float32) uint16 {
	bits := math.Float32bits(x)
	return uint16((bits + 0x7fff + bits>>16&1) >> 16)
}

// compare compares what an engine got with the reference of a rank, which is that of
// version 0: every byte of every tensor must be equal, but words may be of any version. It
// returns the versions that it found. Read gives the bytes of an entry.
func compare(want []piece, reply *protocol.Reply, read func(*protocol.Entry) ([]byte, error)) (versions []uint32, err error) {
	switch {
	case len(reply.Entries) != len(want):
		return nil, fmt.Errorf("%d tensors, want %d", len(reply.Entries), len(want))
	case !slices.Equal(reply.Aliases, aliases()):
		return nil, fmt.Errorf("aliases %v", reply.Aliases)
	case !slices.Equal(reply.Attrs, attrs()):
		return nil, fmt.Errorf("attributes %v", reply.Attrs)
	}
	for i, p := range want {
		e := &reply.Entries[i]
		if e.Name != p.name || e.Kind != p.kind || e.DType != p.dtype || !slices.Equal(e.Shape, p.shape) || !slices.Equal(e.Stride, tensor.Contiguous(p.shape)) {
			return versions, fmt.Errorf("tensor %d is %s %s %v %v of strides %v, want %s %s %v %v", i, e.Kind, e.Name, e.DType, e.Shape, e.Stride, p.kind, p.name, p.dtype, p.shape)
		}
		b, err := read(e)
		if err != nil {
			return versions, err
		}
		if len(b) != len(p.bytes) {
			return versions, fmt.Errorf("%s has %d bytes, want %d", p.name, len(b), len(p.bytes))
		}
		if p.kind == tensor.Buffer {
			if !slices.Equal(b, p.bytes) {
				return versions, fmt.Errorf("%s differs", p.name)
			}
			continue
		}
		for at := 0; at < len(b); at += word {
			got, place := binary.LittleEndian.Uint64(b[at:]), binary.LittleEndian.Uint64(p.bytes[at:])
			if uint32(got) != uint32(place) || place == 0 && got != 0 { // 0 is padding
				return versions, fmt.Errorf("%s, byte %d: the word is %#x of version %d, want %#x", p.name, at, uint32(got), got>>32, place)
			}
			if v := uint32(got >> 32); place != 0 && (len(versions) == 0 || versions[len(versions)-1] != v) && !slices.Contains(versions, v) {
				versions = append(versions, v)
			}
		}
	}
	return versions, nil
}
