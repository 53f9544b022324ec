// SPDX-FileCopyrightText: The wcache authors
// SPDX-License-Identifier: MIT

// Package hfconfig reads a model's config.json into what transformers' config
// object would hold, which is what vLLM builds a model and its key from: names
// of older releases are mapped, and for the dense family (llama, mistral, qwen2,
// qwen3, phi3) keys that the file lacks take the defaults of their class.
//
// It follows transformers 5.20 (configuration_utils.py, modeling_rope_utils.py
// and each model's own configuration file) and vLLM 0.33's get_config.
package hfconfig

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
)

// Config is one model's configuration. It is not changed once made, and safe
// for concurrent use as long as nobody changes its maps.
type Config struct {
	// Known tells whether ModelType is one whose class is built in. If not,
	// fields that the file doesn't give are zero.
	Known bool

	Architectures     []string
	ModelType         string
	DType             string // torch's name without the module: "bfloat16"; "" if the file has none
	HiddenSize        int64
	IntermediateSize  int64
	Layers            int64
	Heads             int64
	KVHeads           int64
	HeadDim           int64 // as vLLM's class of this type takes it
	VocabSize         int64
	MaxPositions      int64
	TieWordEmbeddings bool
	AttentionBias     bool // of q, k and v, as vLLM's class of this type takes it
	OutputBias        bool // of o_proj, likewise
	MLPBias           bool
	Rope              Rope // nil if the model has none, or see [Config.CheckRope]
	Quantization      any  // quantization_config, nil without one

	// Raw is the whole file. Values are nil, bool, int64, *big.Int, float64,
	// string, []any and map[string]any.
	Raw map[string]any

	// MistralFormat tells that vLLM takes this directory's configuration from
	// Mistral's params.json, so that nothing else here is what an engine sees.
	MistralFormat bool

	ropeErr error
}

// Missing is the error for a value that the file lacks, of a class whose default
// is not built in.
type Missing struct {
	ModelType string
	Field     string // as config.json spells it
}

func (e *Missing) Error() string {
	return fmt.Sprintf("%q is not in config.json, and the default of model type %q is not known", e.Field, e.ModelType)
}

// CheckRope tells whether Rope and MaxPositions are those of transformers'
// config object. It never fails for a known type. The error is a [*Missing], or
// says what is wrong with the file's values.
func (c *Config) CheckRope() error { return c.ropeErr }

// Read parses the configuration of a model directory: config.json and, where
// that names no quantization, ModelOpt's hf_quant_config.json.
func Read(dir string) (*Config, error) {
	b, err := readFile(filepath.Join(dir, "config.json"))
	if err != nil {
		return nil, err
	}
	c, err := Parse(b)
	if err != nil {
		return nil, fmt.Errorf("read %q: %w", filepath.Join(dir, "config.json"), err)
	}
	if c.Quantization == nil {
		if c.Quantization, err = readQuantization(filepath.Join(dir, "hf_quant_config.json")); err != nil {
			return nil, err
		}
	}
	if c.MistralFormat, err = mistralFormat(dir); err != nil {
		return nil, err
	}
	return c, nil
}

func readQuantization(path string) (any, error) {
	b, err := readFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	v, err := decode(b)
	if err != nil {
		return nil, fmt.Errorf("read %q: %w", path, err)
	}
	return v, nil
}

// mistralFormat is how vLLM's get_config chooses a format by itself.
func mistralFormat(dir string) (bool, error) {
	info, err := os.Stat(filepath.Join(dir, "params.json"))
	if err != nil || !info.Mode().IsRegular() {
		return false, nil
	}
	entries, err := os.ReadDir(dir)
	if err != nil {
		return false, fmt.Errorf("read directory: %w", err)
	}
	return slices.ContainsFunc(entries, func(e fs.DirEntry) bool {
		return strings.HasPrefix(e.Name(), "consolidated") && strings.HasSuffix(e.Name(), ".safetensors")
	}), nil
}

// readFile reads a file of at most MaxSize bytes; a longer one is cut after one
// byte too many, which decode then refuses.
func readFile(path string) ([]byte, error) {
	f, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK, 0) // a pipe is empty, and not waited at
	if err != nil {
		return nil, fmt.Errorf("read config: %w", err)
	}
	defer f.Close()
	b, err := io.ReadAll(io.LimitReader(f, MaxSize+1))
	if err != nil {
		return nil, fmt.Errorf("read config: %w", err)
	}
	return b, nil
}

// Parse parses the text of a config.json.
func Parse(b []byte) (*Config, error) {
	v, err := decode(b)
	if err != nil {
		return nil, fmt.Errorf("parse config: %w", err)
	}
	raw, ok := v.(map[string]any)
	if !ok {
		return nil, fmt.Errorf("parse config: not an object")
	}
	c := &Config{Raw: raw, Quantization: raw["quantization_config"]}
	c.ModelType, _ = raw["model_type"].(string)
	list, _ := raw["architectures"].([]any)
	for _, v := range list {
		name, ok := v.(string)
		if !ok {
			return nil, fmt.Errorf("parse config: architectures holds %T, not strings", v)
		}
		c.Architectures = append(c.Architectures, name)
	}
	text := textPart(raw)
	if c.DType = dtype(raw); c.DType == "" {
		c.DType = dtype(text)
	}
	if class, ok := classes[c.ModelType]; ok {
		c.Known = true
		err = c.build(class)
	} else {
		c.take(text)
	}
	if err != nil {
		return nil, fmt.Errorf("parse config: %w", err)
	}
	return c, nil
}

// textPart is the part that describes the language model: get_text_config of
// configuration_utils.py.
func textPart(raw map[string]any) map[string]any {
	for _, name := range []string{"text_encoder", "decoder", "generator", "text_config"} {
		if m, ok := raw[name].(map[string]any); ok {
			return m
		}
	}
	return raw
}

// dtype is the element type that the file names, under its new or its old key.
func dtype(m map[string]any) string {
	name, _ := m["dtype"].(string)
	if name == "" {
		name, _ = m["torch_dtype"].(string)
	}
	switch name { // the names that torch has two of
	case "half":
		return "float16"
	case "float":
		return "float32"
	case "double":
		return "float64"
	}
	return name
}
