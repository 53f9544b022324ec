// SPDX-FileCopyrightText: The wcache authors
// SPDX-License-Identifier: MIT

package layout

import (
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"math"
	"os"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/wcache/wcache/tensor"
	"github.com/wcache/wcache/weights/hfconfig"
)

// floats are little-endian float32, in hexadecimal.
type floats []float32

func (f *floats) UnmarshalText(b []byte) error {
	raw, err := hex.DecodeString(string(b))
	*f = nil
	for ; len(raw) >= 4; raw = raw[4:] {
		*f = append(*f, math.Float32frombits(binary.LittleEndian.Uint32(raw)))
	}
	return err
}

// TestRopeFrequencies compares with get_rope of vLLM 0.33 on a CPU with torch 2.14
// (testdata/rope.json): frequencies to the bit, and a cache's last row to one unit in the
// last place.
func TestRopeFrequencies(t *testing.T) {
	b, err := os.ReadFile("testdata/rope.json")
	if err != nil {
		t.Fatal(err)
	}
	var cases []struct {
		Name      string        `json:"name"`
		HeadDim   int64         `json:"head_dim"`
		Positions int64         `json:"max_position_embeddings"`
		Rope      hfconfig.Rope `json:"rope_parameters"`
		Rows      int64         `json:"rows"`
		InvFreq   floats        `json:"inv_freq"`
		LastRow   floats        `json:"last_row"`
	}
	if err := json.Unmarshal(b, &cases); err != nil {
		t.Fatal(err)
	}
	for _, c := range cases {
		t.Run(c.Name, func(t *testing.T) {
			m := dense{headDim: c.HeadDim, positions: c.Positions, rope: c.Rope}
			r, _, err := m.cosSin(false)
			if err != nil {
				t.Fatal(err)
			}
			if r.Rows != c.Rows {
				t.Errorf("%d rows, want %d", r.Rows, c.Rows)
			}
			if diff := cmp.Diff(c.InvFreq, floats(r.InvFreq)); diff != "" {
				t.Errorf("frequencies (-vLLM +plan):\n%s", diff)
			}
			row := make([]byte, 8*len(r.InvFreq))
			fillRow(row, Rope{InvFreq: r.InvFreq, PositionScale: r.PositionScale, Magnitude: r.Magnitude, To: tensor.F32}, r.Rows-1)
			checkUlp(t, c.LastRow, row)
		})
	}
}

// checkUlp compares float32 values.
func checkUlp(t *testing.T, want []float32, got []byte) {
	t.Helper()
	if len(got) != 4*len(want) {
		t.Fatalf("%d values, want %d", len(got)/4, len(want))
	}
	for i, w := range want {
		g := math.Float32frombits(binary.LittleEndian.Uint32(got[4*i:]))
		if !neighbours(g, w) {
			t.Errorf("value %d is %v, want %v or its neighbours", i, g, w)
		}
	}
}

// neighbours reports whether two values are the same or next to each other.
func neighbours(a, b float32) bool { return a == b || math.Nextafter32(a, b) == b }

func TestRopeRefused(t *testing.T) {
	base := dense{headDim: 8, positions: 64}
	tests := []struct {
		name string
		rope hfconfig.Rope
	}{
		{"longrope", hfconfig.Rope{"rope_type": "longrope", "short_factor": []any{1.0}, "long_factor": []any{1.0}}},
		{"ntk", hfconfig.Rope{"rope_type": "ntk", "factor": 2.0}},
		{"mrope", hfconfig.Rope{"rope_type": "default", "mrope_section": []any{int64(1), int64(1)}}},
		{"fope", hfconfig.Rope{"use_fope": true}},
		{"alpha", hfconfig.Rope{"rope_type": "dynamic", "alpha": 2.0}},
		{"dim", hfconfig.Rope{"rope_dim": int64(4)}},
		{"nested", hfconfig.Rope{"full_attention": map[string]any{"rope_type": "default"}}},
		{"partial of nothing", hfconfig.Rope{"partial_rotary_factor": 0.1}},
		{"partial of more", hfconfig.Rope{"partial_rotary_factor": 1.5}},
		{"odd", hfconfig.Rope{"partial_rotary_factor": 0.4}},
		{"theta", hfconfig.Rope{"rope_theta": "10000"}},
		{"theta of zero", hfconfig.Rope{"rope_theta": 0.0}},
		{"no factor", hfconfig.Rope{"rope_type": "linear"}},
		{"factor below zero", hfconfig.Rope{"rope_type": "yarn", "factor": -1.0, "original_max_position_embeddings": int64(64)}},
		{"too many rows", hfconfig.Rope{"rope_type": "linear", "factor": 1e9}},
		{"no bands", hfconfig.Rope{"rope_type": "llama3", "factor": 8.0}},
		{"base too small", hfconfig.Rope{"rope_type": "dynamic", "factor": 2.0, "max_trained_positions": 1e6}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			m := base
			m.rope = tt.rope
			_, _, err := m.cosSin(false)
			wantRefusal(t, err, ropeField)
		})
	}
}

func TestOnCUDA(t *testing.T) {
	base := powers(10000, 128)
	got := powers(10000, 128)
	if !onCUDA(got, 10000, 128) {
		t.Fatal("base 10000 with 128 elements is not recorded")
	}
	var differ []int
	for i := range got {
		if got[i] != base[i] {
			differ = append(differ, i)
		}
	}
	if diff := cmp.Diff([]int{22, 27, 33, 47, 50}, differ); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
	for _, other := range []float64{10001, 10000.0001} {
		if onCUDA(got, other, 128) {
			t.Errorf("base %v is taken for one that is recorded", other)
		}
	}
	for r, steps := range cudaPowers {
		for _, s := range steps {
			if s.index < 0 || s.index >= r.dim/2 {
				t.Errorf("base %v with %d elements: index %d", r.base, r.dim, s.index)
			}
		}
	}
}
