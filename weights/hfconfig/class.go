// SPDX-FileCopyrightText: The wcache authors
// SPDX-License-Identifier: MIT

package hfconfig

import (
	"fmt"
	"slices"
)

// class holds the defaults of a transformers config class, and how vLLM's model
// class of the same type reads it.
type class struct {
	model        string // what vLLM takes for a missing architectures: MODEL_MAPPING_NAMES
	vocab        int64
	hidden       int64
	intermediate int64
	kvHeads      int64 // 0: as many as heads
	headDim      int64 // 0: hidden size by heads
	maxPositions int64
	layerTypes   bool // the class has layer_types, so rope may be nested
	phi3         bool
	qwen2        bool // bias of q, k and v always, head_dim of the file never
	qwen3        bool // no bias of o_proj
}

// All five have 32 layers and 32 heads, and don't tie their embeddings.
const (
	defaultLayers = 32
	defaultHeads  = 32
)

// From configuration_llama.py, configuration_mistral.py and so on.
var classes = map[string]class{
	"llama":   {model: "LlamaModel", vocab: 32000, hidden: 4096, intermediate: 11008, maxPositions: 2048},
	"mistral": {model: "MistralModel", vocab: 32000, hidden: 4096, intermediate: 14336, kvHeads: 8, maxPositions: 131072},
	"qwen2":   {model: "Qwen2Model", vocab: 151936, hidden: 4096, intermediate: 22016, kvHeads: 32, maxPositions: 32768, layerTypes: true, qwen2: true},
	"qwen3":   {model: "Qwen3Model", vocab: 151936, hidden: 4096, intermediate: 22016, kvHeads: 32, headDim: 128, maxPositions: 32768, layerTypes: true, qwen3: true},
	"phi3":    {model: "Phi3Model", vocab: 32064, hidden: 3072, intermediate: 8192, maxPositions: 4096, phi3: true},
}

// Classes without defaults here, whose rope parameters are known to be made as
// those of the five above are, given a rope_theta.
var plainRope = []string{
	"mixtral", "qwen2_moe", "qwen3_moe", "gemma", "gemma2", "deepseek_v2", "deepseek_v3",
	"olmo", "olmo2", "olmoe", "granite", "granitemoe", "cohere", "starcoder2", "smollm3",
}

// Classes that have no rope parameters at all.
var noRope = []string{"gpt2", "opt"}

// maxSize bounds each size of a configuration, so that a product of two fits an
// int64.
const maxSize = 1 << 31

// build fills the fields of a known class.
func (c *Config) build(k class) error {
	if c.Architectures == nil {
		c.Architectures = []string{k.model}
	}
	r := reader{m: c.Raw}
	c.HiddenSize = r.size("hidden_size", k.hidden)
	c.IntermediateSize = r.size("intermediate_size", k.intermediate)
	c.Layers = r.size("num_hidden_layers", defaultLayers)
	c.Heads = r.size("num_attention_heads", defaultHeads)
	c.VocabSize = r.size("vocab_size", k.vocab)
	c.MaxPositions = r.size("max_position_embeddings", k.maxPositions)
	c.KVHeads = k.kvHeads
	if v, ok := c.Raw["num_key_value_heads"]; k.kvHeads == 0 || ok && v == nil {
		c.KVHeads = c.Heads
	}
	if c.Raw["num_key_value_heads"] != nil {
		c.KVHeads = r.size("num_key_value_heads", 0)
	}
	if r.err != nil {
		return r.err
	}
	c.HeadDim = c.HiddenSize / c.Heads
	v, given := c.Raw["head_dim"]
	switch {
	case k.qwen2:
	case truthy(v): // vLLM's classes take 0 for none
		c.HeadDim = r.size("head_dim", 0)
	case !given && k.headDim != 0:
		c.HeadDim = k.headDim
	}

	c.TieWordEmbeddings = r.bool("tie_word_embeddings")
	switch {
	case k.qwen2:
		c.AttentionBias = true
	case k.qwen3:
		c.AttentionBias = r.bool("attention_bias")
	default:
		c.OutputBias = r.bool("attention_bias") || r.bool("bias")
		c.AttentionBias = c.OutputBias
		if _, ok := c.Raw["qkv_bias"]; ok {
			c.AttentionBias = r.bool("qkv_bias")
		}
		c.MLPBias = r.bool("mlp_bias")
	}
	if r.err != nil {
		return r.err
	}

	n := normalizer{text: c.Raw, maxPositions: c.MaxPositions, phi3: k.phi3}
	if k.layerTypes {
		n.labels = c.layerTypes()
	}
	var err error
	c.Rope, err = n.normalize()
	return err
}

// layerTypes are the names that layer_types holds, which Qwen2Config and
// Qwen3Config make up where the file has none.
func (c *Config) layerTypes() []string {
	var names []string
	if list, ok := c.Raw["layer_types"].([]any); ok {
		for _, v := range list {
			if name, ok := v.(string); ok && !slices.Contains(names, name) {
				names = append(names, name)
			}
		}
		return names
	}
	full := int64(28) // max_window_layers: the layers before the first sliding one
	if n, ok := c.Raw["max_window_layers"].(int64); ok {
		full = n
	}
	window, given := c.Raw["sliding_window"]
	sliding := truthy(c.Raw["use_sliding_window"]) && (!given || window != nil) && c.Layers > full
	if sliding {
		names = append(names, "sliding_attention")
	}
	if !sliding || full > 0 {
		names = append(names, "full_attention")
	}
	return names
}

// take fills the fields of a class that isn't known with what the file gives.
func (c *Config) take(text map[string]any) {
	size := func(name string) int64 {
		r := reader{m: text}
		return r.size(name, 0)
	}
	c.HiddenSize = size("hidden_size")
	c.IntermediateSize = size("intermediate_size")
	c.Layers = size("num_hidden_layers")
	c.Heads = size("num_attention_heads")
	c.KVHeads = size("num_key_value_heads")
	c.HeadDim = size("head_dim")
	c.VocabSize = size("vocab_size")
	c.TieWordEmbeddings, _ = c.Raw["tie_word_embeddings"].(bool)
	c.AttentionBias, _ = text["attention_bias"].(bool)
	c.OutputBias = c.AttentionBias
	c.MLPBias, _ = text["mlp_bias"].(bool)
	c.ropeErr = c.takeRope(text)
}

// takeRope accepts rope parameters only where no default of the class can have
// a part in them: the file, or plainRope, must settle each value that some class
// has a default for.
func (c *Config) takeRope(text map[string]any) error {
	positions := "max_position_embeddings"
	if c.ModelType == "gpt2" {
		positions = "n_positions" // GPT2Config.attribute_map
	}
	r := reader{m: text}
	if c.MaxPositions = r.size(positions, 0); c.MaxPositions == 0 {
		return &Missing{ModelType: c.ModelType, Field: positions}
	}

	_, theta := text["rope_theta"]
	scaling, parameters := truthy(text["rope_scaling"]), truthy(text["rope_parameters"])
	if slices.Contains(noRope, c.ModelType) && !theta && !scaling && !parameters {
		return nil
	}
	n := normalizer{text: text, maxPositions: c.MaxPositions}
	given, _ := text["rope_parameters"].(map[string]any)
	if Rope(given).Nested() {
		for name := range given {
			n.labels = append(n.labels, name)
		}
	}
	parts, _, err := n.parts(given)
	if err != nil {
		return err
	}
	plain := slices.Contains(plainRope, c.ModelType)
	for _, name := range []string{"rope_theta", "rope_type", "partial_rotary_factor"} {
		_, beside := text[name]
		beside = beside && name != "rope_type"
		inside := parameters && !scaling
		for _, p := range parts {
			_, ok := p[name]
			inside = inside && ok
		}
		if beside || inside || plain && name != "rope_theta" {
			continue
		}
		return &Missing{ModelType: c.ModelType, Field: name}
	}
	rope, err := n.normalize()
	if err != nil {
		return err
	}
	c.Rope = rope
	return nil
}

// reader takes typed values out of a file and keeps the first error.
type reader struct {
	m   map[string]any
	err error
}

// size is a positive integer, missing where the key is absent. After an error it
// is 0.
func (r *reader) size(name string, missing int64) int64 {
	v, ok := r.m[name]
	if !ok {
		return missing
	}
	n, ok := v.(int64)
	if !ok || n <= 0 || n > maxSize {
		r.fail("%s is %v, not an integer from 1 to %d", name, v, maxSize)
		return 0
	}
	return n
}

func (r *reader) bool(name string) bool {
	v, ok := r.m[name]
	if !ok {
		return false
	}
	b, ok := v.(bool)
	if !ok {
		r.fail("%s is %v, not true or false", name, v)
	}
	return b
}

func (r *reader) fail(format string, args ...any) {
	if r.err == nil {
		r.err = fmt.Errorf(format, args...)
	}
}
