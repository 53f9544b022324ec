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

// native reads a key as options of the native planner, and refuses a key that asks
// for more than the planner knows.
func native(key fingerprint.Key, assume []string) (layout.Options, error) {
	opt, err := layout.OptionsOf(key)
	if err != nil {
		return layout.Options{}, unsupported(err)
	}
	if err := complete(key, opt.Release); err != nil {
		return layout.Options{}, err
	}
	if _, said := key.Get("rope_parameters_hash"); !said && !slices.Contains(assume, config.AssumeRope) {
		//diag unsupported VERSION
		// Before release 0.33, the engine's key does not have rope parameters. Set
		// `assume = ["rope"]` if no engine of this service is started with `--hf-overrides`.
		return layout.Options{}, &Refusal{
			Field:  "vllm_version",
			Reason: fmt.Sprintf("vLLM %s does not say whether the engine overrides the model's rope parameters", opt.Release),
			Hint:   `if no engine here is started with --hf-overrides, set assume = ["rope"] in wcache.toml`,
		}
	}
	return opt, nil
}

// complete refuses a key whose fields aren't the ones that its release sends. An unknown
// field may change the weights, and a missing one shows that the engine's code was changed.
func complete(key fingerprint.Key, release string) error {
	names, _ := fingerprint.FieldNames(release) // of every release that can be planned for
	for _, name := range names {
		if _, ok := key.Get(name); !ok {
			//diag unsupported VERSION
			// The engine sent a key without a field that its release sends, so its code was
			// changed. Use an unmodified engine, or let it load from disk.
			return &Refusal{Field: name, Reason: fmt.Sprintf("the key lacks this field, which vLLM %s sends", release), Hint: odd}
		}
	}
	for _, f := range key.Fields() {
		if !slices.Contains(names, f.Name) {
			//diag unsupported VERSION
			// The engine sent a field that its release does not have, so its code was changed, and
			// the field may change the weights. Use an unmodified engine, or let it load from disk.
			return &Refusal{Field: f.Name, Reason: fmt.Sprintf("vLLM %s does not send this field; its effect on the weights is not known", release), Hint: odd}
		}
	}
	return nil
}

const odd = "run an unchanged vLLM of that version, or its own loader"

// unsupported makes a [*Refusal] of the error for something that the native loader can't build.
func unsupported(err error) error {
	var no *layout.Unsupported
	if errors.As(err, &no) {
		return &Refusal{Field: no.Field, Reason: no.Reason, Hint: "start the engine without --load-format ipc_cache: its own loader has to load this"}
	}
	return lasting(err)
}
