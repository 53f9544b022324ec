// SPDX-FileCopyrightText: The wcache authors
// SPDX-License-Identifier: MIT

package layout

import (
	"fmt"
	"maps"
	"math"
	"slices"

	"github.com/wcache/wcache/weights/hfconfig"
)

// ropeField is the key's field for rope. Keys of releases before 0.33 don't have it.
const ropeField = "rope_parameters_hash"

// cosSin plans the cos_sin_cache: get_rope of vllm/model_executor/layers/
// rotary_embedding. Every step uses the same precision as torch; the conversions to
// float32 keep the compiler from fusing two steps.
//
// Frequencies equal torch's on a CPU to the bit or, for a GPU, torch's on that GPU if they
// are recorded; else the note says so.
func (m *dense) cosSin(cuda bool) (rope Rope, note string, err error) {
	r := m.rope
	for _, key := range slices.Sorted(maps.Keys(r)) {
		if _, object := r[key].(map[string]any); object {
			//diag rope KEY VALUE
			// The model has one set of parameters for each type of layer, and wcache computes one
			// cache for all layers. The engine loads this model.
			return Rope{}, "", refuse(ropeField, "%s is %s: rope parameters for each layer type are not built", key, hfconfig.Show(r[key]))
		}
	}
	for _, k := range otherKinds {
		if v, given := r[k.key]; given && !oneOf(v, k.values) {
			//diag rope KEY VALUE
			// The key selects a kind of rope that wcache does not compute, such as that of
			// multimodal models. The engine loads this model.
			return Rope{}, "", refuse(ropeField, "%s is %s: rope of this kind is not built", k.key, hfconfig.Show(v))
		}
	}
	g := ropeGet{r: r, cuda: cuda}
	dim := g.rotaryDim(m.headDim)
	base := g.may("rope_theta", 10000)
	if g.err == nil && !(base >= 1 && base <= 1e30) {
		//diag rope VALUE
		// No model has such a base. Correct `config.json`, or the `--hf-overrides` of the engine.
		g.fail(refuse(ropeField, "rope_theta is %s, not between 1 and 1e30", hfconfig.Show(r["rope_theta"])))
	}
	kind := "default"
	if _, given := r["rope_type"]; given {
		kind = r.Type()
	}
	build, ok := ropes[kind]
	if !ok {
		//diag rope TYPE
		// wcache does not compute the cache of this kind of rope. The engine loads this model.
		g.fail(refuse(ropeField, "rope_type %q is not built", kind))
	}
	if g.err != nil {
		return Rope{}, "", g.err
	}
	out := build(&g, geometry{dim: dim, base: base, positions: m.positions, power: g.power})
	if g.err != nil {
		return Rope{}, "", g.err
	}
	if out.Rows <= 0 || out.Rows > maxPositions {
		//diag rope NUMBER
		// The number of positions, with the scaling factor, is not positive or larger than that of
		// any model. Correct `config.json`, or the `--hf-overrides` of the engine.
		return Rope{}, "", refuse(ropeField, "a cache of %d rows", out.Rows)
	}
	for _, f := range out.InvFreq {
		if !(f > 0 && f <= math.MaxFloat32) {
			//diag - the base and the factors are checked before
			return Rope{}, "", refuse(ropeField, "a frequency of %v", f)
		}
	}
	return out, g.note, nil
}

// otherKinds are rope parameters that select another kind of cache, unless they have one
// of the given values. For the first three, vLLM only asks whether they exist.
var otherKinds = []struct {
	key    string
	values []any
}{
	{"mrope_section", nil},
	{"xdrope_section", nil},
	{"alpha", nil},
	{"use_fope", []any{nil, false}},
	{"rope_dim", []any{nil}},
	{"short_factor", []any{nil}},
	{"long_factor", []any{nil}},
}

// geometry is the common basis of every kind of rope.
type geometry struct {
	dim       int // rotated elements of a head
	base      float64
	positions int64                                 // max_position_embeddings
	power     func(base float64, dim int) []float32 // base^(2i/dim) for each pair of elements
}

// ropeGet reads parameters, checks their documented types, and keeps the first error.
type ropeGet struct {
	r    hfconfig.Rope
	cuda bool
	err  error
	note string
}

func (g *ropeGet) fail(err error) {
	if g.err == nil {
		g.err = err
	}
}

// rotaryDim is how many of a head's elements are rotated.
func (g *ropeGet) rotaryDim(headDim int64) int {
	partial := g.may("partial_rotary_factor", 1)
	if g.err == nil && !(partial > 0 && partial <= 1) {
		//diag rope VALUE
		// The factor is the part of a head that is rotated. Correct `config.json`, or the
		// `--hf-overrides` of the engine.
		g.fail(refuse(ropeField, "partial_rotary_factor is %s, not between 0 and 1", hfconfig.Show(g.r["partial_rotary_factor"])))
	}
	dim := int(float64(headDim) * partial)
	if g.err == nil && (dim < 2 || dim%2 != 0) {
		//diag rope NUMBER
		// The head size times `partial_rotary_factor` has to be even and at least 2. Correct
		// `config.json`, or the `--hf-overrides` of the engine.
		g.fail(refuse(ropeField, "%d rotated elements of a head", dim))
	}
	return dim
}

// must is a required positive number.
func (g *ropeGet) must(key string) float64 {
	if _, given := g.r[key]; !given {
		//diag rope KEY
		// This `rope_type` needs the key. Add it to `config.json`, or to the `--hf-overrides` of
		// the engine.
		g.fail(refuse(ropeField, "%s is missing", key))
	}
	return g.positive(key, 1)
}

// positive is an optional positive number.
func (g *ropeGet) positive(key string, missing float64) float64 {
	v := g.may(key, missing)
	if !(v > 0 && v <= math.MaxInt32) {
		//diag rope KEY VALUE
		// The value has another type or is not above 0. Correct `config.json`, or the
		// `--hf-overrides` of the engine.
		g.fail(refuse(ropeField, "%s is %s, not a positive number", key, hfconfig.Show(g.r[key])))
	}
	return v
}

// may is a finite number, or missing if the key is absent.
func (g *ropeGet) may(key string, missing float64) float64 {
	v, given := g.r[key]
	if !given {
		return missing
	}
	switch v := v.(type) {
	case int64:
		return float64(v)
	case float64:
		if !math.IsNaN(v) && !math.IsInf(v, 0) {
			return v
		}
	}
	//diag rope KEY VALUE
	// The value has another type. Correct `config.json`, or the `--hf-overrides` of the engine.
	g.fail(refuse(ropeField, "%s is %s, not a number", key, hfconfig.Show(v)))
	return missing
}

// mayNone is may for a key whose None counts as absent in vLLM.
func (g *ropeGet) mayNone(key string, missing float64) float64 {
	if v, given := g.r[key]; given && v == nil {
		return missing
	}
	return g.may(key, missing)
}

// flag is true or false, or missing if the key is absent.
func (g *ropeGet) flag(key string, missing bool) bool {
	v, given := g.r[key]
	if !given {
		return missing
	}
	b, ok := v.(bool)
	if !ok {
		//diag rope KEY VALUE
		// The value has another type. Correct `config.json`, or the `--hf-overrides` of the engine.
		g.fail(refuse(ropeField, "%s is %s, not true or false", key, hfconfig.Show(v)))
	}
	return b
}

// ropes are the kinds that are built, by rope_type.
var ropes = map[string]func(*ropeGet, geometry) Rope{
	"default": plainRope,
	"linear":  linearRope,
	"dynamic": dynamicRope,
	"llama3":  llama3Rope,
	"yarn":    yarnRope,
}

func plainRope(_ *ropeGet, g geometry) Rope {
	return Rope{Rows: g.positions, InvFreq: g.inverse(g.base), PositionScale: 1, Magnitude: 1}
}

// linearRope stretches positions (linear_scaling_rope.py).
func linearRope(get *ropeGet, g geometry) Rope {
	r := plainRope(get, g)
	factor := get.must("factor")
	r.Rows = rows(float64(g.positions) * factor)
	r.PositionScale = float32(factor)
	return r
}

// dynamicRope raises the base (dynamic_ntk_scaling_rope.py).
func dynamicRope(get *ropeGet, g geometry) Rope {
	factor := get.must("factor")
	trained := get.positive("max_trained_positions", float64(g.positions))
	stretch := float64(factor*float64(g.positions)/trained) - (factor - 1)
	dim := float64(g.dim)
	base := g.base * math.Pow(stretch, dim/(dim-2))
	if get.err == nil && !(base >= 1 && base <= 1e30) {
		//diag rope NUMBER
		// `factor` and the numbers of positions give a base that no model has. Correct
		// `config.json`, or the `--hf-overrides` of the engine.
		get.fail(refuse(ropeField, "dynamic scaling makes a base of %s", hfconfig.Show(base)))
		return Rope{}
	}
	r := plainRope(get, g)
	r.InvFreq = g.inverse(base)
	return r
}

// llama3Rope slows low frequencies down and leaves high ones (llama3_rope.py).
func llama3Rope(get *ropeGet, g geometry) Rope {
	factor, low, high := get.must("factor"), get.must("low_freq_factor"), get.must("high_freq_factor")
	original := get.must("original_max_position_embeddings")
	r := plainRope(get, g)
	for i, f := range r.InvFreq {
		wave := float32(1/f) * float32(2*math.Pi)
		slow := f / float32(factor)
		switch {
		case wave < float32(original/high):
		case wave > float32(original/low) || low == high:
			r.InvFreq[i] = slow
		default:
			ratio := float32(1/wave) * float32(original)
			smooth := float32(ratio-float32(low)) / float32(high-low)
			rest := float32(float32(1-smooth)*f) / float32(factor)
			r.InvFreq[i] = rest + float32(smooth*f)
		}
	}
	return r
}

// yarnRope blends slowed and plain frequencies and scales the cache's values
// (yarn_scaling_rope.py and the yarn functions of common.py).
func yarnRope(get *ropeGet, g geometry) Rope {
	factor, original := get.must("factor"), get.must("original_max_position_embeddings")
	fast, slow := get.positive("beta_fast", 32), get.positive("beta_slow", 1)
	magnitude := get.mayNone("attention_factor", math.NaN())
	m, all := get.mayNone("mscale", 0), get.mayNone("mscale_all_dim", 0)
	switch {
	case !math.IsNaN(magnitude):
	case m != 0 && all != 0:
		magnitude = yarnScale(factor, m) / yarnScale(factor, all)
	default:
		magnitude = yarnScale(factor, 1)
	}
	if math.Abs(magnitude) > math.MaxFloat32 {
		//diag rope NUMBER
		// `factor`, `mscale` or `attention_factor` gives values that are not finite in 32 bits.
		// Correct `config.json`, or the `--hf-overrides` of the engine.
		get.fail(refuse(ropeField, "yarn scaling makes values %s times as large", hfconfig.Show(magnitude)))
	}
	correction := func(rotations float64) float64 {
		return float64(g.dim) * math.Log(original/(rotations*2*math.Pi)) / (2 * math.Log(g.base))
	}
	from, to := correction(fast), correction(slow)
	if get.flag("truncate", true) {
		from, to = math.Floor(from), math.Ceil(to)
	}
	from, to = max(from, 0), min(to, float64(g.dim-1))
	if from == to {
		to += 0.001
	}
	frequencies := g.power(g.base, g.dim)
	for i, p := range frequencies {
		ramp := float32(float32(i)-float32(from)) / float32(to-from)
		mask := 1 - min(max(ramp, 0), 1)
		slowed := 1 / float32(float32(factor)*p)
		frequencies[i] = float32(slowed*float32(1-mask)) + float32(float32(1/p)*mask)
	}
	return Rope{Rows: rows(original * factor), InvFreq: frequencies, PositionScale: 1, Magnitude: float32(magnitude)}
}

func yarnScale(factor, m float64) float64 {
	if factor <= 1 {
		return 1
	}
	return float64(0.1*m*math.Log(factor)) + 1
}

// rows is the length of torch.arange(n).
func rows(n float64) int64 {
	if !(n <= maxPositions) {
		return -1
	}
	return int64(math.Ceil(n))
}

// inverse is 1/base^(2i/dim) for each pair of elements.
func (g geometry) inverse(base float64) []float32 {
	f := g.power(base, g.dim)
	for i := range f {
		f[i] = 1 / f[i]
	}
	return f
}

// lanes is how many elements torch's vectorised kernel computes at once on a CPU with
// AVX-512: two vectors. The remaining elements go through the C library, which rounds
// correctly except for rare cases. AVX2 has half as many lanes, which makes no difference
// for head sizes that are multiples of 64; none was seen for other sizes either.
const lanes = 32

// power is base^(2i/dim) as torch computes it on the engine's device.
func (g *ropeGet) power(base float64, dim int) []float32 {
	f := powers(base, dim)
	if g.cuda && !onCUDA(f, base, dim) {
		g.note = fmt.Sprintf("CUDA's rope frequencies of base %v and %d elements are not recorded: cos_sin_cache may differ by more than its last bit at high positions", base, dim)
	}
	return f
}

// powers is base^(2i/dim) as torch computes it on a CPU.
func powers(base float64, dim int) []float32 {
	f := make([]float32, dim/2)
	for i := range f {
		f[i] = float32(2*i) / float32(dim)
	}
	vector := len(f) / lanes * lanes
	for i, e := range f[:vector] {
		f[i] = pow32(float32(base), e)
	}
	for i, e := range f[vector:] {
		f[vector+i] = float32(math.Pow(float64(float32(base)), float64(e)))
	}
	return f
}
