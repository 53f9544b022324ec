// SPDX-FileCopyrightText: The wcache authors
// SPDX-License-Identifier: MIT

// Package hfconfig reads a model's config.json into the values of transformers'
// config object, from which vLLM builds a model and its key: names of older
// releases are mapped, and for the dense family (llama, mistral, qwen2, qwen3,
// phi3) keys that the file lacks get the defaults of their class.
//
// It follows transformers 5.20 (configuration_utils.py, modeling_rope_utils.py
// and each model's own configuration file) and vLLM 0.33's get_config.
//
// Any file that is JSON can be read. If a value has another type than documented for
// its key, so that its meaning isn't certain, only that part has an error, see
// [Config.Check].
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

// Config is one model's configuration. It is immutable, and safe for concurrent use as
// long as its maps aren't changed.
type Config struct {
	// Known tells whether the class of ModelType is built in. If not, fields that the
	// file doesn't give are zero. Fields of a part for which Check has an error mean
	// nothing.
	Known bool

	Architectures     []string
	ModelType         string
	DType             string // torch's name without the module: "bfloat16"; "" if the file has none
	HiddenSize        int64
	IntermediateSize  int64
	Layers            int64
	Heads             int64
	KVHeads           int64
	HeadDim           int64 // as vLLM's class of this type reads it
	VocabSize         int64
	MaxPositions      int64
	TieWordEmbeddings bool
	AttentionBias     bool // of q, k and v, as vLLM's class of this type reads it
	OutputBias        bool // of o_proj, likewise
	MLPBias           bool
	Rope              Rope // nil if the model has none
	Quantization      any  // quantization_config, nil without one

	// Raw is the whole file. Values are nil, bool, int64, *big.Int, float64,
	// string, []any and map[string]any.
	Raw map[string]any

	// MistralFormat tells that vLLM reads this directory's configuration from Mistral's
	// params.json, so an engine sees different values than those here.
	MistralFormat bool

	faults [parts]error
}

// Missing is the error for a value that the file lacks, if the default of its class is
// not built in.
type Missing struct {
	ModelType string
	Field     string // as config.json spells it
}

func (e *Missing) Error() string {
	//diag unsupported KEY TYPE
	// The engine's library has a default for the key that depends on its version. Add the key to
	// `config.json`, or let the engine load from disk.
	return fmt.Sprintf("%q is not in config.json, and the default of model type %q is not known", e.Field, e.ModelType)
}

// FormatError is the error for a file that isn't a configuration, or is over a limit
// of this package. Nothing is known about its model.
type FormatError struct {
	File   string // base name, "" for a text
	Reason string
}

func (e *FormatError) Error() string {
	if e.File == "" {
		//diag - it is of a text that is not from a file
		return "parse config: " + e.Reason
	}
	//diag files FILE REASON
	// The file is not JSON, or is larger than any configuration. Fetch it again.
	return fmt.Sprintf("parse %s: %s", e.File, e.Reason)
}

// Check tells whether the fields of a part equal those of transformers' config object.
// The error is an [*Invalid], or a [*Missing] for the rope parameters of an unknown
// class, or says what else is wrong with the file's values. Shapes of an unknown class
// are not checked.
func (c *Config) Check(p Part) error { return c.faults[p] }

// fault notes the first error of a part.
func (c *Config) fault(p Part, err error) {
	if c.faults[p] == nil {
		c.faults[p] = err
	}
}

// Names of the files that [Read] reads.
const (
	configName       = "config.json"
	quantizationName = "hf_quant_config.json"
)

// Read parses the configuration of a model directory: config.json and, if that has no
// quantization, ModelOpt's hf_quant_config.json. The error is a [*FormatError], or
// comes from the file system.
func Read(dir string) (*Config, error) {
	v, err := readJSON(dir, configName)
	if err != nil {
		return nil, err
	}
	c, err := parse(v)
	if err != nil {
		return nil, named(configName, err)
	}
	if c.Quantization == nil {
		c.Quantization, err = readJSON(dir, quantizationName)
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return nil, err
		}
		c.fault(Quantization, object(quantizationName, c.Quantization))
	}
	if c.MistralFormat, err = mistralFormat(dir); err != nil {
		return nil, err
	}
	return c, nil
}

func readJSON(dir, name string) (any, error) {
	b, err := readFile(filepath.Join(dir, name))
	if err != nil {
		return nil, err
	}
	v, err := decode(b)
	if err != nil {
		return nil, named(name, err)
	}
	return v, nil
}

func named(file string, err error) error { return &FormatError{File: file, Reason: err.Error()} }

// object is an error for a value that is neither an object nor null.
func object(key string, v any) error {
	if v == nil || isObject(v) {
		return nil
	}
	return invalid(key, v, "an object")
}

// mistralFormat reports whether vLLM's get_config would choose Mistral's format by itself.
func mistralFormat(dir string) (bool, error) {
	info, err := os.Stat(filepath.Join(dir, "params.json"))
	if errors.Is(err, fs.ErrNotExist) || err == nil && !info.Mode().IsRegular() {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("read config: %w", err)
	}
	entries, err := os.ReadDir(dir)
	if err != nil {
		return false, fmt.Errorf("read directory: %w", err)
	}
	return slices.ContainsFunc(entries, func(e fs.DirEntry) bool {
		return strings.HasPrefix(e.Name(), "consolidated") && strings.HasSuffix(e.Name(), ".safetensors")
	}), nil
}

// readFile reads at most MaxSize+1 bytes of a file, so that decode refuses a longer
// file.
func readFile(path string) ([]byte, error) {
	f, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK, 0) // a pipe reads as empty, without waiting
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

// Parse parses the text of a config.json. The error is a [*FormatError].
func Parse(b []byte) (*Config, error) {
	v, err := decode(b)
	if err == nil {
		var c *Config
		if c, err = parse(v); err == nil {
			return c, nil
		}
	}
	return nil, named("", err)
}

func parse(v any) (*Config, error) {
	raw, ok := v.(map[string]any)
	if !ok {
		return nil, errors.New("not an object")
	}
	c := &Config{Raw: raw, Quantization: raw["quantization_config"]}
	for _, key := range overriding {
		v, given := raw[key]
		for p := 0; given && p < parts; p++ {
			c.fault(Part(p), fmt.Errorf("%s is %s, by which transformers reads other keys in another way", key, Show(v)))
		}
	}
	text, err := textPart(raw)
	c.fault(Architecture, c.architecture())
	c.fault(ElementType, c.dtype(text, err))
	c.fault(Quantization, object("quantization_config", c.Quantization))
	if class, ok := classes[c.ModelType]; ok {
		c.Known = true
		c.build(class)
	} else {
		c.fault(RopeParameters, err)
		c.take(text)
	}
	return c, nil
}

// overriding are keys that change how a config object reads its other attributes; the
// first one leads to another file.
var overriding = []string{"configuration_files", "attribute_map", "default_rope_type", "_rope_type_labels", "__dict__", "__class__"}

// architecture reads model_type and architectures. An empty list and None count as
// missing.
func (c *Config) architecture() error {
	v, given := c.Raw["model_type"]
	if c.ModelType, _ = v.(string); given && c.ModelType == "" {
		return invalid("model_type", v, "a name")
	}
	names := c.Raw["architectures"]
	if names == nil {
		return nil
	}
	list, ok := names.([]any)
	for _, v := range list {
		name, isName := v.(string)
		ok = ok && isName
		c.Architectures = append(c.Architectures, name)
	}
	if !ok {
		c.Architectures = nil
		return invalid("architectures", names, "a list of names")
	}
	return nil
}

// textKeys are the possible names of the part that describes the language model.
var textKeys = []string{"text_encoder", "decoder", "generator", "text_config"}

// textPart is that part, or the whole object: get_text_config of
// configuration_utils.py. It is nil after an error.
func textPart(raw map[string]any) (map[string]any, error) {
	text, found := raw, ""
	for _, key := range textKeys {
		v := raw[key]
		if v == nil {
			continue
		}
		if found != "" {
			return nil, fmt.Errorf("both %s and %s describe the language model", found, key)
		}
		found = key
		if text, _ = v.(map[string]any); text == nil {
			return nil, invalid(key, v, "an object")
		}
	}
	return text, nil
}

// dtype is the element type of the file, or of its text part.
func (c *Config) dtype(text map[string]any, textErr error) error {
	var err error
	if c.DType, err = dtypeOf(c.Raw); err != nil || c.DType != "" {
		return err
	}
	if textErr != nil {
		return textErr
	}
	c.DType, err = dtypeOf(text)
	return err
}

// dtypeOf reads the new key, or the old key if the new one is None.
func dtypeOf(m map[string]any) (string, error) {
	key := "dtype"
	if m[key] == nil {
		key = "torch_dtype"
	}
	if m[key] == nil {
		return "", nil
	}
	name, _ := m[key].(string)
	switch name { // torch has two names for some types
	case "":
		return "", invalid(key, m[key], "a name")
	case "half":
		return "float16", nil
	case "float":
		return "float32", nil
	case "double":
		return "float64", nil
	}
	return name, nil
}
