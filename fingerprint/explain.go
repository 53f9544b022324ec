// SPDX-FileCopyrightText: The wcache authors
// SPDX-License-Identifier: MIT

package fingerprint

import (
	"errors"
	"fmt"
	"strings"

	"github.com/wcache/wcache/release"
	"github.com/wcache/wcache/weights"
)

// Blame says where a difference comes from.
type Blame string

const (
	// Directory means that the engine runs on another model directory.
	Directory Blame = "directory"
	// Option means that the engine's command line causes the difference, whatever the
	// directory.
	Option Blame = "option"
	// Unknown means that the field can't be computed from this directory, so the
	// directory may still be the right one.
	Unknown Blame = "unknown"
)

// Difference is a field of an engine's key whose value differs from that of a
// directory's files, or can't be computed from them.
type Difference struct {
	Field    string `json:"field"`
	Engine   any    `json:"engine"`
	Computed any    `json:"computed"` // nil if it isn't certain
	Why      string `json:"why"`      // for people: the engine's option or the file that causes it
	Blame    Blame  `json:"blame"`
	// Certain tells that the directory gives a value, and that it differs from the
	// engine's. If not, the value can't be computed, such as from a config.json with
	// values of undocumented types, and may equal the engine's: then the directory must
	// not be excluded.
	Certain bool `json:"certain"`
}

// Explain compares the fields of an engine's key that come from files with the values
// of a directory: checkpoint, model_arch, dtype, quantization, quant_config_hash and
// rope_parameters_hash, in this order, and only those that the key has. For an engine
// without options, on its own directory, there is no difference. Fields that can't be
// computed are in the list, as Unknown and not Certain.
//
// A checkpoint that is a model's name or path says nothing about a directory, and is
// not compared.
func Explain(engine Key, d *weights.Dir) []Difference {
	of, _ := release.Like(engine.Str("vllm_version"))
	c := computer{dir: d, options: Options{FIPS: usesSHA256(engine)}, firstQuantHash: of.FirstQuantHash}
	var list []Difference
	online := false // an option quantizes the model
	for _, name := range computed {
		theirs, ok := engine.Get(name)
		if !ok || name == "checkpoint" && !isHash(engine.Str(name)) {
			continue
		}
		ours, err := c.field(name)
		if err != nil {
			list = append(list, Difference{Field: name, Engine: theirs, Why: reason(err), Blame: Unknown})
			continue
		}
		if same(theirs, ours) {
			continue
		}
		if name == "quantization" && ours == nil {
			online = true
		}
		diff := Difference{Field: name, Engine: theirs, Computed: ours, Certain: true}
		diff.Why, diff.Blame = why(name, online, engine)
		list = append(list, diff)
	}
	return list
}

// reason leaves out the field, which is shown beside it.
func reason(err error) string {
	var u *Uncomputable
	if errors.As(err, &u) {
		return u.Reason
	}
	return err.Error()
}

// why says what determines a field.
func why(name string, online bool, engine Key) (string, Blame) {
	switch name {
	case "checkpoint":
		return "the names or headers of the safetensors files differ", Directory
	case "model_arch":
		return "architectures of config.json, unless the engine has --hf-overrides", Directory
	case "dtype":
		return fmt.Sprintf("the engine was started with --dtype %s, or its GPU has no bfloat16", strings.TrimPrefix(engine.Str(name), "torch.")), Option
	case "quantization":
		if online {
			return fmt.Sprintf("the engine quantizes while it loads: --quantization %s", engine.Str(name)), Option
		}
		return "quantization_config of config.json", Directory
	case "quant_config_hash":
		if online {
			return "follows from the engine's --quantization", Option
		}
		return "quantization_config of config.json, unless the engine has --quantization-config", Directory
	default: // rope_parameters_hash
		return "rope parameters and max_position_embeddings of config.json, unless the engine has --hf-overrides", Directory
	}
}

// isHash tells a checkpoint hash from a model's name.
func isHash(s string) bool {
	return (len(s) == 32 || len(s) == 64) && strings.Trim(s, "0123456789abcdef") == ""
}

// usesSHA256 tells from the length of its hashes which kind a key has.
func usesSHA256(k Key) bool {
	for _, name := range []string{"checkpoint", "quant_config_hash", "rope_parameters_hash"} {
		if s := k.Str(name); isHash(s) {
			return len(s) == 64
		}
	}
	return false
}
