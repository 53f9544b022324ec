// SPDX-FileCopyrightText: The wcache authors
// SPDX-License-Identifier: MIT

package layout

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/wcache/wcache/weights"
	"github.com/wcache/wcache/weights/hfconfig"
)

// Limits of a configuration's numbers: far beyond any published model, and low
// enough that no product of two overflows. Products of more are compared with the
// shapes in the files before anything is made of them.
const (
	maxSize      = 1 << 24
	maxLayers    = 1 << 12
	maxPositions = 1 << 28
)

// unlike lists keys of config.json that make vLLM build something that this package
// doesn't build, unless they have one of the given values. None counts as an absent key,
// unless vLLM reads the key with another default, or transformers refuses None.
var unlike = []struct {
	key    string
	field  string
	values []any
	none   bool // counts as absent
	reason string
}{
	{"text_config", "model_arch", nil, true, multimodal},
	{"text_encoder", "model_arch", nil, true, multimodal},
	{"decoder", "model_arch", nil, true, multimodal},
	{"generator", "model_arch", nil, true, multimodal},
	{"llm_config", "model_arch", nil, true, multimodal},
	{"vision_config", "model_arch", nil, true, multimodal},
	{"audio_config", "model_arch", nil, true, multimodal},
	{"thinker_config", "model_arch", nil, true, multimodal},
	{"per_layer_config", "model_arch", nil, true, "layers that differ from each other are not built"},
	//diag unsupported
	// wcache does not load draft models of speculative decoding. The engine loads them.
	{"speculators_config", "is_draft", nil, true, "draft models share tensors with their target"},
	{"target_layer_count", "is_draft", nil, true, "draft models share tensors with their target"},
	{"compression_config", "quantization", nil, true, quantized},
	{"is_causal", "model_arch", []any{true}, false, "encoders are not built"},
	{"hidden_act", "model_arch", []any{"silu"}, false, "vLLM's classes know silu only"},
	{"hidden_activation", "model_arch", []any{"silu"}, true, "vLLM's classes know silu only"},
	{"qk_norm", "model_arch", []any{false}, true, "norms of queries and keys are built for Qwen3 only"},
	{"ada_rms_norm_t_cond", "model_arch", []any{false}, true, "adaptive norms are not built"},
	{"dual_chunk_attention_config", ropeField, nil, true, "dual chunk attention has several rope caches"},
}

const (
	multimodal = "multimodal models are not built"
	//diag unsupported
	// wcache loads neither quantized checkpoints nor models for an engine with `--quantization`, as
	// the kernel decides how these weights are stored. The engine loads them.

	quantized = "quantized weights depend on the kernel that is chosen for them"
)

// readable refuses a configuration if one of the given parts can't be read for certain.
func readable(c *hfconfig.Config, parts ...hfconfig.Part) error {
	fields := map[hfconfig.Part]string{
		hfconfig.Architecture: "model_arch", hfconfig.Shapes: "model_arch",
		hfconfig.Quantization: "quantization", hfconfig.RopeParameters: ropeField,
	}
	for _, p := range parts {
		if err := c.Check(p); err != nil {
			//diag unsupported REASON
			// A value has another type than documented for its key, such as 0 for false, so it is not
			// certain how the engine reads it. Correct the file, or let the engine load from disk.
			return refuse(fields[p], "config.json: %v", err)
		}
	}
	return nil
}

// describe reads a model of the family from a directory. It refuses everything that would
// change the tensors and isn't built here.
func describe(d *weights.Dir) (*dense, error) {
	c := d.Config
	if c.MistralFormat {
		//diag unsupported
		// The directory is in Mistral's own format, which wcache does not read. The engine loads
		// it; a directory with `config.json` in its place can be cached.
		return nil, refuse("model_arch", "vLLM takes this model's configuration from params.json, which is not read here")
	}
	if err := readable(c, hfconfig.Architecture); err != nil {
		return nil, err
	}
	if len(c.Architectures) != 1 {
		//diag unsupported NUMBER
		// wcache needs exactly one name in `architectures`. The engine loads this model; correct
		// `config.json` if it was edited.
		return nil, refuse("model_arch", "config.json names %d architectures", len(c.Architectures))
	}
	m := &dense{arch: c.Architectures[0], rope: c.Rope}
	var ok bool
	if m.class, ok = classes[m.arch]; !ok {
		//diag unsupported ARCHITECTURE
		// wcache loads Llama, Mistral, Qwen2, Qwen3 and Phi-3. Mixtures of experts, multimodal and
		// other models are loaded by the engine.
		return nil, refuse("model_arch", "%q is not of the dense family", m.arch)
	}
	if !c.Known || c.ModelType != m.modelType {
		//diag unsupported ARCHITECTURE TYPE TYPE
		// The architecture's name belongs to a model of another `model_type`, whose layout differs.
		// The engine loads this model; correct `config.json` if it was edited.
		return nil, refuse("model_arch", "%q with a configuration of type %q, not %q", m.arch, c.ModelType, m.modelType)
	}
	if err := readable(c, hfconfig.Quantization, hfconfig.Shapes, hfconfig.RopeParameters); err != nil {
		return nil, err
	}
	if c.Quantization != nil {
		return nil, refuse("quantization", "%s", quantized)
	}
	for _, u := range unlike {
		v, given := c.Raw[u.key]
		switch {
		case !given || v == nil && u.none || oneOf(v, u.values):
		case u.values == nil:
			//diag unsupported KEY REASON
			// The model has a part that wcache does not load, such as a vision tower; the reason
			// says which. The engine loads this model.
			return nil, refuse(u.field, "%s in config.json: %s", u.key, u.reason)
		default:
			//diag unsupported KEY VALUE REASON
			// The model is of a kind that wcache does not load; the reason says which. The engine
			// loads this model.
			return nil, refuse(u.field, "%s is %s in config.json: %s", u.key, hfconfig.Show(v), u.reason)
		}
	}
	switch _, err := os.Stat(filepath.Join(d.Path, "modules.json")); {
	case err == nil:
		//diag unsupported
		// The engine serves such a model as an embedding model, which has other tensors. The engine
		// loads it; remove `modules.json` if the model is to generate text.
		return nil, refuse("model_arch", "modules.json is there: vLLM serves sentence-transformers models as embedding models, which have no lm_head")
	case !errors.Is(err, fs.ErrNotExist):
		return nil, fmt.Errorf("look for modules.json: %w", err)
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
			//diag unsupported KEY NUMBER NUMBER
			// No model of these architectures has such a size. `config.json` is damaged or was
			// edited; fetch it again.
			return nil, refuse("model_arch", "%s is %d, not between 1 and %d", n.name, n.value, n.max)
		}
	}
	return m, nil
}
