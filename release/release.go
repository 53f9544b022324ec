// SPDX-FileCopyrightText: The wcache authors
// SPDX-License-Identifier: MIT

// Package release has what wcache knows about each release of vLLM, one row per release. A new
// release needs a row here and golden data (HACKING.md, "A new release of vLLM").
package release

import (
	"regexp"
	"slices"
	"strings"
)

// Release is a release of vLLM whose messages, keys and layouts were compared with wcache's.
type Release struct {
	Version string // as its packages have it, "0.33.0"
	// Key are the fields of WeightCacheKey, in the class's order.
	Key []string
	// FirstQuantHash tells that quant_config_hash has the form from before 0.32.
	FirstQuantHash bool
	// Pipeline tells that the weight cache works with pipeline parallelism.
	Pipeline bool
	// Attrs tells that a reply has the attributes of the model's class.
	Attrs bool
	// Rope tells that the key says whether the engine overrides rope parameters.
	Rope bool
	// Torch is the series of torch that the release requires, "2.14".
	Torch string
}

// releases has all compared releases, oldest first. A patch release needs a row of its own.
var releases = []Release{
	{
		Version: "0.30.0", Torch: "2.13", FirstQuantHash: true,
		Key: fields("checkpoint model_arch tp_size tp_rank dtype quantization quant_config_hash revision vllm_version"),
	},
	{
		Version: "0.31.0", Torch: "2.13", FirstQuantHash: true, Attrs: true,
		Key: fields("checkpoint model_arch tp_size tp_rank dtype quantization quant_config_hash revision vllm_version is_draft dp_size dp_rank"),
	},
	{
		Version: "0.32.0", Torch: "2.13", Attrs: true, Pipeline: true,
		Key: fields(`checkpoint model_arch tp_size tp_rank dtype quantization quant_config_hash revision vllm_version
			pp_size pp_rank is_draft dp_size dp_rank`),
	},
	{
		Version: "0.33.0", Torch: "2.14", Attrs: true, Pipeline: true, Rope: true,
		Key: fields(`checkpoint model_arch tp_size tp_rank dtype quantization quant_config_hash
			rope_parameters_hash kv_cache_dtype kv_cache_dtype_skip_layers revision vllm_version pp_size pp_rank is_draft dp_size dp_rank
			enable_expert_parallel expert_placement_strategy moe_backend linear_backend linear_backend_per_quant`),
	},
}

func fields(names string) []string { return strings.Fields(names) }

// All lists the releases, oldest first. The caller must not change their slices.
func All() []Release { return slices.Clone(releases) }

// Versions lists the versions of all releases, oldest first.
func Versions() []string {
	var list []string
	for _, r := range releases {
		list = append(list, r.Version)
	}
	return list
}

// Newest is the newest release.
func Newest() Release { return releases[len(releases)-1] }

// Find gives the release of a version as an engine sends it. The version may have the local
// label of a build for CUDA or for the CPU, such as "+cu130". It refuses other builds, such as
// ROCm's, which lay weights out differently.
func Find(version string) (Release, bool) {
	public, local, labelled := strings.Cut(version, "+")
	if labelled && local != "cpu" {
		digits, cuda := strings.CutPrefix(local, "cu")
		if !cuda || digits == "" || strings.Trim(digits, "0123456789") != "" {
			return Release{}, false
		}
	}
	i := slices.IndexFunc(releases, func(r Release) bool { return r.Version == public })
	if i < 0 {
		return Release{}, false
	}
	return releases[i], true
}

// series matches the part of a version that patch releases share.
var series = regexp.MustCompile(`^\d+\.\d+\.`)

// Like gives the release of the same series as a version, for properties that patch releases
// don't change: the form of keys and replies.
func Like(version string) (Release, bool) {
	prefix := series.FindString(version)
	if prefix == "" {
		return Release{}, false
	}
	i := slices.IndexFunc(releases, func(r Release) bool { return strings.HasPrefix(r.Version, prefix) })
	if i < 0 {
		return Release{}, false
	}
	return releases[i], true
}
