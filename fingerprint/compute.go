// SPDX-FileCopyrightText: The wcache authors
// SPDX-License-Identifier: MIT

package fingerprint

import (
	"crypto/md5" // vLLM's name of a checkpoint; it secures nothing
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"hash"
	"slices"
	"strings"

	"github.com/wcache/wcache/release"
	"github.com/wcache/wcache/tensor"
	"github.com/wcache/wcache/weights"
	"github.com/wcache/wcache/weights/hfconfig"
)

// Uncomputable is the error for a field of a key that the files alone don't determine.
type Uncomputable struct {
	Field  string
	Reason string
}

func (e *Uncomputable) Error() string {
	//diag unsupported FIELD REASON
	// `wcache warm` and `wcache explain` can't tell what an engine would send in this field, for
	// the given reason. Start an engine, which sends its own key.
	return fmt.Sprintf("compute key field %q: %s", e.Field, e.Reason)
}

// Options are what an engine's command line adds to a model directory.
type Options struct {
	Release string // vllm_version; "" is [release.Newest]

	TPSize, TPRank int // size 0 is 1
	PPSize, PPRank int // size 0 is 1

	// DType is the engine's --dtype, such as "bfloat16"; "" is "auto".
	DType string

	// Model is the engine's --model, which the key contains as its checkpoint if the
	// directory has no safetensors files; "" is the directory's path.
	Model string

	// Set gives the values, as the key has them, of fields that depend only on the
	// engine's options, such as enable_expert_parallel.
	Set []Field

	// FIPS uses sha256 instead of md5, as vLLM does on a FIPS machine.
	FIPS bool
}

func (o Options) hash() func() hash.Hash {
	if o.FIPS {
		return sha256.New
	}
	return md5.New
}

// optional are the fields that Options.Set may give, with vLLM's defaults.
var optional = map[string]any{
	"kv_cache_dtype":             "auto",
	"kv_cache_dtype_skip_layers": Tuple{},
	"revision":                   nil,
	"is_draft":                   false,
	"dp_size":                    int64(1),
	"dp_rank":                    int64(0),
	"enable_expert_parallel":     false,
	"expert_placement_strategy":  "linear",
	"moe_backend":                "auto",
	"linear_backend":             "auto",
	"linear_backend_per_quant":   Tuple{},
}

// Compute makes the key that an engine of a release sends for a model directory. The
// error is an [*Uncomputable] if a value depends on more than the files and the
// options, or if the release's key has no field for an option.
func Compute(d *weights.Dir, o Options) (Key, error) {
	if o.Release == "" {
		o.Release = release.Newest().Version
	}
	of, ok := release.Like(o.Release)
	if !ok {
		//diag unsupported VERSION
		// `--vllm-version` takes 0.30.0, 0.31.0, 0.32.0 and 0.33.0. Give the release of the engine,
		// or use a newer wcache.
		return Key{}, &Uncomputable{"vllm_version", fmt.Sprintf("the key of release %q is not known", o.Release)}
	}
	names := of.Key
	values := map[string]any{
		"tp_size":      max(o.TPSize, 1),
		"tp_rank":      o.TPRank,
		"pp_size":      max(o.PPSize, 1),
		"pp_rank":      o.PPRank,
		"vllm_version": o.Release,
	}
	if max(o.PPSize, 1) > 1 && !slices.Contains(names, "pp_size") {
		return Key{}, &Uncomputable{"pp_size", fmt.Sprintf("release %s has no such field", o.Release)}
	}
	for name, v := range optional {
		values[name] = v
	}
	for _, f := range o.Set {
		if _, ok := optional[f.Name]; !ok {
			return Key{}, &Uncomputable{f.Name, "it can't be set: it is not an option, or has an option of its own"}
		}
		if !slices.Contains(names, f.Name) {
			return Key{}, &Uncomputable{f.Name, fmt.Sprintf("release %s has no such field", o.Release)}
		}
		values[f.Name] = f.Value
	}
	fields := make([]Field, len(names))
	c := computer{dir: d, options: o, firstQuantHash: of.FirstQuantHash}
	for i, name := range names {
		v, ok := values[name]
		if !ok {
			var err error
			if v, err = c.field(name); err != nil {
				return Key{}, err
			}
		}
		fields[i] = Field{name, v}
	}
	return NewKey(fields)
}

// computed are the fields that come from the files, in the order in which [Explain]
// lists them.
var computed = []string{"checkpoint", "model_arch", "dtype", "quantization", "quant_config_hash", "rope_parameters_hash"}

type computer struct {
	dir            *weights.Dir
	options        Options
	firstQuantHash bool
}

// field computes one of the fields that come from the files.
func (c computer) field(name string) (any, error) {
	config := c.dir.Config
	if config.MistralFormat && name != "checkpoint" {
		return nil, &Uncomputable{name, "vLLM reads params.json of this directory, not config.json"}
	}
	switch name {
	case "checkpoint":
		return c.checkpoint(), nil
	case "model_arch":
		if err := config.Check(hfconfig.Architecture); err != nil {
			return nil, &Uncomputable{name, err.Error()}
		}
		if len(config.Architectures) == 0 {
			return nil, &Uncomputable{name, "config.json names no architectures"}
		}
		return strings.Join(config.Architectures, ","), nil
	case "dtype":
		return c.dtype()
	case "quantization":
		return quantization(config)
	case "quant_config_hash":
		payload := QuantPayload
		if c.firstQuantHash {
			payload = firstQuantPayload
		}
		return c.sum(payload(config))
	default: // rope_parameters_hash
		return c.sum(RopePayload(config))
	}
}

func (c computer) checkpoint() string {
	switch {
	case len(c.dir.Hashed) > 0:
		return c.dir.CheckpointHash(c.options.hash())
	case c.options.Model != "":
		return c.options.Model
	}
	return c.dir.Path
}

// sum is the hash of a text; without a text it is "".
func (c computer) sum(payload string, err error) (any, error) {
	if payload == "" || err != nil {
		return "", err
	}
	h := c.options.hash()()
	h.Write([]byte(payload))
	return hex.EncodeToString(h.Sum(nil)), nil
}

// quantization is the method that vLLM chooses for a checkpoint if its command line
// names none. Methods other than these are renamed by rules that depend on the release
// and the GPU.
func quantization(config *hfconfig.Config) (any, error) {
	const name = "quantization"
	for _, m := range []any{config.Raw, config.Raw["text_config"]} {
		m, _ := m.(map[string]any)
		if m["compression_config"] != nil || m["quantization_config"] != nil && config.Quantization == nil {
			return nil, &Uncomputable{name, "it is given by another key than quantization_config"}
		}
	}
	q, err := quantConfig(config)
	if err != nil || q == nil {
		return nil, err
	}
	method := q.(map[string]any)["quant_method"].(string)
	switch {
	case method == "":
		return nil, nil
	case method == "compressed-tensors", method == "fp8" && !strings.HasPrefix(config.ModelType, "deepseek_v4"):
		return method, nil
	}
	return nil, &Uncomputable{name, fmt.Sprintf("vLLM may choose another method for quant_method %q", method)}
}

// noFloat16 are the model types for which vLLM never chooses float16:
// _FLOAT16_NOT_SUPPORTED_MODELS of its config/model.py.
var noFloat16 = []string{"gemma2", "gemma3", "gemma3_text", "glm4"}

// dtype is _get_and_verify_dtype of vLLM's config/model.py, for a device that has
// bfloat16: GPUs of compute capability 8.0 and later, and CPUs.
func (c computer) dtype() (any, error) {
	const name = "dtype"
	config := c.dir.Config
	switch strings.ToLower(c.options.DType) {
	case "", "auto":
	case "half", "float16":
		return "torch.float16", nil
	case "float", "float32":
		return "torch.float32", nil
	case "bfloat16":
		return "torch.bfloat16", nil
	default:
		//diag unsupported NAME
		// The engine does not accept this value. Give one that it does, such as `bfloat16`.
		return nil, &Uncomputable{name, fmt.Sprintf("vLLM has no --dtype %q", c.options.DType)}
	}
	for _, part := range []hfconfig.Part{hfconfig.ElementType, hfconfig.Architecture} {
		if err := config.Check(part); err != nil {
			return nil, &Uncomputable{name, err.Error()}
		}
	}
	own := config.DType
	if own == "" {
		for _, key := range []string{"vision_config", "encoder_config"} {
			if config.Raw[key] != nil {
				return nil, &Uncomputable{name, fmt.Sprintf("config.json has none, and %s may decide", key)}
			}
		}
		var err error
		if own, err = c.fileDType(); err != nil {
			return nil, err
		}
	}
	if own == "bfloat16" || own == "float16" && !slices.Contains(noFloat16, config.ModelType) {
		return "torch." + own, nil
	}
	if _, err := tensor.ParseTorch("torch." + own); err != nil {
		//diag unsupported NAME
		// `config.json` names an element type that does not exist. Correct it, or give `--dtype`.
		return nil, &Uncomputable{name, fmt.Sprintf("torch has no dtype %q", own)}
	}
	// All other types become the device's preferred one, which differs for
	// models that vLLM doesn't generate text with.
	for _, suffix := range []string{"ForCausalLM", "ForConditionalGeneration", "ChatModel", "LMHeadModel"} {
		if len(config.Architectures) > 0 && strings.HasSuffix(config.Architectures[0], suffix) {
			return "torch.bfloat16", nil
		}
	}
	return nil, &Uncomputable{name, fmt.Sprintf("what %s becomes depends on the engine's --runner", own)}
}

// fileDType is the type of the tensors if all have the same one; float32 if there are
// smaller types beside it.
func (c computer) fileDType() (string, error) {
	if len(c.dir.Ignored) > 0 {
		return "", &Uncomputable{"dtype", "config.json has none, and files that are not loaded may decide"}
	}
	var seen []string
	for _, files := range [][]*weights.File{c.dir.Hashed, c.dir.Load} {
		for _, f := range files {
			for _, t := range f.Header.Tensors {
				if name := t.DType.Torch(); !slices.Contains(seen, name) {
					seen = append(seen, name)
				}
			}
		}
	}
	switch {
	case len(seen) == 0:
		return "float32", nil
	case len(seen) == 1 && seen[0] != "":
		return seen[0], nil
	}
	for _, name := range seen {
		if name != "float32" && name != "float16" && name != "bfloat16" {
			return "", &Uncomputable{"dtype", fmt.Sprintf("config.json has none, and the tensors are %s", strings.Join(seen, ", "))}
		}
	}
	if !slices.Contains(seen, "float32") {
		return "", &Uncomputable{"dtype", "config.json has none, and the tensors are both float16 and bfloat16"}
	}
	return "float32", nil
}
