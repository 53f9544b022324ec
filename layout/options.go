// SPDX-FileCopyrightText: The wcache authors
// SPDX-License-Identifier: MIT

package layout

import (
	"fmt"
	"strings"

	"github.com/wcache/wcache/release"
	"github.com/wcache/wcache/tensor"
)

// Options says for which engine a plan is made.
type Options struct {
	Rank    Rank
	DType   tensor.DType // of the model's parameters: BF16, F16 or F32
	Release string       // vLLM's version as the engine sends it, such as "0.33.0"
	CUDA    bool         // the engine runs on an NVIDIA GPU, which computes rope's frequencies
}

// Rank says which part of a model a plan is for. A size of 0 counts as 1, as keys
// of vLLM 0.30 and 0.31 have no pipeline fields.
type Rank struct {
	TPSize, TPRank int
	PPSize, PPRank int
}

// maxRanks bounds both sizes of a [Rank].
const maxRanks = 1 << 12

// check reports options for which no model can be planned, and replaces sizes of zero.
func (o *Options) check() error {
	of, known := release.Find(o.Release)
	if !known {
		//diag unsupported VERSION LIST
		// Another release may place weights differently, and an engine would compute wrong results
		// without a message. Use a release of the list, or a newer wcache.
		return refuse("vllm_version", "layouts of vLLM %q have not been checked, only those of %s", o.Release, strings.Join(release.Versions(), ", "))
	}
	if o.DType != tensor.BF16 && o.DType != tensor.F16 && o.DType != tensor.F32 {
		//diag unsupported TYPE
		// The engine computes with another element type. Give it `--dtype` with one of the three,
		// or let it load from disk.
		return refuse("dtype", "parameters of type %s, not bfloat16, float16 or float32", o.DType)
	}
	r := &o.Rank
	if r.TPSize == 0 {
		r.TPSize = 1
	}
	if r.PPSize == 0 {
		r.PPSize = 1
	}
	switch {
	case r.TPSize < 0 || r.TPSize > maxRanks:
		//diag - a key's sizes are checked in OptionsOf, and those of the command line before
		return refuse("tp_size", "%d is not a number of ranks", r.TPSize)
	case r.TPRank < 0 || r.TPRank >= r.TPSize:
		//diag unsupported NUMBER NUMBER
		// Ranks count from 0 to the size less one. Correct the rank that the client sends; an
		// unmodified engine sends a valid one.
		return refuse("tp_rank", "there is no rank %d of %d", r.TPRank, r.TPSize)
	case r.PPSize < 0 || r.PPSize > maxRanks:
		return refuse("pp_size", "%d is not a number of ranks", r.PPSize)
	case r.PPRank < 0 || r.PPRank >= r.PPSize:
		return refuse("pp_rank", "there is no rank %d of %d", r.PPRank, r.PPSize)
	case r.PPSize > 1 && !of.Pipeline:
		//diag unsupported VERSION
		// Release 0.32 is the first whose weight cache works with pipeline parallelism. Use a newer
		// engine, or a pipeline-parallel size of 1.
		return refuse("pp_size", "the weight cache of vLLM %s has no pipeline parallelism", o.Release)
	}
	return nil
}

// Key is what an engine sends to name the weights that it wants, by field;
// fingerprint.Key is one. Get's values are nil, bool, int64, float64, string, or
// a tuple of these.
type Key interface {
	Get(name string) (value any, ok bool)
}

// plain lists fields of a key that change weights by rules outside of this package unless
// they have these values, and why other values are refused. A release without a field has
// the first value.
var plain = []struct {
	field  string
	values []any
	reason string
}{
	{"is_draft", []any{false}, "draft models share tensors with their target"},
	{"quantization", []any{nil}, quantized},
	//diag unsupported
	// The engine has `--kv-cache-dtype` with a value such as `fp8`, which adds scales to the model.
	// Leave the option out, or let the engine load from disk.
	{"kv_cache_dtype", []any{"auto"}, "scales of a KV cache of another type are not known"},
	//diag unsupported
	// The engine's key has several data-parallel ranks. Start one engine per rank without
	// `--data-parallel-size`, or let the engines load from disk.
	{"dp_size", []any{int64(1)}, "dense models have no data-parallel layout"},
	//diag unsupported
	// The engine has `--linear-backend`, and a backend may rearrange weights. Leave the option out,
	// or let the engine load from disk.
	{"linear_backend", []any{"auto"}, "a chosen backend may store weights in its own way"},
}

// OptionsOf reads an engine's key. The error is an [*Unsupported] if no plan can be made
// for the key. It ignores fields that a directory decides, such as checkpoint or
// model_arch: [New] reads the directory.
//
// The key doesn't contain everything. These engine options change the tensors and are in
// no key, so a plan is wrong for an engine that uses them: VLLM_PP_LAYER_PARTITION,
// EAGLE-like speculation with pipeline parallelism (the last stage has embed_tokens
// then), runner and convert (an embedding model has no lm_head), hf_overrides other than
// rope's, and before 0.33 those of rope too.
func OptionsOf(k Key) (Options, error) {
	for _, p := range plain {
		if v, ok := k.Get(p.field); ok && !oneOf(v, p.values) {
			return Options{}, refuse(p.field, "%v: %s", v, p.reason)
		}
	}
	var o Options
	o.Release, _ = text(k, "vllm_version")
	name, ok := text(k, "dtype")
	dtype, err := tensor.ParseTorch(name)
	if !ok || err != nil {
		//diag unsupported TYPE
		// The field `dtype` of the key does not have the form that an engine sends. Use an
		// unmodified engine, or let it load from disk.
		return Options{}, refuse("dtype", "%q is no element type", name)
	}
	o.DType = dtype
	for _, f := range []struct {
		name  string
		to    *int
		least int64
	}{
		{"tp_size", &o.Rank.TPSize, 1}, {"tp_rank", &o.Rank.TPRank, 0},
		{"pp_size", &o.Rank.PPSize, 1}, {"pp_rank", &o.Rank.PPRank, 0},
	} {
		v, ok := k.Get(f.name)
		if !ok {
			continue
		}
		n, ok := v.(int64)
		if !ok || n < f.least || n > maxRanks {
			//diag unsupported NUMBER
			// The key has a value there that is not an integer in its range. Use an unmodified
			// engine, or let it load from disk.
			return Options{}, refuse(f.name, "%v is no rank or number of ranks", v)
		}
		*f.to = int(n)
	}
	return o, o.check()
}

func text(k Key, field string) (string, bool) {
	v, _ := k.Get(field)
	s, ok := v.(string)
	return s, ok
}

// oneOf compares by type and value; a tuple equals nothing.
func oneOf(v any, values []any) bool {
	switch v.(type) {
	case nil, bool, int64, float64, string:
		for _, x := range values {
			if v == x {
				return true
			}
		}
	}
	return false
}

// refuse makes an [*Unsupported].
func refuse(field, format string, args ...any) error {
	return &Unsupported{Field: field, Reason: fmt.Sprintf(format, args...)}
}
