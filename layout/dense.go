// SPDX-FileCopyrightText: The wcache authors
// SPDX-License-Identifier: MIT

package layout

import (
	"strings"

	"github.com/wcache/wcache/weights/hfconfig"
)

// class holds the differences between the classes of the dense family. In all other
// respects they are LlamaForCausalLM of vllm/model_executor/models/llama.py: mistral.py
// and phi3.py derive from it, qwen2.py and qwen3.py repeat it.
type class struct {
	modelType string // the config's class that its attributes come from
	headNorms bool   // q_norm and k_norm
	fused     bool   // also reads checkpoints with qkv_proj and gate_up_proj
	native    bool   // also reads Mistral's own tensor names
}

// classes are vLLM's names for the models that this package builds
// (_TEXT_GENERATION_MODELS in models/registry.py). Other names that vLLM maps to the same
// classes have their own configurations.
var classes = map[string]class{
	"LlamaForCausalLM":   {modelType: "llama", fused: true},
	"LLaMAForCausalLM":   {modelType: "llama", fused: true},
	"MistralForCausalLM": {modelType: "mistral", fused: true, native: true},
	"Phi3ForCausalLM":    {modelType: "phi3", fused: true},
	"Qwen2ForCausalLM":   {modelType: "qwen2"},
	"Qwen3ForCausalLM":   {modelType: "qwen3", headNorms: true},
}

// attrs are the flags of vLLM's EAGLE interface, which all these classes have.
var attrs = [...]string{"has_own_lm_head", "has_own_embed_tokens"}

// scales are an attention layer's buffers in their order. Without quantization
// vLLM leaves each at 1 (set_default_quant_scales in layers/attention).
var scales = [...]string{"_k_scale", "_v_scale", "_q_scale", "_prob_scale"}

// dense is a model of the family with its numbers.
type dense struct {
	class
	arch                                      string
	hidden, inner, layers                     int64
	heads, kvHeads, headDim, vocab, positions int64
	qkvBias, outBias, mlpBias, tied           bool
	rope                                      hfconfig.Rope
}

// cut says how ranks share a module's weight.
type cut int

const (
	uncut     cut = iota
	byRows        // of each part, in its units
	byColumns     // a bias is whole on each rank then
	byVocab       // by rows, padded
)

// module is a module of vLLM that has a weight, and perhaps a bias.
type module struct {
	name  string
	parts []part // of the checkpoint, stacked by rows in this order
	in    int64  // columns of the weight, 0 for a vector
	cut   cut
	bias  bool
}

// part is a module of the checkpoint, beside its module in the tree of names.
type part struct {
	name  string
	rows  int64
	units int64 // equal runs of rows that are never split
}

// single is a module that is the same in the checkpoint and in vLLM.
func single(name string, rows, in int64, c cut, bias bool) module {
	return module{name, []part{{name[strings.LastIndexByte(name, '.')+1:], rows, rows}}, in, c, bias}
}

// layer lists the modules of a decoder layer in vLLM's order.
func (m *dense) layer() []module {
	q, kv := m.heads*m.headDim, m.kvHeads*m.headDim
	list := []module{
		{"self_attn.qkv_proj", []part{{"q_proj", q, m.heads}, {"k_proj", kv, m.kvHeads}, {"v_proj", kv, m.kvHeads}}, m.hidden, byRows, m.qkvBias},
		single("self_attn.o_proj", m.hidden, q, byColumns, m.outBias),
	}
	if m.headNorms {
		list = append(list,
			single("self_attn.q_norm", m.headDim, 0, uncut, false),
			single("self_attn.k_norm", m.headDim, 0, uncut, false))
	}
	return append(list,
		module{"mlp.gate_up_proj", []part{{"gate_proj", m.inner, m.inner}, {"up_proj", m.inner, m.inner}}, m.hidden, byRows, m.mlpBias},
		single("mlp.down_proj", m.hidden, m.inner, byColumns, m.mlpBias),
		single("input_layernorm", m.hidden, 0, uncut, false),
		single("post_attention_layernorm", m.hidden, 0, uncut, false))
}

// The modules outside of the layers.
func (m *dense) embedding() module {
	return single("model.embed_tokens", m.vocab, m.hidden, byVocab, false)
}
func (m *dense) norm() module { return single("model.norm", m.hidden, 0, uncut, false) }
func (m *dense) head() module { return single("lm_head", m.vocab, m.hidden, byVocab, false) }

// fits checks, by the key's field, vLLM's assertions about a model's numbers before it
// splits them over ranks.
func (m *dense) fits(r Rank) error {
	tp := int64(r.TPSize)
	switch {
	case m.heads%m.kvHeads != 0:
		//diag unsupported NUMBER NUMBER
		// `num_attention_heads` has to be a multiple of `num_key_value_heads`. `config.json` is
		// damaged or was edited; fetch it again.
		return refuse("model_arch", "%d heads over %d key-value heads", m.heads, m.kvHeads)
	case m.heads%tp != 0:
		//diag unsupported NUMBER NUMBER
		// The tensor-parallel size does not divide the number of attention heads. Start the engine
		// with a size that does.
		return refuse("tp_size", "%d heads don't divide by %d", m.heads, tp)
	case m.kvHeads >= tp && m.kvHeads%tp != 0, m.kvHeads < tp && tp%m.kvHeads != 0:
		//diag unsupported NUMBER NUMBER
		// The tensor-parallel size neither divides the number of key-value heads nor is a multiple
		// of it. Start the engine with a size that does or is.
		return refuse("tp_size", "%d key-value heads over %d ranks", m.kvHeads, tp)
	case m.inner%tp != 0:
		//diag unsupported NUMBER NUMBER
		// The tensor-parallel size does not divide `intermediate_size` of the model. Start the
		// engine with a size that does.
		return refuse("tp_size", "intermediate size %d doesn't divide by %d", m.inner, tp)
	case padVocab(m.vocab)%tp != 0:
		//diag unsupported NUMBER NUMBER NUMBER
		// The tensor-parallel size does not divide the padded vocabulary. Start the engine with a
		// size that does.
		return refuse("tp_size", "a vocabulary of %d, padded to %d, doesn't divide by %d", m.vocab, padVocab(m.vocab), tp)
	case m.layers < int64(r.PPSize):
		//diag unsupported NUMBER NUMBER
		// The model has fewer layers than pipeline stages. Start the engine with a smaller
		// pipeline-parallel size.
		return refuse("pp_size", "%d layers for %d stages", m.layers, r.PPSize)
	}
	return nil
}
