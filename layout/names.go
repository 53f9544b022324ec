// SPDX-FileCopyrightText: The wcache authors
// SPDX-License-Identifier: MIT

package layout

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/wcache/wcache/weights"
	"github.com/wcache/wcache/weights/safetensors"
)

// source is a tensor of the checkpoint under the name that vLLM's classes know.
type source struct {
	file  *weights.File
	t     safetensors.Tensor
	pairs bool // rows of each head alternate between its two halves, as in Mistral's own wq and wk
}

// leftovers are substrings of names that vLLM drops: rotary caches of old
// exporters (REMOVE_UNUSED_ROTARY_EMBEDS_MAPPER in models/utils.py).
var leftovers = [...]string{
	"rotary_pos_emb.inv_freq", "rotary_emb.inv_freq", "rotary_emb.cos_cached", "rotary_emb.sin_cached",
}

// sources indexes the checkpoint. A tensor that vLLM neither loads nor drops is an error
// in vLLM, and refused here. The notes name the dropped tensors.
func (m *dense) sources(d *weights.Dir) (map[string]source, []string, error) {
	known := m.known()
	found := make(map[string]source)
	var dropped []string
	for file, t := range d.All() {
		s := source{file: file, t: t}
		name := t.Name
		if native, pairs, ok := fromMistral(name); ok && m.native {
			name, s.pairs = native, pairs
		}
		switch m.place(name, known) {
		case unknown:
			//diag unsupported NAME FILE REASON
			// The checkpoint has a tensor that the architecture does not have, for the given
			// reason. The engine loads this model.
			return nil, nil, refuse("checkpoint", "tensor %q of %s: %s", t.Name, file.Base, m.whyUnknown(t.Name))
		case droppedTensor:
			dropped = append(dropped, t.Name)
		case loaded:
			if other, twice := found[name]; twice {
				//diag unsupported NAME NAME ARCHITECTURE
				// The checkpoint has one weight of the architecture under two names, and which of
				// them the engine takes depends on their order. Remove one, or let the engine load
				// from disk.
				return nil, nil, refuse("checkpoint", "tensors %q and %q are the same to %s", other.t.Name, t.Name, m.arch)
			}
			found[name] = s
		}
	}
	if n := len(dropped); n > 0 {
		return found, []string{fmt.Sprintf("%d tensors that vLLM drops, such as %q", n, dropped[0])}, nil
	}
	return found, nil, nil
}

// The places that a tensor of the checkpoint can have.
type place int

const (
	unknown place = iota
	loaded
	droppedTensor
)

// known maps each module name that a checkpoint may use to whether it has a bias. Names of a
// layer's modules have no "model.layers.N.".
func (m *dense) known() map[string]bool {
	names := map[string]bool{"model.embed_tokens": false, "model.norm": false, "lm_head": false}
	for _, mod := range m.layer() {
		if m.fused || len(mod.parts) == 1 {
			names[mod.name] = mod.bias
		}
		for _, p := range mod.parts {
			names[mod.beside(p)] = mod.bias
		}
	}
	return names
}

// place follows AutoWeightsLoader, which drops the bias of a module without one, as GPTQ's
// tools leave them behind. Tensors of other pipeline stages count as loaded: their names
// are valid, but this rank doesn't need them.
func (m *dense) place(name string, known map[string]bool) place {
	for _, s := range leftovers {
		if strings.Contains(name, s) {
			return droppedTensor
		}
	}
	owner, weight := strings.CutSuffix(name, ".weight")
	if !weight {
		var bias bool
		if owner, bias = strings.CutSuffix(name, ".bias"); !bias {
			return unknown
		}
	}
	if rest, ok := strings.CutPrefix(owner, "model.layers."); ok {
		number, inner, _ := strings.Cut(rest, ".")
		n, err := strconv.ParseInt(number, 10, 64)
		if err != nil || n < 0 || n >= m.layers || strconv.FormatInt(n, 10) != number || strings.HasPrefix(inner, "model.") || inner == "lm_head" {
			return unknown
		}
		owner = inner
	} else if !strings.HasPrefix(owner, "model.") && owner != "lm_head" {
		return unknown
	}
	biased, ok := known[owner]
	switch {
	case !ok:
		return unknown
	case weight || biased:
		return loaded
	}
	return droppedTensor
}

// whyUnknown says what a refused tensor probably is.
func (m *dense) whyUnknown(name string) string {
	_, _, native := fromMistral(name)
	switch {
	case native && !m.native:
		return "vLLM reads Mistral's own names for MistralForCausalLM only"
	case strings.HasSuffix(name, "_scale") || strings.HasSuffix(name, "_zero_point") || strings.HasSuffix(name, "_scale_inv"):
		return "scales of a quantized checkpoint or KV cache are not built"
	}
	return "no module of " + m.arch + " has it"
}

// beside is the name of a part in the checkpoint.
func (mod module) beside(p part) string {
	return mod.name[:strings.LastIndexByte(mod.name, '.')+1] + p.name
}

// mistralModules maps Mistral's own module names to those of transformers
// (mistral_mapping in models/mistral.py).
var mistralModules = map[string]string{
	"attention.wq":    "self_attn.q_proj",
	"attention.wk":    "self_attn.k_proj",
	"attention.wv":    "self_attn.v_proj",
	"attention.wo":    "self_attn.o_proj",
	"feed_forward.w1": "mlp.gate_proj",
	"feed_forward.w2": "mlp.down_proj",
	"feed_forward.w3": "mlp.up_proj",
	"attention_norm":  "input_layernorm",
	"ffn_norm":        "post_attention_layernorm",
	"tok_embeddings":  "model.embed_tokens",
	"output":          "lm_head",
	"norm":            "model.norm",
}

// fromMistral translates one of Mistral's own names of a weight.
func fromMistral(name string) (translated string, pairs, ok bool) {
	owner, ok := strings.CutSuffix(name, ".weight")
	if !ok {
		return "", false, false
	}
	prefix := ""
	if rest, inLayer := strings.CutPrefix(owner, "layers."); inLayer {
		number, inner, _ := strings.Cut(rest, ".")
		prefix, owner = "model.layers."+number+".", inner
	}
	to, ok := mistralModules[owner]
	if top := strings.HasPrefix(to, "model.") || to == "lm_head"; !ok || top != (prefix == "") {
		return "", false, false
	}
	return prefix + to + ".weight", owner == "attention.wq" || owner == "attention.wk", true
}
