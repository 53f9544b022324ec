// SPDX-FileCopyrightText: The wcache authors
// SPDX-License-Identifier: MIT

package hfconfig

import (
	"encoding/json"
	"errors"
	"math"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/wcache/wcache/internal/testmain"
)

func TestMain(m *testing.M) { testmain.Run(m) }

// recorded is an entry of testdata/configs.json: a random config.json, and what
// transformers 5.20.2 and vLLM 0.33.0 made of it (testdata/configs.py). Only the dense
// family has sizes.
type recorded struct {
	Config string
	Want   struct {
		Architectures []string
		DType         string
		MaxPositions  *int64
		RopePayload   string

		HiddenSize, IntermediateSize, Layers, Heads, KVHeads, HeadDim, VocabSize int64
		TieWordEmbeddings, AttentionBias, OutputBias, MLPBias                    bool
	}
}

func readRecorded(t testing.TB) []recorded {
	t.Helper()
	b, err := os.ReadFile("testdata/configs.json")
	if err != nil {
		t.Fatal(err)
	}
	var list []recorded
	if err := json.Unmarshal(b, &list); err != nil {
		t.Fatal(err)
	}
	return list
}

func TestParseAsTransformers(t *testing.T) {
	missing := 0
	for _, r := range readRecorded(t) {
		c, err := Parse([]byte(r.Config))
		if err != nil {
			t.Errorf("%s: %v", r.Config, err)
			continue
		}
		w := r.Want
		want := &Config{
			Known: c.Known, ModelType: c.ModelType, Raw: c.Raw, Quantization: c.Quantization,
			Architectures: w.Architectures, DType: w.DType,
			HiddenSize: w.HiddenSize, IntermediateSize: w.IntermediateSize, Layers: w.Layers, Heads: w.Heads,
			KVHeads: w.KVHeads, HeadDim: w.HeadDim, VocabSize: w.VocabSize, TieWordEmbeddings: w.TieWordEmbeddings,
			AttentionBias: w.AttentionBias, OutputBias: w.OutputBias, MLPBias: w.MLPBias,
		}
		if !c.Known {
			*want = *c
			want.Architectures, want.DType = w.Architectures, w.DType
		}
		var m *Missing
		if err := c.Check(RopeParameters); errors.As(err, &m) && !c.Known {
			missing++
		} else if err != nil {
			t.Errorf("%s: %v", r.Config, err)
		} else {
			want.MaxPositions = *w.MaxPositions
			want.Rope = payloadRope(t, w.RopePayload)
			c.Rope = integral(c.Rope)
		}
		if diff := cmp.Diff(want, c, cmpopts.IgnoreUnexported(Config{}), cmpopts.IgnoreFields(Config{}, "Raw", "Quantization")); diff != "" {
			t.Errorf("%s (-transformers +Parse):\n%s", r.Config, diff)
		}
	}
	// Unknown classes may be refused, unless their rope parameters are complete.
	if missing < 20 || missing > 100 {
		t.Errorf("%d configurations of unknown classes lack a value", missing)
	}
}

// payloadRope is rope_parameters in the text that vLLM hashes.
func payloadRope(t *testing.T, payload string) Rope {
	t.Helper()
	v, err := decode([]byte(payload))
	if err != nil {
		t.Fatal(err)
	}
	m, _ := v.(map[string]any)["rope_parameters"].(map[string]any)
	return m
}

// integral turns integral floats into integers, as in that text.
func integral(r Rope) Rope {
	if r == nil {
		return nil
	}
	b, _ := json.Marshal(map[string]any(r)) // writes 1.0 as 1
	v, err := decode(b)
	if err != nil {
		panic(err)
	}
	return v.(map[string]any)
}

func TestReadCheckpoints(t *testing.T) {
	type size struct {
		Known             bool
		Heads, KV, Dim    int64
		Positions         int64
		Rope              string
		DType             string
		Tied, QKV, O, MLP bool
	}
	want := map[string]size{
		"llama":         {Known: true, Heads: 8, KV: 4, Dim: 8, Positions: 128, Rope: "default", DType: "bfloat16"},
		"llama_bias":    {Known: true, Heads: 8, KV: 4, Dim: 8, Positions: 128, Rope: "default", DType: "bfloat16", QKV: true, O: true, MLP: true},
		"llama_tied":    {Known: true, Heads: 8, KV: 4, Dim: 8, Positions: 128, Rope: "default", DType: "bfloat16", Tied: true},
		"qwen2":         {Known: true, Heads: 4, KV: 2, Dim: 16, Positions: 128, Rope: "default", DType: "bfloat16", QKV: true},
		"v4cfg_minimal": {Known: true, Heads: 8, KV: 4, Dim: 8, Positions: 128, Rope: "default", DType: "bfloat16"},
		"rope_llama3":   {Known: true, Heads: 8, KV: 4, Dim: 16, Positions: 512, Rope: "llama3", DType: "bfloat16"},
		"gpt2":          {Positions: 128, DType: "bfloat16", Tied: true},
	}
	for name, want := range want {
		c, err := Read(filepath.Join("..", "..", "testdata", "checkpoints", name))
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		got := size{c.Known, c.Heads, c.KVHeads, c.HeadDim, c.MaxPositions, c.Rope.Type(), c.DType, c.TieWordEmbeddings, c.AttentionBias, c.OutputBias, c.MLPBias}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
	}
}

func TestReadOtherFiles(t *testing.T) {
	dir := t.TempDir()
	write := func(name, text string) {
		t.Helper()
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := Read(dir); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("no config.json: %v", err)
	}
	write("config.json", `{"model_type":"llama"}`)
	write("hf_quant_config.json", `{"producer":{"name":"modelopt"}}`)
	write("params.json", `{}`)
	c, err := Read(dir)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(any(map[string]any{"producer": map[string]any{"name": "modelopt"}}), c.Quantization); diff != "" || c.MistralFormat {
		t.Errorf("params.json alone gives MistralFormat %v; quantization (-want +got):\n%s", c.MistralFormat, diff)
	}
	write("consolidated.safetensors", "")
	if c, err = Read(dir); err != nil || !c.MistralFormat {
		t.Errorf("MistralFormat %v, %v", c.MistralFormat, err)
	}
	write("hf_quant_config.json", `[]`)
	if c, err = Read(dir); err != nil || !reflect.DeepEqual(c.Check(Quantization), error(&Invalid{"hf_quant_config.json", "[]", "an object"})) {
		t.Errorf("a list in hf_quant_config.json: %+v, %v", c, err)
	}
	write("hf_quant_config.json", `{`)
	if _, err = Read(dir); !reflect.DeepEqual(err, error(&FormatError{"hf_quant_config.json", "byte 1: no key"})) {
		t.Errorf("broken hf_quant_config.json: %v", err)
	}
	write("config.json", `{"model_type":"llama",}`)
	if _, err = Read(dir); !reflect.DeepEqual(err, error(&FormatError{"config.json", "byte 22: no key"})) {
		t.Errorf("broken config.json: %v", err)
	}
	if err = os.Remove(filepath.Join(dir, "params.json")); err == nil {
		err = os.Symlink("params.json", filepath.Join(dir, "params.json"))
	}
	if err != nil {
		t.Fatal(err)
	}
	write("config.json", `{}`)
	write("hf_quant_config.json", `null`)
	if _, err = Read(dir); !errors.Is(err, syscall.ELOOP) {
		t.Errorf("params.json that can't be looked at: %v", err)
	}
}

func TestParseRefuses(t *testing.T) {
	for text, want := range map[string]string{
		``:              "parse config: byte 0: text ends early",
		`[]`:            "parse config: not an object",
		`{"a":1}x`:      "parse config: byte 7: text after the end",
		`{"a":01}`:      "parse config: byte 7: number with a leading zero",
		`{"a":.5}`:      "parse config: byte 5: no value",
		`{"a":1.}`:      "parse config: byte 7: no digits after the point",
		`{"a":1e}`:      "parse config: byte 7: no digits in the exponent",
		`{"a" 1}`:       `parse config: byte 5: no colon after "a"`,
		`{"a":1 "b":2}`: `parse config: byte 7: no comma after the value of "a"`,
		`{"a":[1 2]}`:   "parse config: byte 8: no comma in a list",
		`{a:1}`:         "parse config: byte 1: no key",
		`{"a`:           "parse config: byte 3: string without an end",
		"{\"a\n\":1}":   "parse config: byte 3: control character in a string",
		`{"\x":1}`:      `parse config: byte 2: unknown escape "x"`,
		`{"\ud800":1}`:  `parse config: byte 8: bad \u escape`,
		"{\"\xff\":1}":  "parse config: not UTF-8",
		"\ufeff{}":      "parse config: byte 0: no value",
		`{"a":` + strings.Repeat("9", maxInt+1) + `}`: "parse config: byte 4306: integer of more than 4300 digits",
		strings.Repeat("[", maxDepth+2):               "parse config: byte 101: more than 100 levels",
	} {
		c, err := Parse([]byte(text))
		var format *FormatError
		if !errors.As(err, &format) || err.Error() != want || c != nil {
			t.Errorf("Parse(%.60q) = %v, %v; want %s", text, c, err, want)
		}
	}
	want := &FormatError{Reason: "2097153 bytes are over the limit of 2097152"}
	if _, err := Parse(make([]byte, MaxSize+1)); !reflect.DeepEqual(err, error(want)) {
		t.Errorf("a text over the limit: %v", err)
	}
}

func TestParsePythonNumbers(t *testing.T) {
	c, err := Parse([]byte(`{"a":1,"b":1.0,"c":[1e400,-Infinity,{"__float__":"Infinity"}],"d":"\ud83d\ude00\/","e":-0,"a":2, "f":18446744073709551616}`))
	if err != nil {
		t.Fatal(err)
	}
	big, ok := c.Raw["f"].(interface{ String() string })
	if !ok || big.String() != "18446744073709551616" {
		t.Errorf("f is %v", c.Raw["f"])
	}
	delete(c.Raw, "f")
	want := map[string]any{"a": int64(2), "b": 1.0, "c": []any{math.Inf(1), math.Inf(-1), math.Inf(1)}, "d": "😀/", "e": int64(0)}
	if diff := cmp.Diff(want, c.Raw); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func FuzzParse(f *testing.F) {
	for i, r := range readRecorded(f) {
		if i%10 == 0 {
			f.Add([]byte(r.Config))
		}
	}
	paths, _ := filepath.Glob("../../testdata/checkpoints/*/config.json")
	for _, path := range paths {
		b, err := os.ReadFile(path)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(b)
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		c, err := Parse(b)
		if (c == nil) == (err == nil) {
			t.Fatalf("Parse = %v, %v", c, err)
		}
		if err != nil || !c.Known {
			return
		}
		if c.Check(Shapes) == nil && (c.HeadDim < 0 || c.Layers <= 0 || c.KVHeads <= 0) {
			t.Fatalf("a known class with %+v", c)
		}
		if c.Check(RopeParameters) == nil && (c.MaxPositions <= 0 || c.Rope == nil) {
			t.Fatalf("a known class with %+v", c)
		}
	})
}
