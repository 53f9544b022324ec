// SPDX-FileCopyrightText: The wcache authors
// SPDX-License-Identifier: MIT

package fingerprint

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/wcache/wcache/weights/hfconfig"
)

// An engine finds nothing wrong with the directory that it runs on, whatever its
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

// W1: what tells directories of one checkpoint hash apart, and what doesn't.
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
			if d.Why == "" || d.Computed == d.Engine {
				t.Errorf("%s: %+v", name, d)
			}
			got = append(got, brief{d.Field, d.Blame})
		}
		if diff := cmp.Diff(tt.want, got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
	}
}

func TestExplainUnknown(t *testing.T) {
	d := *openCheckpoint(t, "llama")
	c, err := hfconfig.Parse([]byte(`{"model_type":"new","architectures":["LlamaForCausalLM"],"dtype":"bfloat16"}`))
	if err != nil {
		t.Fatal(err)
	}
	d.Config = c
	want := []Difference{{
		Field: "rope_parameters_hash", Engine: "b2ea54adc564d997d329c64dbb4972f1", Blame: Unknown,
		Why: `"max_position_embeddings" is not in config.json, and the default of model type "new" is not known`,
	}}
	if diff := cmp.Diff(want, Explain(layoutKey(t, "llama-tp1r0"), &d)); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}
