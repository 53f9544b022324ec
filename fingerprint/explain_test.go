// SPDX-FileCopyrightText: The wcache authors
// SPDX-License-Identifier: MIT

package fingerprint

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/wcache/wcache/weights/hfconfig"
)

// Explain finds no difference between an engine and its own directory, whatever its
// release, rank and options are.
func TestExplainNothing(t *testing.T) {
	for _, name := range names(t, "../testdata/layouts/*.json") {
		l := readLayout(t, name)
		d := openCheckpoint(t, l.CheckpointDir)
		for _, diff := range Explain(l.Key, d) {
			if diff.Field != "dtype" || diff.Blame != Option {
				t.Errorf("%s: %+v", name, diff)
			}
		}
		for _, release := range []string{"0.30.0", "0.31.0", "0.32.0"} {
			o := Options{Release: release, FIPS: true}
			k, err := Compute(d, o)
			if err != nil {
				t.Errorf("%s: %v", name, err)
			}
			if list := Explain(k, d); list != nil {
				t.Errorf("%s for %s: %+v", name, release, list)
			}
		}
	}
}

// W1: which fields tell directories of one checkpoint hash apart, and which don't.
func TestExplain(t *testing.T) {
	type brief struct {
		Field string
		Blame Blame
	}
	llama := layoutKey(t, "llama-tp1r0")
	fp8 := layoutKey(t, "fp8_dynamic-tp1r0")
	for name, tt := range map[string]struct {
		engine Key
		dir    string
		want   []brief
	}{
		"twins":                 {layoutKey(t, "mistral-tp1r0"), "mistral", nil},
		"twin of another class": {layoutKey(t, "mistral-tp1r0"), "llama_tied_extra_head", []brief{{"model_arch", Directory}}},
		"twin of another rope":  {layoutKey(t, "v4cfg_default-tp1r0"), "rope_linear", []brief{{"rope_parameters_hash", Directory}}},
		"another model":         {llama, "llama_f16", []brief{{"checkpoint", Directory}, {"dtype", Option}}},
		"dtype is an option":    {with(t, llama, Field{"dtype", "torch.float16"}), "llama", []brief{{"dtype", Option}}},
		"quantized online":      {with(t, llama, Field{"quantization", "fp8"}, Field{"quant_config_hash", "00000000000000000000000000000000"}), "llama", []brief{{"quantization", Option}, {"quant_config_hash", Option}}},
		"quantized checkpoint":  {llama, "fp8_dynamic", []brief{{"checkpoint", Directory}, {"quantization", Directory}, {"quant_config_hash", Directory}}},
		"other quantization":    {with(t, fp8, Field{"quant_config_hash", "00000000000000000000000000000000"}), "fp8_dynamic", []brief{{"quant_config_hash", Directory}}},
		"model by name":         {with(t, llama, Field{"checkpoint", "org/model"}), "llama", nil},
		"rank and release":      {with(t, llama, Field{"tp_rank", 3}, Field{"vllm_version", "9"}, Field{"new", 1}), "llama", nil},
		"no fields":             {Key{}, "llama", nil},
	} {
		var got []brief
		for _, d := range Explain(tt.engine, openCheckpoint(t, tt.dir)) {
			if d.Why == "" || d.Computed == d.Engine || !d.Certain {
				t.Errorf("%s: %+v", name, d)
			}
			got = append(got, brief{d.Field, d.Blame})
		}
		if diff := cmp.Diff(tt.want, got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
	}
}

// A value that can't be computed from a directory affects only its own field, and is not
// certain: the directory may be the engine's.
func TestExplainUnknown(t *testing.T) {
	const (
		llama = `{"model_type":"llama","architectures":["LlamaForCausalLM"],"dtype":"bfloat16","max_position_embeddings":128`
		rope  = "b2ea54adc564d997d329c64dbb4972f1"
		quant = "487feb0e54ebf9333ab460f1f00d18f4"
	)
	unknown := func(field string, engine any, why string) Difference {
		return Difference{Field: field, Engine: engine, Why: why, Blame: Unknown}
	}
	for config, want := range map[string][]Difference{
		llama + `,"rope_theta":10000.0}`: nil,
		llama + `,"rope_theta":10000.0,"bias":null,"mlp_bias":"no","vocab_size":1e9,"head_dim":{}}`: nil, // in no field of a key
		llama + `,"rope_scaling":7}`: {
			unknown("rope_parameters_hash", rope, "rope_scaling is 7, not an object"),
		},
		llama + `,"rope_scaling":{"rope_type":"yarn","factor":4,"truncate":0}}`: {{
			Field: "rope_parameters_hash", Engine: rope, Computed: "910248e4ca410e767872c72a6ef02bfe", Blame: Directory, Certain: true,
			Why: "rope parameters and max_position_embeddings of config.json, unless the engine has --hf-overrides",
		}},
		`{"model_type":"new","architectures":["LlamaForCausalLM"],"dtype":"bfloat16"}`: {
			unknown("rope_parameters_hash", rope, `"max_position_embeddings" is not in config.json, and the default of model type "new" is not known`),
		},
		`{"model_type":"llama","architectures":"LlamaForCausalLM","dtype":16,"max_position_embeddings":"128","quantization_config":[]}`: {
			unknown("model_arch", "LlamaForCausalLM", `architectures is "LlamaForCausalLM", not a list of names`),
			unknown("dtype", "torch.bfloat16", "dtype is 16, not a name"),
			unknown("quantization", nil, "quantization_config is [], not an object"),
			unknown("quant_config_hash", quant, "quantization_config is [], not an object"),
			unknown("rope_parameters_hash", rope, `max_position_embeddings is "128", not an integer from 1 to 2147483648`),
		},
		llama + `,"rope_theta":10000.0,"quantization_config":{"producer":"modelopt"}}`: {
			unknown("quantization", nil, `producer is "modelopt", not an object`),
			unknown("quant_config_hash", quant, `producer is "modelopt", not an object`),
		},
		llama + `,"rope_theta":10000.0,"quantization_config":{"producer":{"name":"modelopt"},"quantization":7}}`: {
			unknown("quantization", nil, "quantization is 7, not an object"),
			unknown("quant_config_hash", quant, "quantization is 7, not an object"),
		},
		llama + `,"rope_theta":10000.0,"quantization_config":{"producer":{"name":"modelopt"},"quantization":{"quant_algo":8}}}`: {
			unknown("quantization", nil, "ModelOpt's quant_algo 8 is not known"),
			unknown("quant_config_hash", quant, "ModelOpt's quant_algo 8 is not known"),
		},
		llama + `,"rope_theta":10000.0,"quantization_config":{"quant_method":null}}`: {
			unknown("quantization", nil, "quant_method is null, not a string"),
			unknown("quant_config_hash", quant, "quant_method is null, not a string"),
		},
		llama + `,"rope_theta":10000.0,"_rope_type_labels":["main"]}`: {
			unknown("model_arch", "LlamaForCausalLM", `_rope_type_labels is ["main"], by which transformers reads other keys in another way`),
			unknown("dtype", "torch.bfloat16", `_rope_type_labels is ["main"], by which transformers reads other keys in another way`),
			unknown("quantization", nil, `_rope_type_labels is ["main"], by which transformers reads other keys in another way`),
			unknown("quant_config_hash", quant, `_rope_type_labels is ["main"], by which transformers reads other keys in another way`),
			unknown("rope_parameters_hash", rope, `_rope_type_labels is ["main"], by which transformers reads other keys in another way`),
		},
		`{"model_type":"llama","architectures":["LlamaForCausalLM"],"max_position_embeddings":128,"rope_theta":10000.0,"vision_config":{"dtype":"float16"}}`: {
			unknown("dtype", "torch.bfloat16", "config.json has none, and vision_config may decide"),
		},
	} {
		c, err := hfconfig.Parse([]byte(config))
		if err != nil {
			t.Fatal(err)
		}
		d := *openCheckpoint(t, "llama")
		d.Config = c
		if diff := cmp.Diff(want, Explain(layoutKey(t, "llama-tp1r0"), &d)); diff != "" {
			t.Errorf("%s (-want +got):\n%s", config, diff)
		}
	}
}
