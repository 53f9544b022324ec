// SPDX-FileCopyrightText: The wcache authors
// SPDX-License-Identifier: MIT

package fingerprint

import (
	"encoding/json"
	"errors"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/wcache/wcache/weights"
	"github.com/wcache/wcache/weights/hfconfig"
)

// layout is the part of a file in testdata/layouts that describes a key.
type layout struct {
	CheckpointDir  string         `json:"checkpoint_dir"`
	TPSize         int            `json:"tp_size"`
	TPRank         int            `json:"tp_rank"`
	PPSize         int            `json:"pp_size"`
	PPRank         int            `json:"pp_rank"`
	EngineArgs     map[string]any `json:"engine_args"`
	Key            Key            `json:"key"`
	CheckpointHash string         `json:"checkpoint_hash"`
	HashPayloads   []string       `json:"hash_payloads"`
}

func readLayout(t testing.TB, name string) layout {
	t.Helper()
	b, err := os.ReadFile(filepath.Join("..", "testdata", "layouts", name+".json"))
	if err != nil {
		t.Fatal(err)
	}
	var l layout
	if err := json.Unmarshal(b, &l); err != nil {
		t.Fatalf("%s: %v", name, err)
	}
	return l
}

func layoutKey(t testing.TB, name string) Key { return readLayout(t, name).Key }

func openCheckpoint(t testing.TB, name string) *weights.Dir {
	t.Helper()
	d, err := weights.Open(filepath.Join("..", "testdata", "checkpoints", name))
	if err != nil {
		t.Fatal(err)
	}
	return d
}

// options are the options of the engine that a layout was recorded from.
func (l layout) options(release string) Options {
	o := Options{Release: release, TPSize: l.TPSize, TPRank: l.TPRank, PPSize: l.PPSize, PPRank: l.PPRank}
	for _, name := range slices.Sorted(maps.Keys(l.EngineArgs)) {
		if v := l.EngineArgs[name]; name == "dtype" {
			o.DType = v.(string)
		} else {
			o.Set = append(o.Set, Field{name, v})
		}
	}
	return o
}

func names(t *testing.T, pattern string) []string {
	t.Helper()
	paths, err := filepath.Glob(pattern)
	if err != nil || len(paths) == 0 {
		t.Fatalf("no %s", pattern)
	}
	for i, path := range paths {
		paths[i] = strings.TrimSuffix(filepath.Base(path), ".json")
	}
	return paths
}

func TestComputeLayouts(t *testing.T) {
	for _, name := range names(t, "../testdata/layouts/*.json") {
		l := readLayout(t, name)
		d := openCheckpoint(t, l.CheckpointDir)
		k, err := Compute(d, l.options(""))
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		if diff := cmp.Diff(l.Key.Fields(), k.Fields()); diff != "" {
			t.Errorf("%s (-vLLM +Compute):\n%s", name, diff)
		}
		quant, err1 := QuantPayload(d.Config)
		rope, err2 := RopePayload(d.Config)
		if diff := cmp.Diff(l.HashPayloads, []string{quant, rope}); diff != "" || err1 != nil || err2 != nil {
			t.Errorf("%s: %v, %v, payloads (-vLLM +ours):\n%s", name, err1, err2, diff)
		}
	}
}

// recordedKey is the key of a message in testdata/wire.
func recordedKey(t *testing.T, name string) (Key, bool) {
	t.Helper()
	b, err := os.ReadFile(filepath.Join("..", "testdata", "wire", name+".json"))
	if err != nil {
		t.Fatal(err)
	}
	text := strings.ReplaceAll(string(b), "{\n    \"__tuple__\": []\n   }", "[]")
	var m struct {
		Fields struct {
			Config json.RawMessage `json:"cache_config"`
			Key    json.RawMessage `json:"cache_key"`
		} `json:"fields"`
	}
	if err := json.Unmarshal([]byte(text), &m); err != nil {
		t.Fatal(err)
	}
	raw := m.Fields.Key
	if raw == nil {
		raw = m.Fields.Config
	}
	var k Key
	if strings.Contains(string(raw), "__tuple__") {
		return k, false // an engine without options sends other values
	}
	if err := json.Unmarshal(raw, &k); err != nil {
		t.Fatalf("%s: %v", name, err)
	}
	return mustKey(t, k.Fields()[1:]...), true // without __class__
}

// Every release's fields, and both forms of quant_config_hash.
func TestComputeWire(t *testing.T) {
	releases := make(map[string]int)
	for _, name := range names(t, "../testdata/wire/*-get_state-*.json") {
		release, rest, _ := strings.Cut(name, "-get_state-")
		if rest == "reload" {
			rest = "llama-tp1r0"
		}
		want, ok := recordedKey(t, name)
		if !ok {
			continue
		}
		l := readLayout(t, rest)
		k, err := Compute(openCheckpoint(t, l.CheckpointDir), l.options(release))
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		if diff := cmp.Diff(want.Fields(), k.Fields()); diff != "" {
			t.Errorf("%s (-vLLM +Compute):\n%s", name, diff)
		}
		releases[release]++
	}
	if diff := cmp.Diff(map[string]int{"0.30.0": 3, "0.31.0": 2, "0.32.0": 4, "0.33.0": 13}, releases); diff != "" {
		t.Errorf("messages compared (-want +got):\n%s", diff)
	}
}

// The texts of hfconfig's recorded configurations.
func TestPayloads(t *testing.T) {
	b, err := os.ReadFile("../weights/hfconfig/testdata/configs.json")
	if err != nil {
		t.Fatal(err)
	}
	var list []struct {
		Config string
		Want   struct{ QuantPayload, RopePayload string }
	}
	if err := json.Unmarshal(b, &list); err != nil {
		t.Fatal(err)
	}
	for _, r := range list {
		c, err := hfconfig.Parse([]byte(r.Config))
		if err != nil {
			t.Fatal(err)
		}
		if got, err := QuantPayload(c); got != r.Want.QuantPayload {
			t.Errorf("%s: %s, %v; want %s", r.Config, got, err, r.Want.QuantPayload)
		}
		var u *Uncomputable
		got, err := RopePayload(c)
		if errors.As(err, &u) && !c.Known && u.Field == "rope_parameters_hash" {
			continue
		}
		if got != r.Want.RopePayload {
			t.Errorf("%s: %s, %v; want %s", r.Config, got, err, r.Want.RopePayload)
		}
	}
}

func TestComputeFIPS(t *testing.T) {
	k, err := Compute(openCheckpoint(t, "llama"), Options{FIPS: true})
	if err != nil {
		t.Fatal(err)
	}
	want := map[string]string{ // echo -n TEXT | sha256sum
		"quant_config_hash":    "b300ad813498",
		"rope_parameters_hash": "ab9d9f860873",
	}
	for name, digits := range want {
		if got := k.Str(name); len(got) != 64 || got[:12] != digits {
			t.Errorf("%s is %s", name, got)
		}
	}
	if len(k.Str("checkpoint")) != 64 {
		t.Errorf("checkpoint is %s", k.Str("checkpoint"))
	}
}

func TestComputeRefuses(t *testing.T) {
	d := openCheckpoint(t, "llama")
	for name, tt := range map[string]struct {
		config  string // in place of llama's, if any
		options Options
		field   string
	}{
		"release":              {options: Options{Release: "0.34.0"}, field: "vllm_version"},
		"no release":           {options: Options{Release: "dev"}, field: "vllm_version"},
		"stages in 0.31":       {options: Options{Release: "0.31.0", PPSize: 2}, field: "pp_size"},
		"option in 0.32":       {options: Options{Release: "0.32.0", Set: []Field{{"moe_backend", "auto"}}}, field: "moe_backend"},
		"no option":            {options: Options{Set: []Field{{"checkpoint", "x"}}}, field: "checkpoint"},
		"dtype option":         {options: Options{DType: "float8"}, field: "dtype"},
		"class with no theta":  {config: `{"model_type":"mixtral","architectures":["MixtralForCausalLM"],"dtype":"float16","max_position_embeddings":9}`, field: "rope_parameters_hash"},
		"class with no length": {config: `{"model_type":"mixtral","architectures":["MixtralForCausalLM"],"dtype":"float16","rope_theta":9}`, field: "rope_parameters_hash"},
		"unknown class":        {config: `{"model_type":"new","architectures":["NewForCausalLM"],"dtype":"float16","rope_theta":9,"max_position_embeddings":9}`, field: "rope_parameters_hash"},
		"no architectures":     {config: `{"model_type":"new","rope_theta":9,"max_position_embeddings":9}`, field: "model_arch"},
		"unknown torch dtype":  {config: `{"model_type":"llama","dtype":"float7"}`, field: "dtype"},
		"pooling model":        {config: `{"model_type":"llama","dtype":"float32"}`, field: "dtype"},
		"quantization by rule": {config: `{"model_type":"llama","dtype":"float16","quantization_config":{"quant_method":"gptq"}}`, field: "quantization"},
		"quantization beside":  {config: `{"model_type":"llama","dtype":"float16","compression_config":{"quant_method":"compressed-tensors"}}`, field: "quantization"},
		"quantization no dict": {config: `{"model_type":"llama","dtype":"float16","quantization_config":"fp8"}`, field: "quant_config_hash"},
	} {
		d := *d
		if tt.config != "" {
			c, err := hfconfig.Parse([]byte(tt.config))
			if err != nil {
				t.Fatal(err)
			}
			d.Config = c
		}
		k, err := Compute(&d, tt.options)
		var u *Uncomputable
		if !errors.As(err, &u) || u.Field != tt.field || len(k.fields) != 0 {
			t.Errorf("%s: %v, want field %s", name, err, tt.field)
		}
	}
	config := *d.Config
	config.MistralFormat = true
	mistral := *d
	mistral.Config = &config
	if _, err := Compute(&mistral, Options{}); err == nil || err.Error() != `compute key field "model_arch": vLLM reads params.json of this directory, not config.json` {
		t.Errorf("Mistral's format: %v", err)
	}
}

func TestDType(t *testing.T) {
	for config, want := range map[string]string{
		`{"model_type":"llama","architectures":["LlamaForCausalLM"]}`:                             "torch.bfloat16", // of the tensors
		`{"model_type":"llama","architectures":["LlamaForCausalLM"],"torch_dtype":"half"}`:        "torch.float16",
		`{"model_type":"llama","architectures":["LlamaForCausalLM"],"dtype":"float32"}`:           "torch.bfloat16",
		`{"model_type":"llama","architectures":["LlamaForCausalLM"],"dtype":"float64"}`:           "torch.bfloat16",
		`{"model_type":"gemma2","architectures":["Gemma2ForCausalLM"],"dtype":"float16"}`:         "torch.bfloat16",
		`{"model_type":"x","architectures":["XForCausalLM"],"text_config":{"dtype":"float16"}}`:   "torch.float16",
		`{"model_type":"llama","dtype":"bfloat16","torch_dtype":"float16","architectures":["L"]}`: "torch.bfloat16",
	} {
		c, err := hfconfig.Parse([]byte(config))
		if err != nil {
			t.Fatal(err)
		}
		d := *openCheckpoint(t, "llama")
		d.Config = c
		if got, err := (computer{dir: &d}).dtype(); got != want {
			t.Errorf("%s: %v, %v; want %s", config, got, err, want)
		}
	}
}

func TestCheckpointWithoutSafetensors(t *testing.T) {
	d := *openCheckpoint(t, "llama")
	d.Hashed, d.Load = nil, nil
	for model, want := range map[string]string{"": d.Path, "org/model": "org/model"} {
		k, err := Compute(&d, Options{Model: model})
		if err != nil || k.Str("checkpoint") != want {
			t.Errorf("checkpoint of model %q is %q, %v", model, k.Str("checkpoint"), err)
		}
	}
}
