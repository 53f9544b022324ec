// SPDX-FileCopyrightText: The wcache authors
// SPDX-License-Identifier: MIT

package resolve

import (
	"errors"
	"fmt"
	"slices"

	"github.com/wcache/wcache/config"
	"github.com/wcache/wcache/fingerprint"
	"github.com/wcache/wcache/layout"
)

// native reads a key as orders to the native planner, and refuses one that asks
// for more than the planner knows.
func native(key fingerprint.Key, assume []string) (layout.Options, error) {
	opt, err := layout.OptionsOf(key)
	if err != nil {
		return layout.Options{}, unsupported(err)
	}
	if _, said := key.Get("rope_parameters_hash"); !said && !slices.Contains(assume, config.AssumeRope) {
		return layout.Options{}, &Refusal{
			Field:  "vllm_version",
			Reason: fmt.Sprintf("vLLM %s does not say whether the engine overrides the model's rope parameters", opt.Release),
			Hint:   `if no engine here is started with --hf-overrides, set assume = ["rope"] in wcache.toml`,
		}
	}
	return opt, nil
}

// unsupported makes a Refusal of what the native loader doesn't build.
func unsupported(err error) error {
	var no *layout.Unsupported
	if errors.As(err, &no) {
		return &Refusal{Field: no.Field, Reason: no.Reason, Hint: "start the engine without --load-format ipc_cache: its own loader has to load this"}
	}
	return unusable(err)
}
