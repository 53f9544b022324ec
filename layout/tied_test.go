// SPDX-FileCopyrightText: The wcache authors
// SPDX-License-Identifier: MIT

package layout

import (
	"errors"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/wcache/wcache/stamp"
	"github.com/wcache/wcache/tensor"
)

// TestTied: config.json says tied and there is an lm_head.
func TestTied(t *testing.T) {
	const head, embed = "lm_head.weight", "model.embed_tokens.weight"
	row := func(m *model, name string, row int) []byte { return m.tensors[name].data[row*128 : row*128+128] } // 64 bfloat16
	tests := []struct {
		name   string
		change func(*model)
		rank   Rank
		alias  bool
	}{
		{"equal", func(*model) {}, Rank{}, true},
		{"another value", func(m *model) { row(m, head, 258)[127] ^= 1 }, Rank{}, false},
		{"both zeros", func(m *model) {
			copy(row(m, embed, 3), []byte{0, 0x80})
			copy(row(m, head, 3), []byte{0, 0})
		}, Rank{}, true},
		{"not a number", func(m *model) {
			copy(row(m, embed, 3), []byte{0xc0, 0x7f})
			copy(row(m, head, 3), []byte{0xc0, 0x7f})
		}, Rank{}, false},
		{"of a wider type", func(m *model) { m.tensors[head] = widened(m.tensors[head], 0) }, Rank{}, true},
		{"equal once rounded", func(m *model) { m.tensors[head] = widened(m.tensors[head], 1) }, Rank{}, true},
		{"another value once rounded", func(m *model) { m.tensors[head] = widened(m.tensors[head], 0xffff) }, Rank{}, false},
		{"another rank's value", func(m *model) { row(m, head, 258)[127] ^= 1 }, Rank{TPSize: 2}, true},
		{"this rank's value", func(m *model) { row(m, head, 258)[127] ^= 1 }, Rank{TPSize: 2, TPRank: 1}, false},
		{"two stages", func(*model) {}, Rank{PPSize: 2, PPRank: 1}, false},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			m := goldenModel(t, "llama_tied")
			m.tensors[head] = stored{m.tensors[embed].dtype, m.tensors[embed].shape, slices.Clone(m.tensors[embed].data)}
			m.tensors[embed] = stored{m.tensors[embed].dtype, m.tensors[embed].shape, slices.Clone(m.tensors[embed].data)}
			tt.change(m)
			p, err := New(m.open(t), ranked(bf16, tt.rank))
			if err != nil {
				t.Fatal(err)
			}
			alias := slices.Contains(p.Table.Aliases, tensor.Alias{Name: head, Target: embed})
			entry := slices.ContainsFunc(p.Table.Tensors, func(x tensor.Tensor) bool { return x.Name == head })
			if alias != tt.alias || entry == alias {
				t.Errorf("alias %v, entry %v, want alias %v", alias, entry, tt.alias)
			}
			if second := tt.rank.PPSize > 1; second == slices.ContainsFunc(p.Table.Tensors, func(x tensor.Tensor) bool { return x.Name == embed }) {
				t.Errorf("embed_tokens on the last of two stages, untied: %v", second)
			}
		})
	}
}

// widened makes float32 of bfloat16, and adds low bits that rounding removes or not.
func widened(s stored, low uint16) stored {
	var data []byte
	for b := s.data; len(b) > 0; b = b[2:] {
		data = append(data, byte(low), byte(low>>8), b[0], b[1])
	}
	return stored{tensor.F32, s.shape, data}
}

// TestHeadElsewhere: vLLM unties if any file has a head, and then doesn't load it.
func TestHeadElsewhere(t *testing.T) {
	head := map[string]stored{"lm_head.weight": zeros(tensor.BF16, 259, 64)}
	index := func(file string) string {
		return `{"weight_map": {"model.embed_tokens.weight": "` + file + `"}}`
	}
	tests := []struct {
		name   string
		change func(*model)
		want   string
	}{
		{"in a hashed file", func(m *model) {
			m.weights = "consolidated.safetensors"
			m.files["model.safetensors"] = string(safetensorsFile(t, head))
		}, `"lm_head.weight" is missing`},
		{"in an unused file", func(m *model) {
			m.files["model.safetensors.index.json"] = index("model.safetensors")
			m.files["extra.safetensors"] = string(safetensorsFile(t, head))
		}, `"lm_head.weight" is missing`},
		{"nowhere", func(m *model) {
			m.files["model.safetensors.index.json"] = index("model.safetensors")
			m.files["extra.safetensors"] = string(safetensorsFile(t, map[string]stored{"mtp.weight": zeros(tensor.BF16, 1)}))
		}, ""},
		{"perhaps in a broken file", func(m *model) {
			m.files["model.safetensors.index.json"] = index("model.safetensors")
			m.files["extra.safetensors"] = "broken"
		}, `is a text that begins with "broken"`},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			m := goldenModel(t, "llama_tied")
			tt.change(m)
			p, err := New(m.open(t), bf16)
			switch {
			case tt.want != "":
				if err == nil || !strings.Contains(err.Error(), tt.want) {
					t.Errorf("got %v, want %q", err, tt.want)
				}
			case err != nil:
				t.Error(err)
			case !slices.Equal(p.Notes, []string{`1 safetensors files that vLLM does not load, such as "extra.safetensors"`}):
				t.Errorf("notes %q", p.Notes)
			}
		})
	}
}

// TestChangedFile: values are compared only in an unchanged file.
func TestChangedFile(t *testing.T) {
	m := goldenModel(t, "llama_tied")
	m.tensors["lm_head.weight"] = m.tensors["model.embed_tokens.weight"]
	d := m.open(t)
	if err := os.WriteFile(d.Load[0].Path, []byte("other"), 0o600); err != nil {
		t.Fatal(err)
	}
	_, err := New(d, bf16)
	var changed *stamp.Changed
	if !errors.As(err, &changed) {
		t.Errorf("got %v, want a changed file", err)
	}
}
