// SPDX-FileCopyrightText: The wcache authors
// SPDX-License-Identifier: MIT

package hfconfig

import (
	"fmt"
	"maps"
	"slices"
)

// Rope is a normalised rope_parameters: one flat set of values, or one set per layer
// type, see [Rope.Nested]. Values are as in [Config.Raw].
type Rope map[string]any

// Nested tells whether there is one set of values per layer type. Then the method
// below answers for none of the sets.
func (r Rope) Nested() bool {
	for _, v := range r {
		if _, ok := v.(map[string]any); ok {
			return true
		}
	}
	return false
}

// Type is rope_type, such as "default" or "llama3".
func (r Rope) Type() string { s, _ := r["rope_type"].(string); return s }

// defaultTheta is RotaryEmbeddingConfigMixin.default_theta.
const defaultTheta = 10000.0

// scaled are the types whose parameters contain the positions of the training.
var scaled = []string{"llama3", "yarn", "longrope"}

// normalizer does to a file's rope parameters what transformers and vLLM do to them on
// their way into a config object. text is the (text) part of the file.
type normalizer struct {
	text         map[string]any
	maxPositions int64
	phi3         bool     // Phi3Config has a conversion of its own
	labels       []string // keys that a nested dictionary may have, from layer_types
	flat         bool     // no dictionary may be nested
}

// normalize gives nil and no error if the file has no rope parameters.
func (n normalizer) normalize() (Rope, error) {
	given, err := n.given()
	if err != nil {
		return nil, err
	}
	rope := clone(given)
	parts, nested, err := n.parts(rope)
	if err != nil {
		return nil, err
	}

	// convert_rope_params_to_dict: keys beside the dictionary move into it.
	theta, ok := n.text["rope_theta"]
	if !ok {
		theta = defaultTheta
	}
	partial, ok := n.text["partial_rotary_factor"]
	if !ok && n.phi3 {
		partial, ok = 1.0, true
	}
	for _, p := range parts {
		setDefault(p, "rope_theta", theta)
		if partial != nil || n.phi3 && ok {
			setDefault(p, "partial_rotary_factor", partial)
		}
	}
	n.standardize(parts, n.phi3 && !nested)
	if n.phi3 && (rope["rope_type"] == "su" || rope["rope_type"] == "yarn") {
		rope["rope_type"] = "longrope"
	}

	// vLLM's patch_rope_parameters: older names again, now including those that have
	// become attributes of the config object in between.
	for _, name := range []string{"partial_rotary_factor", "rotary_pct", "rotary_emb_fraction"} {
		v, ok := n.text[name]
		if !ok || name == "partial_rotary_factor" && !n.phi3 {
			continue // all except Phi3Config have consumed it
		}
		if v != nil {
			for _, p := range parts {
				setDefault(p, "partial_rotary_factor", v)
			}
		}
		break
	}
	for _, p := range whole(rope) {
		if err := patchLegacy(p); err != nil {
			return nil, err
		}
	}
	_, attribute := n.text["original_max_position_embeddings"]
	n.standardize(parts, (n.phi3 || attribute) && !nested)
	return rope, nil
}

// given is the dictionary of the file. The older name wins if bool() of its value is
// true, whatever its type; the value of the newer name must be a dictionary or None.
func (n normalizer) given() (map[string]any, error) {
	const want = "an object"
	newer, ok := n.text["rope_parameters"].(map[string]any)
	if v := n.text["rope_parameters"]; v != nil && !ok {
		return nil, invalid("rope_parameters", v, want)
	}
	v := n.text["rope_scaling"]
	switch {
	case truthy(v):
	case newer == nil:
		return map[string]any{}, nil
	default:
		return newer, nil
	}
	older, ok := v.(map[string]any)
	if !ok {
		return nil, invalid("rope_scaling", v, want)
	}
	return older, nil
}

// parts are the dictionaries that hold the values: rope itself, or the ones nested in
// it, of which one may be null for layers without rope.
func (n normalizer) parts(rope map[string]any) (parts []map[string]any, nested bool, err error) {
	for _, key := range slices.Sorted(maps.Keys(rope)) {
		if !slices.Contains(n.labels, key) {
			continue
		}
		nested = true
		switch v := rope[key].(type) {
		case nil:
		case map[string]any:
			parts = append(parts, v)
		default:
			return nil, false, invalid(key, v, "an object of rope parameters")
		}
	}
	if !nested {
		parts = []map[string]any{rope}
	}
	for _, key := range slices.Sorted(maps.Keys(rope)) {
		if n.flat && isObject(rope[key]) {
			return nil, false, fmt.Errorf("rope parameters have the object %q, and the class of this model no layer types", key)
		}
		if nested && !slices.Contains(n.labels, key) && !slices.Contains(layerNames, key) {
			return nil, false, fmt.Errorf("rope parameters have %q beside those of layer types", key)
		}
	}
	return parts, nested, nil
}

func isObject(v any) bool { _, ok := v.(map[string]any); return ok }

// layerNames may appear although no layer has them.
var layerNames = []string{"full_attention", "sliding_attention"}

// standardize is standardize_rope_params. attribute tells that the config object has
// its own original_max_position_embeddings, which then wins.
func (n normalizer) standardize(parts []map[string]any, attribute bool) {
	for _, p := range parts {
		kind, ok := p["type"]
		if !ok {
			kind = "default"
		}
		setDefault(p, "rope_type", kind)
		if name, _ := p["rope_type"].(string); !slices.Contains(scaled, name) {
			continue
		}
		if attribute {
			p["original_max_position_embeddings"] = n.original()
		} else {
			setDefault(p, "original_max_position_embeddings", n.maxPositions)
		}
	}
}

// whole are the dictionaries as vLLM identifies them: all nested ones, whether a layer
// has their name or not, or rope itself.
func whole(rope map[string]any) []map[string]any {
	var parts []map[string]any
	for _, v := range rope {
		p, ok := v.(map[string]any)
		if !ok && v != nil {
			return []map[string]any{rope}
		}
		if ok {
			parts = append(parts, p)
		}
	}
	return parts
}

// original is the attribute original_max_position_embeddings; 4096 is Phi3Config's
// default, and other classes have none.
func (n normalizer) original() any {
	v, ok := n.text["original_max_position_embeddings"]
	if !ok {
		return int64(4096)
	}
	return v
}

// patchLegacy is vLLM's patch_legacy_rope_type, except for telechat3-yarn, whose
// logarithm could differ from Python's in the last bit.
func patchLegacy(p map[string]any) error {
	if v, ok := p["type"]; ok {
		setDefault(p, "rope_type", v)
	}
	v, ok := p["rope_type"]
	if !ok {
		return nil
	}
	kind, ok := v.(string)
	if !ok {
		return invalid("rope_type", v, "a string")
	}
	if v, ok := p["type"]; ok {
		old, _ := v.(string)
		renamed := kind == "longrope" && old == "su" || kind == "default" && old == "mrope"
		if kind != old && !renamed {
			return invalid("type", v, fmt.Sprintf("%q as rope_type", kind))
		}
	}
	switch kind {
	case "su":
		p["rope_type"] = "longrope"
	case "mrope":
		if _, ok := p["mrope_section"]; !ok {
			return fmt.Errorf("rope_type %q without mrope_section", kind)
		}
		p["rope_type"] = "default"
	case "telechat3-yarn":
		return fmt.Errorf("rope_type %q is not supported", kind)
	}
	return nil
}

func setDefault(m map[string]any, key string, v any) {
	if _, ok := m[key]; !ok {
		m[key] = v
	}
}

// clone copies a dictionary and the dictionaries in it, so that normalising doesn't
// change Raw. Lists are shared, because they aren't changed here.
func clone(m map[string]any) map[string]any {
	c := maps.Clone(m)
	for k, v := range c {
		if inner, ok := v.(map[string]any); ok {
			c[k] = clone(inner)
		}
	}
	return c
}
