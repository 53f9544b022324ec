// SPDX-FileCopyrightText: The wcache authors
// SPDX-License-Identifier: MIT

package resolve

import (
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/wcache/wcache/fingerprint"
	"github.com/wcache/wcache/internal/testmain"
	"github.com/wcache/wcache/weights/index"
)

func TestMain(m *testing.M) { testmain.Run(m) }

// rooted is an index of the directories below a folder.
func rooted(t *testing.T, root string) *index.Index {
	x := index.New(index.Options{})
	t.Cleanup(x.Close)
	x.SetRoots([]string{root})
	return x
}

// resolved chooses a directory for a key and plans it.
func resolved(t *testing.T, o Options, key fingerprint.Key) (*Target, error) {
	t.Helper()
	choice, err := Choose(t.Context(), o, key, nil)
	if err != nil {
		return nil, err
	}
	target, err := Plan(o, key, choice.Dir)
	return target, choice.Blame(err)
}

func recorded(t *testing.T, name string) fingerprint.Key {
	t.Helper()
	b, err := os.ReadFile("../testdata/layouts/" + name + ".json")
	if err != nil {
		t.Fatal(err)
	}
	var doc struct {
		Key fingerprint.Key `json:"key"`
	}
	if err := json.Unmarshal(b, &doc); err != nil {
		t.Fatal(err)
	}
	return doc.Key
}

// with gives a key in which change has replaced or dropped fields.
func with(t *testing.T, k fingerprint.Key, change func(fingerprint.Field) (fingerprint.Field, bool)) fingerprint.Key {
	t.Helper()
	var fields []fingerprint.Field
	for _, f := range k.Fields() {
		if f, keep := change(f); keep {
			fields = append(fields, f)
		}
	}
	out, err := fingerprint.NewKey(fields)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

func set(t *testing.T, k fingerprint.Key, name string, value any) fingerprint.Key {
	return with(t, k, func(f fingerprint.Field) (fingerprint.Field, bool) {
		if f.Name == name {
			f.Value = value
		}
		return f, true
	})
}

// model copies a recorded checkpoint below root.
func model(t *testing.T, root, checkpoint, name string) string {
	t.Helper()
	dir := filepath.Join(root, name)
	if err := os.CopyFS(dir, os.DirFS("../testdata/checkpoints/"+checkpoint)); err != nil {
		t.Fatal(err)
	}
	return dir
}

// retouch changes the last byte of a file, which is data and in no header.
func retouch(t *testing.T, path string) {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	b[len(b)-1] ^= 1
	if err := os.WriteFile(path, b, 0o600); err != nil {
		t.Fatal(err)
	}
}

func TestResolve(t *testing.T) {
	root := t.TempDir()
	llama := model(t, root, "llama", "llama")
	target, err := resolved(t, Options{Index: rooted(t, root)}, recorded(t, "llama-tp2r1"))
	if err != nil {
		t.Fatal(err)
	}
	got := []any{target.Dir.Path, target.Loader, target.Reason, target.Plan.Table.Bytes()}
	want := []any{llama, "native", "LlamaForCausalLM in torch.bfloat16 is built as vLLM 0.33.0 does", int64(105120)}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
}

// The engine's request can't tell two directories with equal headers and different
// weights apart.
func TestSameHeaders(t *testing.T) {
	root := t.TempDir()
	a, b := model(t, root, "llama", "a"), model(t, root, "llama", "b")
	key := recorded(t, "llama-tp1r0")
	o := Options{Index: rooted(t, root)}
	target, err := resolved(t, o, key)
	if err != nil || target.Dir.Path != a {
		t.Fatalf("equal copies: got %v, %v, want either", target, err)
	}
	retouch(t, filepath.Join(b, "model-00003-of-00004.safetensors"))
	_, err = resolved(t, o, key)
	wantRefusal(t, err, &Refusal{
		Field:  "checkpoint",
		Reason: "2 model directories have the same headers and different weights: " + a + ", " + b,
		Hint:   "start the engine as: vllm serve " + a + `; or name the one that is meant in wcache.toml: pins = ["` + a + `"]`,
	})
	o.Pins = []string{b}
	target, err = resolved(t, o, key)
	if err != nil || target.Dir.Path != b {
		t.Fatalf("with a pin: got %v, %v, want %s", target, err, b)
	}
}

// mistral, v4cfg_default and rope_linear have one checkpoint hash: architecture
// and rope parameters tell which of them an engine runs on.
func TestSameHeadersOfOtherModels(t *testing.T) {
	root := t.TempDir()
	for _, name := range []string{"mistral", "v4cfg_default", "rope_linear", "v4cfg_llama3"} {
		model(t, root, name, name)
	}
	o := Options{Index: rooted(t, root)}
	for _, name := range []string{"mistral", "rope_linear", "v4cfg_llama3"} {
		target, err := resolved(t, o, recorded(t, name+"-tp1r0"))
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		if got := filepath.Base(target.Dir.Path); got != name {
			t.Errorf("%s: got %s", name, got)
		}
	}
}

// An engine's dtype is an option and says nothing about the directory.
func TestDTypeTellsNoDirectories(t *testing.T) {
	root := t.TempDir()
	a, b := model(t, root, "llama", "a"), model(t, root, "llama", "b")
	retouch(t, filepath.Join(b, "model-00003-of-00004.safetensors"))
	text, err := os.ReadFile(filepath.Join(b, "config.json"))
	if err != nil {
		t.Fatal(err)
	}
	changed := strings.Replace(string(text), `"dtype": "bfloat16"`, `"dtype": "float16"`, 1)
	if err := os.WriteFile(filepath.Join(b, "config.json"), []byte(changed), 0o600); err != nil {
		t.Fatal(err)
	}
	_, err = resolved(t, Options{Index: rooted(t, root)}, recorded(t, "llama_bf16_as_f16-tp1r0"))
	var no *Refusal
	if !errors.As(err, &no) || !strings.Contains(no.Reason, a+", "+b) {
		t.Errorf("got %v, want a refusal that names both", err)
	}
}

func TestRefusals(t *testing.T) {
	root := t.TempDir()
	llama := model(t, root, "llama", "llama")
	gemma := model(t, root, "gemma2", "gemma2")
	fp8 := model(t, root, "fp8_block", "fp8_block")
	o := Options{Index: rooted(t, root), Env: func(n string) string { return map[string]string{"HF_HOME": root}[n] }}
	key := recorded(t, "llama-tp1r0")
	tests := []struct {
		name  string
		key   fingerprint.Key
		field string
		has   string
	}{
		{"unknown hash", set(t, key, "checkpoint", strings.Repeat("0", 32)), "checkpoint", "no model directory with the checkpoint hash"},
		{"model id that isn't here", set(t, key, "checkpoint", "meta-llama/Llama-3.1-8B"), "checkpoint", "meta-llama/Llama-3.1-8B"},
		{"relative path", set(t, key, "checkpoint", "./models/llama"), "checkpoint", "./models/llama"},
		{"path that isn't there", set(t, key, "checkpoint", root+"/none/"), "checkpoint", root + "/none"},
		{"file", set(t, key, "checkpoint", llama+"/config.json"), "checkpoint", llama + "/config.json"},
		{"other rope parameters", set(t, key, "rope_parameters_hash", strings.Repeat("0", 32)), "rope_parameters_hash", llama},
		{"other architecture", set(t, key, "model_arch", "MistralForCausalLM"), "model_arch", llama},
		{"architecture that isn't built", recorded(t, "gemma2-tp1r0"), "model_arch", "Gemma2ForCausalLM"},
		{"quantized", recorded(t, "fp8_block-tp1r0"), "quantization", "fp8"},
		{"new release", set(t, key, "vllm_version", "0.34.0"), "vllm_version", "0.34.0"},
		{"draft", set(t, key, "is_draft", true), "is_draft", "draft"},
		{"fp8 cache", set(t, key, "kv_cache_dtype", "fp8"), "kv_cache_dtype", "fp8"},
		{"odd ranks", set(t, key, "tp_size", int64(3)), "tp_size", "3"},
	}
	_, _ = gemma, fp8
	for _, tt := range tests {
		_, err := resolved(t, o, tt.key)
		var no *Refusal
		if !errors.As(err, &no) || no.Field != tt.field || !strings.Contains(no.Reason, tt.has) {
			t.Errorf("%s: got %v, want a refusal of %s with %q", tt.name, err, tt.field, tt.has)
		}
	}
}

// A key is refused if it has a field that this release doesn't send, or lacks one that
// the release does send.
func TestFieldsOfRelease(t *testing.T) {
	root := t.TempDir()
	model(t, root, "llama", "llama")
	o := Options{Index: rooted(t, root)}
	key := recorded(t, "llama-tp1r0")
	more, err := fingerprint.NewKey(append(key.Fields(), fingerprint.Field{Name: "lora_backend", Value: "auto"}))
	if err != nil {
		t.Fatal(err)
	}
	_, err = resolved(t, o, more)
	wantRefusal(t, err, &Refusal{Field: "lora_backend", Reason: "vLLM 0.33.0 does not send this field; its effect on the weights is not known", Hint: odd})
	less := with(t, key, func(f fingerprint.Field) (fingerprint.Field, bool) { return f, f.Name != "moe_backend" })
	_, err = resolved(t, o, less)
	wantRefusal(t, err, &Refusal{Field: "moe_backend", Reason: "the key lacks this field, which vLLM 0.33.0 sends", Hint: odd})
}

// Before 0.33 a key doesn't say whether rope parameters are overridden.
func TestAssume(t *testing.T) {
	root := t.TempDir()
	model(t, root, "llama", "llama")
	old := with(t, recorded(t, "llama-tp1r0"), func(f fingerprint.Field) (fingerprint.Field, bool) {
		if f.Name == "vllm_version" {
			f.Value = "0.32.0"
		}
		names, _ := fingerprint.FieldNames("0.32.0")
		return f, slices.Contains(names, f.Name)
	})
	o := Options{Index: rooted(t, root)}
	_, err := resolved(t, o, old)
	wantRefusal(t, err, &Refusal{
		Field:  "vllm_version",
		Reason: "vLLM 0.32.0 does not say whether the engine overrides the model's rope parameters",
		Hint:   `if no engine here is started with --hf-overrides, set assume = ["rope"] in wcache.toml`,
	})
	o.Assume = []string{"rope"}
	if _, err := resolved(t, o, old); err != nil {
		t.Error(err)
	}
}

func wantRefusal(t *testing.T, err error, want *Refusal) {
	t.Helper()
	var no *Refusal
	if !errors.As(err, &no) {
		t.Fatalf("got %v, want a *Refusal", err)
	}
	if diff := cmp.Diff(want, no); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
}
