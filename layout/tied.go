// SPDX-FileCopyrightText: The wcache authors
// SPDX-License-Identifier: MIT

package layout

import (
	"fmt"
	"io"
	"slices"
	"strings"

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
	var decode [2]func([]byte) float32
	var size [2]int
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
		size[i], decode[i] = dtype.Size(), decoder(dtype)
		row := p.of * int64(size[i])
		at[i] = io.NewSectionReader(f, p.from.file.Header.Data+p.from.t.Begin+p.rows.start*row, p.rows.n*row)
	}
	const block = 1 << 18 // elements
	x, y := make([]byte, block*size[0]), make([]byte, block*size[1])
	round := rounder(b.dtype)
	for left := at[0].Size() / int64(size[0]); left > 0; left -= block {
		n := int(min(left, block))
		for i, buf := range [][]byte{x, y} {
			if _, err := io.ReadFull(at[i], buf[:n*size[i]]); err != nil {
				return false, fmt.Errorf("compare lm_head with embed_tokens: %w", err)
			}
		}
		for i := range n {
			if round(decode[0](x[i*size[0]:])) != round(decode[1](y[i*size[1]:])) {
				return false, nil
			}
		}
	}
	return true, nil
}
