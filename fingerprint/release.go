// SPDX-FileCopyrightText: The wcache authors
// SPDX-License-Identifier: MIT

package fingerprint

import (
	"regexp"
	"slices"
)

// Newest is the newest release whose key is known here.
const Newest = "0.33.0"

// keyFields are the fields of WeightCacheKey in each series of releases, in the
// class's order.
var keyFields = map[string][]string{
	"0.30": {
		"checkpoint", "model_arch", "tp_size", "tp_rank", "dtype", "quantization", "quant_config_hash",
		"revision", "vllm_version",
	},
	"0.31": {
		"checkpoint", "model_arch", "tp_size", "tp_rank", "dtype", "quantization", "quant_config_hash",
		"revision", "vllm_version", "is_draft", "dp_size", "dp_rank",
	},
	"0.32": {
		"checkpoint", "model_arch", "tp_size", "tp_rank", "dtype", "quantization", "quant_config_hash",
		"revision", "vllm_version", "pp_size", "pp_rank", "is_draft", "dp_size", "dp_rank",
	},
	"0.33": {
		"checkpoint", "model_arch", "tp_size", "tp_rank", "dtype", "quantization", "quant_config_hash",
		"rope_parameters_hash", "kv_cache_dtype", "kv_cache_dtype_skip_layers",
		"revision", "vllm_version", "pp_size", "pp_rank", "is_draft", "dp_size", "dp_rank",
		"enable_expert_parallel", "expert_placement_strategy",
		"moe_backend", "linear_backend", "linear_backend_per_quant",
	},
}

var version = regexp.MustCompile(`^(0\.\d+)\.\d+`)

// FieldNames are the fields of a release's key, in its class's order; false for a
// release of which they aren't known. The caller must not change them.
func FieldNames(release string) ([]string, bool) { return fieldsOf(release) }

// fieldsOf are the fields of a release's key. A patch release has those of its
// series; only .0 ones were looked at.
func fieldsOf(release string) ([]string, bool) {
	m := version.FindStringSubmatch(release)
	if m == nil {
		return nil, false
	}
	names, ok := keyFields[m[1]]
	return names, ok
}

// legacyQuant tells from the fields of a key whether its quant_config_hash is of
// the first form: it changed together with the coming of pp_size in 0.32.
func legacyQuant(names []string) bool { return !slices.Contains(names, "pp_size") }
