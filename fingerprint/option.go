// SPDX-FileCopyrightText: The wcache authors
// SPDX-License-Identifier: MIT

package fingerprint

// options are what determines each field, named as "vllm serve" of 0.30 to 0.33 names
// it: get_key of vllm/model_executor/model_loader/weight_cache/protocol.py and
// vllm/engine/arg_utils.py.
var options = map[string]string{
	"checkpoint":                 "the model's directory or id",
	"model_arch":                 "--hf-overrides, or another model",
	"tp_size":                    "--tensor-parallel-size",
	"tp_rank":                    "the worker's rank: each has an entry of its own",
	"dtype":                      "--dtype",
	"quantization":               "--quantization",
	"quant_config_hash":          "--quantization-config, or quantization_config of config.json",
	"rope_parameters_hash":       "--hf-overrides, or rope parameters of config.json",
	"kv_cache_dtype":             "--kv-cache-dtype",
	"kv_cache_dtype_skip_layers": "--kv-cache-dtype-skip-layers",
	"revision":                   "--revision",
	"vllm_version":               "the version of vLLM: one for all engines, or a load for each",
	"pp_size":                    "--pipeline-parallel-size",
	"pp_rank":                    "the worker's rank: each has an entry of its own",
	"is_draft":                   "--speculative-config: the draft model has a socket of its own",
	"dp_size":                    "--data-parallel-size",
	"dp_rank":                    "the engine's rank: each has an entry of its own",
	"enable_expert_parallel":     "--enable-expert-parallel",
	"expert_placement_strategy":  "--expert-placement-strategy",
	"moe_backend":                "--moe-backend",
	"linear_backend":             "--linear-backend",
	"linear_backend_per_quant":   "--kernel-config",
}

// OptionOf is what the user has to change to change a field of an engine's key: an option
// of the engine's command line, or a description of another cause. It is "" for an
// unknown field.
func OptionOf(field string) string { return options[field] }
