// SPDX-FileCopyrightText: The wcache authors
// SPDX-License-Identifier: MIT

package layout

import (
	"errors"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/wcache/wcache/tensor"
)

func TestRefusedConfig(t *testing.T) {
	set := func(key string, value any) func(*model) { return func(m *model) { m.config[key] = value } }
	tests := []struct {
		name   string
		base   string
		change func(*model)
		rank   Rank
		field  string
		reason string
	}{
		{"other architecture", "llama", set("architectures", []string{"LlamaModel"}), Rank{}, "model_arch", `"LlamaModel"`},
		{"two architectures", "llama", set("architectures", []string{"LlamaForCausalLM", "MistralForCausalLM"}), Rank{}, "model_arch", "2 architectures"},
		{"another type's config", "llama", set("model_type", "mistral"), Rank{}, "model_arch", `of type "mistral"`},
		{"unknown type", "llama", set("model_type", "telechat3"), Rank{}, "model_arch", "telechat3"},
		{"multimodal", "llama", set("vision_config", map[string]any{}), Rank{}, "model_arch", "vision_config"},
		{"quantized", "llama", set("quantization_config", map[string]any{"quant_method": "gptq"}), Rank{}, "quantization", "kernel"},
		{"compressed", "llama", set("compression_config", map[string]any{}), Rank{}, "quantization", "compression_config"},
		{"modelopt", "llama", func(m *model) { m.files["hf_quant_config.json"] = `{"quantization": {}}` }, Rank{}, "quantization", "kernel"},
		{"embedding model", "qwen3", func(m *model) { m.files["modules.json"] = "[]" }, Rank{}, "model_arch", "modules.json"},
		{"Mistral's config", "mistral", func(m *model) { m.files["params.json"], m.weights = "{}", "consolidated.safetensors" }, Rank{}, "model_arch", "params.json"},
		{"draft", "llama", set("speculators_config", map[string]any{}), Rank{}, "is_draft", "speculators_config"},
		{"encoder", "qwen2", set("is_causal", false), Rank{}, "model_arch", "is_causal"},
		{"activation", "llama", set("hidden_act", "gelu"), Rank{}, "model_arch", "hidden_act"},
		{"norms of Qwen2", "qwen2", set("qk_norm", true), Rank{}, "model_arch", "qk_norm"},
		{"adaptive norms", "mistral", set("ada_rms_norm_t_cond", true), Rank{}, "model_arch", "ada_rms_norm_t_cond"},
		{"dual chunk", "qwen3", set("dual_chunk_attention_config", map[string]any{"chunk_size": 8}), Rank{}, ropeField, "dual_chunk_attention_config"},
		{"rope", "llama", set("rope_parameters", map[string]any{"rope_type": "ntk", "rope_theta": 1e4, "factor": 2.0}), Rank{}, ropeField, `"ntk"`},
		{"huge", "llama", set("vocab_size", 1<<25), Rank{}, "model_arch", "vocab_size"},
		{"heads over kv heads", "llama", set("num_key_value_heads", 3), Rank{}, "model_arch", "3 key-value heads"},
		{"heads over ranks", "llama", nil, Rank{TPSize: 3}, "tp_size", "8 heads"},
		{"kv heads over ranks", "llama", set("num_attention_heads", 12), Rank{TPSize: 6}, "tp_size", "4 key-value heads over 6"},
		{"inner size over ranks", "llama", set("intermediate_size", 97), Rank{TPSize: 2}, "tp_size", "97"},
		{"vocabulary over ranks", "llama", func(m *model) {
			m.config["num_attention_heads"], m.config["num_key_value_heads"] = 3, 3
		}, Rank{TPSize: 3}, "tp_size", "padded to 320"},
		{"stages without layers", "llama", nil, Rank{PPSize: 3}, "pp_size", "2 layers for 3 stages"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			m := goldenModel(t, tt.base)
			if tt.change != nil {
				tt.change(m)
			}
			_, err := New(m.open(t), ranked(bf16, tt.rank))
			wantReason(t, err, tt.field, tt.reason)
		})
	}
}

func wantReason(t *testing.T, err error, field, reason string) {
	t.Helper()
	var u *Unsupported
	if !errors.As(err, &u) || u.Field != field || !strings.Contains(u.Reason, reason) {
		t.Errorf("got %v, want a refusal by %s that has %q", err, field, reason)
	}
}

// TestRefusedTensors: a tensor of another shape or type, an extra tensor, a missing one.
func TestRefusedTensors(t *testing.T) {
	const q, down = "model.layers.1.self_attn.q_proj.weight", "model.layers.0.mlp.down_proj.weight"
	add := func(name string, s stored) func(*model) { return func(m *model) { m.tensors[name] = s } }
	tests := []struct {
		name   string
		base   string
		change func(*model)
		reason string
	}{
		{"shape", "llama", add(q, zeros(tensor.BF16, 64, 65)), `"` + q + `" of model.safetensors has shape [64 65], not [64 64]`},
		{"transposed", "llama", add(down, zeros(tensor.BF16, 96, 64)), "has shape [96 64], not [64 96]"},
		{"dimensions", "llama", add(q, zeros(tensor.BF16, 64*64)), "has shape [4096]"},
		{"no elements", "llama", add(q, zeros(tensor.BF16, 0, 64)), "has shape [0 64]"},
		{"vocabulary", "llama", add("lm_head.weight", zeros(tensor.BF16, 320, 64)), "has shape [320 64], not [259 64]"},
		{"integers", "llama", add(q, zeros(tensor.I8, 64, 64)), "has type I8"},
		{"float8", "llama", add(q, zeros(tensor.F8E4M3, 64, 64)), "has type F8_E4M3"},
		{"missing", "llama", func(m *model) { delete(m.tensors, q) }, `"` + q + `" is missing`},
		{"missing bias", "llama_bias", func(m *model) { delete(m.tensors, "model.layers.0.self_attn.k_proj.bias") }, "is missing"},
		{"unknown", "llama", add("model.layers.0.self_attn.sinks", zeros(tensor.BF16, 8)), "no module of LlamaForCausalLM has it"},
		{"layer too many", "llama", add("model.layers.2.input_layernorm.weight", zeros(tensor.BF16, 64)), "no module"},
		{"layer of another spelling", "llama", func(m *model) { m.rename(q, strings.Replace(q, "1", "01", 1)) }, "no module"},
		{"module of the top in a layer", "llama", add("model.layers.0.lm_head.weight", zeros(tensor.BF16, 1)), "no module"},
		{"module of a layer at the top", "llama", add("self_attn.q_proj.weight", zeros(tensor.BF16, 1)), "no module"},
		{"KV cache scale", "llama", add("model.layers.0.self_attn.attn.k_scale", zeros(tensor.F32)), "scales"},
		{"old KV cache scale", "llama", add("model.layers.0.self_attn.kv_scale", zeros(tensor.F32)), "scales"},
		{"weight scale", "llama", add("model.layers.0.mlp.down_proj.weight_scale", zeros(tensor.F32)), "scales"},
		{"stacked and not", "llama", add("model.layers.0.self_attn.qkv_proj.weight", zeros(tensor.BF16, 128, 64)), "are the same"},
		{"stacked in Qwen", "qwen3", add("model.layers.0.mlp.gate_up_proj.weight", zeros(tensor.BF16, 192, 64)), "no module"},
		{"Mistral's names", "llama", add("layers.0.attention.wq.weight", zeros(tensor.BF16, 64, 64)), "MistralForCausalLM only"},
		{"both names", "mistral", add("layers.0.attention.wq.weight", zeros(tensor.BF16, 64, 64)), "are the same"},
		{"Mistral's bias", "mistral", add("layers.0.attention.wq.bias", zeros(tensor.BF16, 64)), "no module"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			m := goldenModel(t, tt.base)
			tt.change(m)
			_, err := New(m.open(t), bf16)
			wantReason(t, err, "checkpoint", tt.reason)
		})
	}
}

// TestDropped: tensors that vLLM drops change nothing, and are noted.
func TestDropped(t *testing.T) {
	m := goldenModel(t, "llama")
	plain, err := New(m.open(t), bf16)
	if err != nil {
		t.Fatal(err)
	}
	m.tensors["model.layers.0.self_attn.rotary_emb.inv_freq"] = zeros(tensor.F32, 4)
	m.tensors["model.layers.0.self_attn.o_proj.bias"] = zeros(tensor.BF16, 3)
	m.tensors["model.layers.1.self_attn.q_proj.bias"] = zeros(tensor.I32, 1)
	got, err := New(m.open(t), bf16)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(plain.Table, got.Table); diff != "" {
		t.Errorf("table (-without +with):\n%s", diff)
	}
	want := []string{`3 tensors that vLLM drops, such as "model.layers.0.self_attn.o_proj.bias"`}
	if diff := cmp.Diff(want, got.Notes); diff != "" {
		t.Errorf("notes (-want +got):\n%s", diff)
	}
}

// mapKey is a key of a few fields.
type mapKey map[string]any

func (k mapKey) Get(name string) (any, bool) { v, ok := k[name]; return v, ok }

func TestOptionsOf(t *testing.T) {
	old := mapKey{"dtype": "torch.float16", "tp_size": int64(4), "tp_rank": int64(3), "quantization": nil, "vllm_version": "0.30.0"}
	with := func(field string, value any) mapKey {
		k := mapKey{
			"dtype": "torch.bfloat16", "tp_size": int64(2), "tp_rank": int64(1), "pp_size": int64(2), "pp_rank": int64(1),
			"quantization": nil, "kv_cache_dtype": "auto", "is_draft": false, "dp_size": int64(1), "dp_rank": int64(0),
			"linear_backend": "auto", "vllm_version": "0.33.0",
		}
		if field != "" {
			k[field] = value
		}
		return k
	}
	tests := []struct {
		name  string
		key   mapKey
		want  Options
		field string
	}{
		{"old", old, Options{Rank{4, 3, 1, 0}, tensor.F16, "0.30.0", false}, ""},
		{"new", with("", nil), Options{Rank{2, 1, 2, 1}, tensor.BF16, "0.33.0", false}, ""},
		{"build for CUDA", with("vllm_version", "0.33.0+cu129"), Options{Rank{2, 1, 2, 1}, tensor.BF16, "0.33.0+cu129", false}, ""},
		{"build for the CPU", with("vllm_version", "0.33.0+cpu"), Options{Rank{2, 1, 2, 1}, tensor.BF16, "0.33.0+cpu", false}, ""},
		{"build for ROCm", with("vllm_version", "0.33.0+rocm700"), Options{}, "vllm_version"},
		{"patched build", with("vllm_version", "0.33.0+cu130.ours"), Options{}, "vllm_version"},
		{"patch release", with("vllm_version", "0.33.1"), Options{}, "vllm_version"},
		{"next release", with("vllm_version", "0.34.0"), Options{}, "vllm_version"},
		{"no release", with("vllm_version", nil), Options{}, "vllm_version"},
		{"stages of an old release", with("vllm_version", "0.31.0"), Options{}, "pp_size"},
		{"draft", with("is_draft", true), Options{}, "is_draft"},
		{"quantized", with("quantization", "fp8"), Options{}, "quantization"},
		{"KV cache", with("kv_cache_dtype", "fp8"), Options{}, "kv_cache_dtype"},
		{"data-parallel", with("dp_size", int64(2)), Options{}, "dp_size"},
		{"backend", with("linear_backend", "triton"), Options{}, "linear_backend"},
		{"backend of another type", with("linear_backend", []any{"auto"}), Options{}, "linear_backend"},
		{"element type", with("dtype", "torch.float64"), Options{}, "dtype"},
		{"no element type", with("dtype", "bfloat16"), Options{}, "dtype"},
		{"rank", with("tp_rank", int64(2)), Options{}, "tp_rank"},
		{"stage", with("pp_rank", int64(2)), Options{}, "pp_rank"},
		{"size", with("tp_size", int64(1<<40)), Options{}, "tp_size"},
		{"size below zero", with("pp_size", int64(-1)), Options{}, "pp_size"},
		{"size of another type", with("tp_size", "2"), Options{}, "tp_size"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got, err := OptionsOf(tt.key)
			if tt.field != "" {
				wantRefusal(t, err, tt.field)
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(tt.want, got); diff != "" {
				t.Errorf("options (-want +got):\n%s", diff)
			}
		})
	}
}
