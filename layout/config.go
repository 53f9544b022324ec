// SPDX-FileCopyrightText: The wcache authors
// SPDX-License-Identifier: MIT

package layout

import (
	"os"
	"path/filepath"

	"github.com/wcache/wcache/weights"
)

// Limits of a configuration's numbers: far beyond any published model, and low
// enough that no product of two overflows. Products of more are compared with the
// shapes in the files before anything is made of them.
const (
	maxSize      = 1 << 24
	maxLayers    = 1 << 12
	maxPositions = 1 << 28
)

// unlike lists keys of config.json that change what vLLM builds into something
// that this package doesn't build, unless they have one of the given values.
var unlike = []struct {
	key    string
	field  string
	values []any
	reason string
}{
	{"text_config", "model_arch", nil, "multimodal models are not built"},
	{"vision_config", "model_arch", nil, "multimodal models are not built"},
	{"audio_config", "model_arch", nil, "multimodal models are not built"},
	{"thinker_config", "model_arch", nil, "multimodal models are not built"},
	{"speculators_config", "is_draft", nil, "draft models share tensors with their target"},
	{"target_layer_count", "is_draft", nil, "draft models share tensors with their target"},
	{"compression_config", "quantization", nil, quantized},
	{"is_causal", "model_arch", []any{true}, "encoders are not built"},
	{"hidden_act", "model_arch", []any{"silu"}, "vLLM's classes know silu only"},
	{"hidden_activation", "model_arch", []any{"silu"}, "vLLM's classes know silu only"},
	{"qk_norm", "model_arch", []any{false}, "norms of queries and keys are built for Qwen3 only"},
	{"ada_rms_norm_t_cond", "model_arch", []any{false}, "adaptive norms are not built"},
	{"dual_chunk_attention_config", ropeField, nil, "dual chunk attention has several rope caches"},
}

const quantized = "quantized weights depend on the kernel that is chosen for them"

// describe reads a model of the family out of a directory. It refuses everything
// that would change the tensors and isn't built here.
func describe(d *weights.Dir) (*dense, error) {
	c := d.Config
	if c.MistralFormat {
		return nil, refuse("model_arch", "vLLM takes this model's configuration from params.json, which is not read here")
	}
	if len(c.Architectures) != 1 {
		return nil, refuse("model_arch", "config.json names %d architectures", len(c.Architectures))
	}
	m := &dense{arch: c.Architectures[0], rope: c.Rope}
	var ok bool
	if m.class, ok = classes[m.arch]; !ok {
		return nil, refuse("model_arch", "%q is not of the dense family", m.arch)
	}
	if !c.Known || c.ModelType != m.modelType {
		return nil, refuse("model_arch", "%q with a configuration of type %q, not %q", m.arch, c.ModelType, m.modelType)
	}
	if c.Quantization != nil {
		return nil, refuse("quantization", "%s", quantized)
	}
	for _, u := range unlike {
		if v, ok := c.Raw[u.key]; ok && v != nil && !oneOf(v, u.values) {
			return nil, refuse(u.field, "%s in config.json: %s", u.key, u.reason)
		}
	}
	if _, err := os.Stat(filepath.Join(d.Path, "modules.json")); err == nil {
		return nil, refuse("model_arch", "modules.json is there: vLLM serves sentence-transformers models as embedding models, which have no lm_head")
	}
	m.hidden, m.inner, m.layers = c.HiddenSize, c.IntermediateSize, c.Layers
	m.heads, m.kvHeads, m.headDim = c.Heads, c.KVHeads, c.HeadDim
	m.vocab, m.positions = c.VocabSize, c.MaxPositions
	m.qkvBias, m.outBias, m.mlpBias, m.tied = c.AttentionBias, c.OutputBias, c.MLPBias, c.TieWordEmbeddings
	for _, n := range []struct {
		name       string
		value, max int64
	}{
		{"hidden_size", m.hidden, maxSize}, {"intermediate_size", m.inner, maxSize},
		{"num_hidden_layers", m.layers, maxLayers}, {"num_attention_heads", m.heads, maxSize},
		{"num_key_value_heads", m.kvHeads, maxSize}, {"head_dim", m.headDim, maxSize},
		{"vocab_size", m.vocab, maxSize}, {"max_position_embeddings", m.positions, maxPositions},
	} {
		if n.value <= 0 || n.value > n.max {
			return nil, refuse("model_arch", "%s is %d, not between 1 and %d", n.name, n.value, n.max)
		}
	}
	return m, nil
}
