// SPDX-FileCopyrightText: The wcache authors
// SPDX-License-Identifier: MIT

package hfconfig

import "slices"

// class holds the defaults of a transformers config class, and how vLLM's model
// class of the same type reads it.
type class struct {
	model        string // the class that vLLM uses if architectures is missing: MODEL_MAPPING_NAMES
	vocab        int64
	hidden       int64
	intermediate int64
	kvHeads      int64 // 0: as many as heads
	headDim      int64 // 0: hidden size divided by heads
	maxPositions int64
	layerTypes   bool // the class has layer_types, so rope may be nested
	phi3         bool
	qwen2        bool // q, k and v always have a bias; head_dim of the file is ignored
	qwen3        bool // o_proj has no bias
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

// Classes without defaults here whose rope parameters, given a rope_theta, are known to
// be computed as for the five above.
var plainRope = []string{
	"mixtral", "qwen2_moe", "qwen3_moe", "gemma", "gemma2", "deepseek_v2", "deepseek_v3",
	"olmo", "olmo2", "olmoe", "granite", "granitemoe", "cohere", "starcoder2", "smollm3",
}

// Classes without rope parameters.
var noRope = []string{"gpt2", "opt"}

// maxSize bounds each size of a configuration, so that a product of two fits an
// int64.
const maxSize = 1 << 31

// build fills the fields of a known class.
func (c *Config) build(k class) {
	if c.Architectures == nil && c.faults[Architecture] == nil {
		c.Architectures = []string{k.model}
	}
	c.fault(Shapes, c.shapes(k))
	c.fault(RopeParameters, c.rope(k))
}

// shapes reads the values that decide how many tensors there are, and how large they are.
func (c *Config) shapes(k class) error {
	r := reader{m: c.Raw}
	c.HiddenSize = r.size("hidden_size", k.hidden)
	c.IntermediateSize = r.size("intermediate_size", k.intermediate)
	c.Layers = r.size("num_hidden_layers", defaultLayers)
	c.Heads = r.size("num_attention_heads", defaultHeads)
	c.VocabSize = r.size("vocab_size", k.vocab)
	c.KVHeads = k.kvHeads
	if v, given := c.Raw["num_key_value_heads"]; given && v != nil {
		c.KVHeads = r.size("num_key_value_heads", 0)
	} else if given || k.kvHeads == 0 {
		c.KVHeads = c.Heads
	}
	if r.err != nil {
		return r.err
	}
	c.HeadDim = c.HiddenSize / c.Heads
	v, given := c.Raw["head_dim"]
	switch {
	case given && (v == nil || v == int64(0)): // vLLM's classes treat 0 and None as missing
	case k.qwen2:
		r.integer("head_dim", 0) // is not used
	case given:
		c.HeadDim = r.size("head_dim", 0)
	case k.headDim != 0:
		c.HeadDim = k.headDim
	}

	c.TieWordEmbeddings = r.flag("tie_word_embeddings")
	switch {
	case k.qwen2:
		c.AttentionBias = true
	case k.qwen3:
		c.AttentionBias = r.bias("attention_bias")
	default:
		attention, bias := r.bias("attention_bias"), r.bias("bias")
		c.OutputBias = attention || bias
		c.AttentionBias = c.OutputBias
		if _, given := c.Raw["qkv_bias"]; given {
			c.AttentionBias = r.bias("qkv_bias")
		}
		c.MLPBias = r.bias("mlp_bias")
	}
	return r.err
}

func (c *Config) rope(k class) error {
	r := reader{m: c.Raw}
	c.MaxPositions = r.size("max_position_embeddings", k.maxPositions)
	if k.phi3 {
		r.integer("original_max_position_embeddings", 0)
	}
	if r.err != nil {
		return r.err
	}
	n := normalizer{text: c.Raw, maxPositions: c.MaxPositions, phi3: k.phi3}
	if k.layerTypes {
		var err error
		if n.labels, err = c.layerTypes(); err != nil {
			return err
		}
	} else if c.Raw["layer_types"] != nil {
		n.flat = true // transformers reads these names in the same step
	}
	rope, err := n.normalize()
	c.Rope = rope
	return err
}

// layerTypes are the names in layer_types. Qwen2Config and Qwen3Config compute them if
// the file has none.
func (c *Config) layerTypes() ([]string, error) {
	r := reader{m: c.Raw}
	layers := r.size("num_hidden_layers", defaultLayers)
	full := r.integer("max_window_layers", 28) // the layers before the first sliding one
	use := r.flag("use_sliding_window")
	window, given := c.Raw["sliding_window"]
	if given && window != nil {
		r.integer("sliding_window", 0)
	}
	if r.err != nil {
		return nil, r.err
	}
	var names []string
	if own := c.Raw["layer_types"]; own != nil {
		list, ok := own.([]any)
		for _, v := range list {
			name, isName := v.(string)
			ok = ok && isName
			if !slices.Contains(names, name) {
				names = append(names, name)
			}
		}
		if !ok {
			return nil, invalid("layer_types", own, "a list of names")
		}
		return names, nil
	}
	sliding := use && (!given || window != nil) && layers > full
	if sliding {
		names = append(names, "sliding_attention")
	}
	if !sliding || full > 0 {
		names = append(names, "full_attention")
	}
	return names, nil
}

// take fills the fields of an unknown class with the file's values that have the
// documented type: nothing is built from them.
func (c *Config) take(text map[string]any) {
	size := func(key string) int64 {
		r := reader{m: text}
		return r.size(key, 0)
	}
	flag := func(m map[string]any, key string) bool {
		r := reader{m: m}
		return r.flag(key)
	}
	c.HiddenSize = size("hidden_size")
	c.IntermediateSize = size("intermediate_size")
	c.Layers = size("num_hidden_layers")
	c.Heads = size("num_attention_heads")
	c.KVHeads = size("num_key_value_heads")
	c.HeadDim = size("head_dim")
	c.VocabSize = size("vocab_size")
	c.TieWordEmbeddings = flag(c.Raw, "tie_word_embeddings")
	c.AttentionBias = flag(text, "attention_bias")
	c.OutputBias = c.AttentionBias
	c.MLPBias = flag(text, "mlp_bias")
	c.fault(RopeParameters, c.takeRope(text))
}

// takeRope accepts rope parameters only if no default of the class can change them: the
// file, or plainRope, must settle each value for which some class has a default.
func (c *Config) takeRope(text map[string]any) error {
	positions := "max_position_embeddings"
	if c.ModelType == "gpt2" {
		positions = "n_positions" // GPT2Config.attribute_map
	}
	r := reader{m: text}
	if c.MaxPositions = r.size(positions, 0); r.err != nil {
		return r.err
	}
	if c.MaxPositions == 0 {
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
	c.Rope = rope
	return err
}
