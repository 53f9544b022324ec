// SPDX-FileCopyrightText: The wcache authors
// SPDX-License-Identifier: MIT

package layout

import "math"

// torch computes powers of float32 on a CPU with the powf of SLEEF (its xpowf, with
// an error bound of 1.0 ulp and fused multiply-add; SLEEF is under the Boost
// Software License 1.0). It is off the correctly rounded result in about one of a
// hundred cases, and an inverse frequency that is off by its last bit shows in a
// cos_sin_cache at high positions. So its steps are repeated here, for the domain
// that is needed: finite x ≥ 1, and results that don't overflow.

// pair is an unevaluated sum of two float32, hi the larger.
type pair struct{ hi, lo float32 }

// pow32 is x to the power of y as torch's CPU kernel computes it.
func pow32(x, y float32) float32 {
	return exp32(mulScalar(log32(x), y))
}

// log32 is logkf: x = m·2^e, and the series of 2·atanh((m-1)/(m+1)).
func log32(x float32) pair {
	const ratio = 1.0 / 0.75 // moves m into [0.75, 1.5)
	_, e := math.Frexp(float64(x * ratio))
	e--
	m := float32(math.Ldexp(float64(x), -e))
	r := div(add2(pair{hi: -1}, pair{hi: m}), add2(pair{hi: 1}, pair{hi: m}))
	sq := square(r)
	t := float32(0.240320354700088500976562)
	t = fma32(t, sq.hi, 0.285112679004669189453125)
	t = fma32(t, sq.hi, 0.400007992982864379882812)
	c := pair{0.66666662693023681640625, 3.69183861259614332084311e-09}
	s := mulScalar(pair{0.69314718246459960938, -1.904654323148236017e-09}, float32(e))
	s = add(s, pair{2 * r.hi, 2 * r.lo})
	return add(s, mul(mul(sq, r), add2(mulScalar(sq, t), c)))
}

// exp32 is expkf: d = q·ln2 + s, and a polynomial of s.
func exp32(d pair) float32 {
	const (
		ln2Inverse = 1.442695040888963407359924681001892137426645954152985934135449406931
		ln2Hi      = 0.693145751953125
		ln2Lo      = 1.428606765330187045e-06
	)
	q := float32(math.RoundToEven(float64(float32(float32(d.hi+d.lo) * ln2Inverse))))
	s := add2(d, pair{hi: q * -ln2Hi})
	s = add2(s, pair{hi: q * -ln2Lo})
	s = normalize(s)
	u := float32(0.00136324646882712841033936)
	for _, c := range [...]float32{
		0.00836596917361021041870117, 0.0416710823774337768554688,
		0.166665524244308471679688, 0.499999850988388061523438,
	} {
		u = fma32(u, s.hi, c)
	}
	t := add(pair{hi: 1}, add(s, mulScalar(square(s), u)))
	return float32(math.Ldexp(float64(float32(t.hi+t.lo)), int(q)))
}

// add is the sum of two pairs where |x| ≥ |y|.
func add(x, y pair) pair {
	s := x.hi + y.hi
	return pair{s, float32(float32(float32(x.hi-s)+y.hi)+x.lo) + y.lo}
}

// add2 is the sum of any two pairs.
func add2(x, y pair) pair {
	s := x.hi + y.hi
	v := s - x.hi
	t := float32(x.hi-float32(s-v)) + float32(y.hi-v)
	return pair{s, t + float32(x.lo+y.lo)}
}

func normalize(x pair) pair {
	s := x.hi + x.lo
	return pair{s, float32(x.hi-s) + x.lo}
}

func mul(x, y pair) pair {
	s := x.hi * y.hi
	return pair{s, fma32(x.hi, y.lo, fma32(x.lo, y.hi, fma32(x.hi, y.hi, -s)))}
}

func mulScalar(x pair, y float32) pair {
	s := x.hi * y
	return pair{s, fma32(x.lo, y, fma32(x.hi, y, -s))}
}

func square(x pair) pair {
	s := x.hi * x.hi
	return pair{s, fma32(x.hi+x.hi, x.lo, fma32(x.hi, x.hi, -s))}
}

func div(n, d pair) pair {
	t := 1 / d.hi
	s := n.hi * t
	u := fma32(t, n.hi, -s)
	v := fma32(-d.lo, t, fma32(-d.hi, t, 1))
	return pair{s, fma32(s, v, fma32(n.lo, t, u))}
}

// fma32 is x·y + z, rounded once. The product is exact in float64; the sum is
// rounded to odd there, so that the rounding to float32 is the only one that
// shows (Boldo and Melquiond, Emulation of FMA and correctly rounded sums).
func fma32(x, y, z float32) float32 {
	p, c := float64(x)*float64(y), float64(z)
	s := p + c
	v := s - p
	if rest := (p - (s - v)) + (c - v); rest != 0 {
		if b := math.Float64bits(s); b&1 == 0 {
			if (rest > 0) == (s > 0) {
				s = math.Float64frombits(b + 1)
			} else {
				s = math.Float64frombits(b - 1)
			}
		}
	}
	return float32(s)
}
