// SPDX-FileCopyrightText: The wcache authors
// SPDX-License-Identifier: MIT

package hfconfig

import (
	"errors"
	"math"
	"math/big"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// TestCheck: an uncertain value is an error of its part, and the other parts are
// readable. layout's test has the odd values of each key, with what vLLM makes of them.
func TestCheck(t *testing.T) {
	const llama = `{"model_type":"llama","architectures":["LlamaForCausalLM"],"dtype":"float16",`
	all := func(text string) map[Part]string {
		return map[Part]string{Architecture: text, ElementType: text, Quantization: text, RopeParameters: text, Shapes: text}
	}
	for text, want := range map[string]map[Part]string{
		llama + `"bias":null,"mlp_bias":null,"qkv_bias":null,"rope_scaling":null,"quantization_config":null}`: {},
		llama + `"hidden_size":0}`:                                                                        {Shapes: "hidden_size is 0, not an integer from 1 to 2147483648"},
		llama + `"num_attention_heads":null}`:                                                             {Shapes: "num_attention_heads is null, not an integer from 1 to 2147483648"},
		llama + `"vocab_size":32000.0}`:                                                                   {Shapes: "vocab_size is 32000.0, not an integer from 1 to 2147483648"},
		llama + `"vocab_size":"32000"}`:                                                                   {Shapes: `vocab_size is "32000", not an integer from 1 to 2147483648`},
		llama + `"vocab_size":32000,"vocab_size":true}`:                                                   {Shapes: "vocab_size is true, not an integer from 1 to 2147483648"},
		llama + `"vocab_size":1` + strings.Repeat("0", 60) + `}`:                                          {Shapes: "vocab_size is 1" + strings.Repeat("0", 39) + "…, not an integer from 1 to 2147483648"},
		llama + `"mlp_bias":1}`:                                                                           {Shapes: "mlp_bias is 1, not true or false"},
		llama + `"attention_bias":true,"bias":"no"}`:                                                      {Shapes: `bias is "no", not true or false`},
		llama + `"tie_word_embeddings":null}`:                                                             {Shapes: "tie_word_embeddings is null, not true or false"},
		llama + `"max_position_embeddings":{"__float__":"NaN"}}`:                                          {RopeParameters: "max_position_embeddings is NaN, not an integer from 1 to 2147483648"},
		llama + `"rope_scaling":"linear"}`:                                                                {RopeParameters: `rope_scaling is "linear", not an object`},
		llama + `"rope_parameters":[]}`:                                                                   {RopeParameters: "rope_parameters is [], not an object"},
		llama + `"rope_scaling":{"type":"yarn"},"rope_parameters":1}`:                                     {RopeParameters: "rope_parameters is 1, not an object"},
		llama + `"rope_scaling":{"rope_type":"yarn","type":"linear"}}`:                                    {RopeParameters: `type is "linear", not "yarn" as rope_type`},
		llama + `"rope_scaling":{"rope_type":["yarn"],"type":{}}}`:                                        {RopeParameters: `rope_type is ["yarn"], not a string`},
		llama + `"rope_scaling":{"rope_type":"mrope"}}`:                                                   {RopeParameters: `rope_type "mrope" without mrope_section`},
		llama + `"rope_scaling":{"rope_type":"telechat3-yarn","factor":2}}`:                               {RopeParameters: `rope_type "telechat3-yarn" is not supported`},
		llama + `"layer_types":["full_attention"],"rope_parameters":{"full_attention":{"rope_theta":2}}}`: {RopeParameters: `rope parameters have the object "full_attention", and the class of this model no layer types`},
		`{"model_type":"phi3","dtype":"float16","original_max_position_embeddings":4096.0}`:               {RopeParameters: "original_max_position_embeddings is 4096.0, not an integer"},
		`{"model_type":"qwen2","dtype":"float16","rope_parameters":{"full_attention":7}}`:                 {RopeParameters: "full_attention is 7, not an object of rope parameters"},
		`{"model_type":"qwen2","dtype":"float16","rope_parameters":{"full_attention":{},"x":{}}}`:         {RopeParameters: `rope parameters have "x" beside those of layer types`},
		`{"model_type":"qwen2","dtype":"float16","layer_types":"full_attention"}`:                         {RopeParameters: `layer_types is "full_attention", not a list of names`},
		`{"model_type":"qwen2","dtype":"float16","use_sliding_window":1}`:                                 {RopeParameters: "use_sliding_window is 1, not true or false"},
		`{"model_type":"new","dtype":"float16","max_position_embeddings":1.5}`:                            {RopeParameters: "max_position_embeddings is 1.5, not an integer from 1 to 2147483648"},
		`{"model_type":"new","text_config":{"dtype":7,"max_position_embeddings":9,"rope_theta":9}}`: {
			ElementType:    "dtype is 7, not a name",
			RopeParameters: `"rope_type" is not in config.json, and the default of model type "new" is not known`,
		},
		`{"model_type":"new","text_config":7}`: {
			ElementType: "text_config is 7, not an object", RopeParameters: "text_config is 7, not an object",
		},
		`{"model_type":"new","dtype":"float16","decoder":{},"generator":{}}`: {RopeParameters: "both decoder and generator describe the language model"},
		`{"model_type":["llama"],"dtype":"float16"}`: {
			Architecture:   `model_type is ["llama"], not a name`,
			RopeParameters: `"max_position_embeddings" is not in config.json, and the default of model type "" is not known`,
		},
		`{"model_type":"llama","architectures":"LlamaForCausalLM","torch_dtype":"half"}`: {Architecture: `architectures is "LlamaForCausalLM", not a list of names`},
		`{"model_type":"llama","architectures":["LlamaForCausalLM",1],"dtype":null}`:     {Architecture: `architectures is ["LlamaForCausalLM", 1], not a list of names`},
		`{"model_type":"llama","dtype":"","torch_dtype":"float16"}`:                      {ElementType: `dtype is "", not a name`},
		llama + `"quantization_config":false}`:                                           {Quantization: "quantization_config is false, not an object"},
		llama + `"attribute_map":{"hidden_size":"n_embd"}}`:                              all(`attribute_map is {"hidden_size": "n_embd"}, by which transformers reads other keys in another way`),
		llama + `"configuration_files":["config.4.0.0.json","config.5.0.0.json"]}`:       all(`configuration_files is ["config.4.0.0.json", "config.5.0.0.json…, by which transformers reads other keys in another way`),
	} {
		c, err := Parse([]byte(text))
		if err != nil {
			t.Errorf("%s: %v", text, err)
			continue
		}
		got := make(map[Part]string)
		for p := range Part(parts) {
			if err := c.Check(p); err != nil {
				got[p] = err.Error()
			}
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", text, diff)
		}
	}
}

func TestInvalid(t *testing.T) {
	c, err := Parse([]byte(`{"model_type":"mistral","hidden_size":"4096"}`))
	if err != nil {
		t.Fatal(err)
	}
	var got *Invalid
	if !errors.As(c.Check(Shapes), &got) {
		t.Fatalf("got %v", c.Check(Shapes))
	}
	if diff := cmp.Diff(&Invalid{Key: "hidden_size", Value: `"4096"`, Want: "an integer from 1 to 2147483648"}, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func TestShow(t *testing.T) {
	huge, _ := new(big.Int).SetString("1"+strings.Repeat("0", 30), 10)
	deep := any("end")
	for range 100 {
		deep = []any{deep}
	}
	for want, v := range map[string]any{
		"null": nil, "true": true, "-3": int64(-3), "1" + strings.Repeat("0", 30): huge,
		"32.0": 32.0, "0.1": 0.1, "1e+20": 1e20, "NaN": math.NaN(), "Infinity": math.Inf(1), "-Infinity": math.Inf(-1),
		`"a\n\x1b\"é"`: "a\n\x1b\"é", "[]": []any{}, "{}": map[string]any{},
		`{"a": [1, null], "b": {"c": 1.0}}`: map[string]any{"b": map[string]any{"c": 1.0}, "a": []any{int64(1), nil}},
		`"` + strings.Repeat("é", 19) + "…": strings.Repeat("é", 50),
		strings.Repeat("[", 40) + "…":       deep,
	} {
		if got := Show(v); got != want {
			t.Errorf("Show(%v) = %s, want %s", v, got, want)
		}
	}
}
