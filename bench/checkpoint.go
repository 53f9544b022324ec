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

	"github.com/wcache/wcache/fingerprint"
	"github.com/wcache/wcache/protocol"
	"github.com/wcache/wcache/protocol/pickle"
	"github.com/wcache/wcache/weights"
)

// A Llama of 2.0 GiB in bfloat16, which an engine sees as 444 entries.
const (
	layers   = 44
	hidden   = 1536
	inner    = 3840
	heads    = 12
	kvHeads  = 4
	headSize = hidden / heads
	vocab    = 6144
	shards   = 4
)

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

// tensorsOf lists the tensors of a shard, in the order of its bytes.
func tensorsOf(shard int) []tensorShape {
	var list []tensorShape
	add := func(name string, shape ...int64) { list = append(list, tensorShape{name + ".weight", shape}) }
	if shard == 0 {
		add("model.embed_tokens", vocab, hidden)
	}
	for i := shard * layers / shards; i < (shard+1)*layers/shards; i++ {
		layer := fmt.Sprintf("model.layers.%d.", i)
		add(layer+"input_layernorm", hidden)
		add(layer+"mlp.down_proj", hidden, inner)
		add(layer+"mlp.gate_proj", inner, hidden)
		add(layer+"mlp.up_proj", inner, hidden)
		add(layer+"post_attention_layernorm", hidden)
		add(layer+"self_attn.k_proj", kvHeads*headSize, hidden)
		add(layer+"self_attn.o_proj", hidden, hidden)
		add(layer+"self_attn.q_proj", hidden, hidden)
		add(layer+"self_attn.v_proj", kvHeads*headSize, hidden)
	}
	if shard == shards-1 {
		add("model.norm", hidden)
		add("lm_head", vocab, hidden)
	}
	return list
}

// prepare writes the checkpoint, unless it is there, and the request for it.
func (b *bench) prepare() error {
	config := filepath.Join(b.model, "config.json")
	if _, err := os.Stat(config); errors.Is(err, fs.ErrNotExist) {
		if err := b.writeModel(config); err != nil {
			return err
		}
	}
	d, err := weights.Open(b.model)
	if err != nil {
		return err
	}
	key, err := fingerprint.Compute(d, fingerprint.Options{})
	if err != nil {
		return err
	}
	return writeRequest(b.request, key)
}

// writeModel writes the configuration last: a model that has one is whole.
func (b *bench) writeModel(config string) error {
	if err := os.MkdirAll(b.model, 0o700); err != nil {
		return err
	}
	files := make(map[string]string)
	for i := range shards {
		name := fmt.Sprintf("model-%05d-of-%05d.safetensors", i+1, shards)
		list := tensorsOf(i)
		for _, t := range list {
			files[t.name] = name
		}
		if err := writeShard(filepath.Join(b.model, name), list); err != nil {
			return err
		}
	}
	if err := writeJSON(filepath.Join(b.model, "model.safetensors.index.json"), map[string]any{"weight_map": files}); err != nil {
		return err
	}
	return writeJSON(config, map[string]any{
		"architectures": []string{"LlamaForCausalLM"}, "model_type": "llama", "dtype": "bfloat16", "hidden_act": "silu",
		"hidden_size": hidden, "intermediate_size": inner, "num_hidden_layers": layers, "num_attention_heads": heads,
		"num_key_value_heads": kvHeads, "head_dim": headSize, "vocab_size": vocab, "max_position_embeddings": 4096,
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

// writeShard writes a safetensors file of numbers such as weights are.
func writeShard(path string, list []tensorShape) error {
	header, end := make(map[string]any), int64(0)
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
	piece := make([]byte, 1<<20)
	random := rand.New(rand.NewPCG(1, 2))
	for i := 0; i < len(piece); i += 2 {
		binary.LittleEndian.PutUint16(piece[i:], uint16(math.Float32bits(float32(random.NormFloat64()*0.02))>>16))
	}
	for left := end; left > 0 && err == nil; left -= int64(len(piece)) {
		_, err = f.Write(piece[:min(left, int64(len(piece)))])
	}
	if err == nil {
		err = f.Sync() // or the disk is busy with it while others are measured
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
