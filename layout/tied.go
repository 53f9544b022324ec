// SPDX-FileCopyrightText: The wcache authors
// SPDX-License-Identifier: MIT

package layout

import (
	"encoding/binary"
	"fmt"
	"io"
	"math"
	"slices"
	"strings"

	"github.com/wcache/wcache/tensor"
	"github.com/wcache/wcache/tensor/cast"
	"github.com/wcache/wcache/weights"
	"github.com/wcache/wcache/weights/safetensors"
)

// heading says where a model's lm_head gets its weight.
type heading int

const (
	own       heading = iota // from the checkpoint
	tied                     // from embed_tokens
	comparing                // from the checkpoint; tied again if it equals embed_tokens
)

// heading follows ModelConfig.maybe_untie_word_embeddings: vLLM ignores the configuration
// if any safetensors file of the directory has a head, whether it is loaded or not.
func (m *dense) heading(d *weights.Dir) (heading, error) {
	if !m.tied {
		return own, nil
	}
	for _, files := range [][]*weights.File{d.Load, d.Hashed} {
		for _, f := range files {
			if hasHead(f.Header) {
				return comparing, nil
			}
		}
	}
	switch has, err := d.IgnoredHave(isHead); {
	case err != nil:
		return own, err
	case has:
		return comparing, nil
	}
	return tied, nil
}

func isHead(name string) bool { return strings.HasSuffix(name, "lm_head.weight") }

func hasHead(h *safetensors.Header) bool {
	return slices.ContainsFunc(h.Tensors, func(t safetensors.Tensor) bool { return isHead(t.Name) })
}

// sameHead tells whether this rank's rows of lm_head and embed_tokens are equal after
// conversion to the model's type. It compares values, as maybe_retie_word_embeddings does
// with torch.equal, so a NaN equals nothing and both zeros are equal.
func (b *builder) sameHead(m *dense) (bool, error) {
	var at [2]*io.SectionReader
	var size [2]int
	var value [2]func([]byte) []byte
	for i, mod := range []module{m.embedding(), m.head()} {
		pieces, err := b.pieces("", mod, ".weight")
		if err != nil {
			return false, err
		}
		p := pieces[0]
		f, err := p.from.file.Open()
		if err != nil {
			return false, err
		}
		defer f.Close()
		dtype := p.from.t.DType
		size[i], value[i] = dtype.Size(), values(dtype, b.dtype)
		row := p.of * int64(size[i])
		at[i] = io.NewSectionReader(f, p.from.file.Header.Data+p.from.t.Begin+p.rows.start*row, p.rows.n*row)
	}
	const block = 1 << 18 // elements
	raw := [2][]byte{make([]byte, block*size[0]), make([]byte, block*size[1])}
	for left := at[0].Size() / int64(size[0]); left > 0; left -= block {
		n := int(min(left, block))
		var v [2][]byte
		for i, buf := range raw {
			if _, err := io.ReadFull(at[i], buf[:n*size[i]]); err != nil {
				return false, fmt.Errorf("compare lm_head with embed_tokens: %w", err)
			}
			v[i] = value[i](buf[:n*size[i]])
		}
		if !equal(v[0], v[1]) {
			return false, nil
		}
	}
	return true, nil
}

// values makes float32 of what elements are in the model's type. Both types are
// floating-point ones, see check.
func values(from, model tensor.DType) func([]byte) []byte {
	type step struct {
		convert cast.Func
		from    int
		to      int
	}
	var steps []step
	for _, pair := range [][2]tensor.DType{{from, model}, {model, tensor.F32}} {
		if pair[0] != pair[1] {
			steps = append(steps, step{cast.Between(pair[0], pair[1]), pair[0].Size(), pair[1].Size()})
		}
	}
	return func(b []byte) []byte {
		for _, s := range steps {
			out := make([]byte, len(b)/s.from*s.to)
			s.convert(out, b)
			b = out
		}
		return b
	}
}

// equal compares as many float32.
func equal(a, b []byte) bool {
	for ; len(a) > 0; a, b = a[4:], b[4:] {
		x, y := binary.LittleEndian.Uint32(a), binary.LittleEndian.Uint32(b)
		if math.Float32frombits(x) != math.Float32frombits(y) {
			return false
		}
	}
	return true
}
