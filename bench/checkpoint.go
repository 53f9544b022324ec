// SPDX-FileCopyrightText: The wcache authors
// SPDX-License-Identifier: MIT

package main

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/wcache/wcache/fingerprint"
	"github.com/wcache/wcache/protocol"
	"github.com/wcache/wcache/protocol/pickle"
	"github.com/wcache/wcache/weights"
)

// llama is the size of a Llama in bfloat16.
type llama struct {
	layers, shards                                 int
	hidden, inner, heads, kvHeads, headSize, vocab int64
}

// large has 2.0 GiB, in 444 tensors for an engine.
func large() llama {
	return llama{layers: 44, shards: 4, hidden: 1536, inner: 3840, heads: 12, kvHeads: 4, headSize: 128, vocab: 6144}
}

// small has as many tensors in 3 MB.
func small() llama {
	return llama{layers: 44, shards: 2, hidden: 64, inner: 96, heads: 4, kvHeads: 2, headSize: 16, vocab: 128}
}

// tiny is a model of the kind that a machine's folders have many of.
func tiny() llama {
	return llama{layers: 1, shards: 2, hidden: 16, inner: 16, heads: 2, kvHeads: 1, headSize: 8, vocab: 16}
}

// tensorShape is one tensor of the checkpoint.
type tensorShape struct {
	name  string
	shape []int64
}

func (t tensorShape) bytes() int64 {
	n := int64(2)
	for _, d := range t.shape {
		n *= d
	}
	return n
}

// tensors lists the tensors of a shard, in the order of its bytes.
func (l llama) tensors(shard int) []tensorShape {
	var list []tensorShape
	add := func(name string, shape ...int64) { list = append(list, tensorShape{name + ".weight", shape}) }
	if shard == 0 {
		add("model.embed_tokens", l.vocab, l.hidden)
	}
	for i := shard * l.layers / l.shards; i < (shard+1)*l.layers/l.shards; i++ {
		layer := fmt.Sprintf("model.layers.%d.", i)
		add(layer+"input_layernorm", l.hidden)
		add(layer+"mlp.down_proj", l.hidden, l.inner)
		add(layer+"mlp.gate_proj", l.inner, l.hidden)
		add(layer+"mlp.up_proj", l.inner, l.hidden)
		add(layer+"post_attention_layernorm", l.hidden)
		add(layer+"self_attn.k_proj", l.kvHeads*l.headSize, l.hidden)
		add(layer+"self_attn.o_proj", l.hidden, l.hidden)
		add(layer+"self_attn.q_proj", l.hidden, l.hidden)
		add(layer+"self_attn.v_proj", l.kvHeads*l.headSize, l.hidden)
	}
	if shard == l.shards-1 {
		add("model.norm", l.hidden)
		add("lm_head", l.vocab, l.hidden)
	}
	return list
}

// prepare writes the checkpoint of 2 GiB, unless it is there, and the request for it.
func (b *bench) prepare() error {
	if _, err := os.Stat(filepath.Join(b.model, "config.json")); errors.Is(err, fs.ErrNotExist) {
		if err := large().write(b.model, nil); err != nil {
			return err
		}
		unix.Sync() // else writing it back disturbs the measurements
	}
	return requestFor(b.model, b.request)
}

// requestFor writes an engine's get_state for a model to a file.
func requestFor(model, path string) error {
	d, err := weights.Open(model)
	if err != nil {
		return err
	}
	key, err := fingerprint.Compute(d, fingerprint.Options{})
	if err != nil {
		return err
	}
	return writeRequest(path, key)
}

// shard is the name of a file.
func (l llama) shard(i int) string {
	return fmt.Sprintf("model-%05d-of-%05d.safetensors", i+1, l.shards)
}

// write makes a model directory. The metadata goes into the headers, so that models of one
// size have different headers. The configuration is written last: a model with a
// configuration is complete.
func (l llama) write(dir string, metadata map[string]string) error {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	files := make(map[string]string)
	for i := range l.shards {
		list := l.tensors(i)
		for _, t := range list {
			files[t.name] = l.shard(i)
		}
		if err := writeShard(filepath.Join(dir, l.shard(i)), list, metadata); err != nil {
			return err
		}
	}
	if err := writeJSON(filepath.Join(dir, "model.safetensors.index.json"), map[string]any{"weight_map": files}); err != nil {
		return err
	}
	return writeJSON(filepath.Join(dir, "config.json"), map[string]any{
		"architectures": []string{"LlamaForCausalLM"}, "model_type": "llama", "dtype": "bfloat16", "hidden_act": "silu",
		"hidden_size": l.hidden, "intermediate_size": l.inner, "num_hidden_layers": l.layers, "num_attention_heads": l.heads,
		"num_key_value_heads": l.kvHeads, "head_dim": l.headSize, "vocab_size": l.vocab, "max_position_embeddings": 4096,
		"rms_norm_eps": 1e-5, "tie_word_embeddings": false,
		"rope_parameters": map[string]any{"rope_theta": 500000.0, "rope_type": "default"},
	})
}

func writeJSON(path string, v any) error {
	b, err := json.Marshal(v)
	if err != nil {
		return err
	}
	return os.WriteFile(path, b, 0o600)
}

// writeShard writes a safetensors file with numbers like those of real weights.
func writeShard(path string, list []tensorShape, metadata map[string]string) error {
	header, end := make(map[string]any), int64(0)
	if metadata != nil {
		header["__metadata__"] = metadata
	}
	for _, t := range list {
		header[t.name] = map[string]any{"dtype": "BF16", "shape": t.shape, "data_offsets": []int64{end, end + t.bytes()}}
		end += t.bytes()
	}
	text, err := json.Marshal(header)
	if err != nil {
		return err
	}
	for len(text)%8 != 0 {
		text = append(text, ' ')
	}
	f, err := os.Create(path)
	if err != nil {
		return err
	}
	_, err = f.Write(append(binary.LittleEndian.AppendUint64(nil, uint64(len(text))), text...))
	piece := make([]byte, min(1<<20, end))
	random := rand.New(rand.NewPCG(1, 2))
	for i := 0; i < len(piece); i += 2 {
		binary.LittleEndian.PutUint16(piece[i:], uint16(math.Float32bits(float32(random.NormFloat64()*0.02))>>16))
	}
	for left := end; left > 0 && err == nil; left -= int64(len(piece)) {
		_, err = f.Write(piece[:min(left, int64(len(piece)))])
	}
	return errors.Join(err, f.Close())
}

// writeRequest writes the frame of a get_state as vLLM 0.33 sends it.
func writeRequest(path string, key fingerprint.Key) error {
	fields := new(pickle.Dict)
	for _, f := range key.Fields() {
		v := f.Value
		if t, ok := v.(fingerprint.Tuple); ok {
			v = pickle.Tuple(t)
		}
		fields.Items = append(fields.Items, pickle.Item{Key: f.Name, Value: v})
	}
	payload, err := pickle.Encode(&pickle.Dict{Items: []pickle.Item{
		{Key: "cmd", Value: protocol.GetState},
		{Key: "cache_key", Value: &pickle.Object{Class: pickle.Global{Module: protocol.DefaultModule, Name: "WeightCacheKey"}, State: fields}},
		{Key: "is_reload", Value: false},
	}})
	if err != nil {
		return err
	}
	f, err := os.Create(path)
	if err != nil {
		return err
	}
	return errors.Join(protocol.WriteFrame(f, payload), f.Close())
}
