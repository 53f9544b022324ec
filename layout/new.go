// SPDX-FileCopyrightText: The wcache authors
// SPDX-License-Identifier: MIT

package layout

import (
	"fmt"

	"github.com/wcache/wcache/tensor"
	"github.com/wcache/wcache/weights"
)

// New plans how a model directory becomes the tensors of one rank. It reads tensor data in
// only one case: if config.json ties lm_head to embed_tokens and the checkpoint has both,
// vLLM ties them only if their values are equal, so this rank's rows of both are read and
// compared.
//
// The error is an [*Unsupported] for everything that can't be built exactly as vLLM does,
// and for everything that vLLM itself would refuse.
func New(d *weights.Dir, o Options) (*Plan, error) {
	if err := o.check(); err != nil {
		return nil, err
	}
	m, err := describe(d)
	if err != nil {
		return nil, err
	}
	if err := m.fits(o.Rank); err != nil {
		return nil, err
	}
	cache, note, err := m.cosSin(o.CUDA)
	if err != nil {
		return nil, err
	}
	sources, notes, err := m.sources(d)
	if err != nil {
		return nil, err
	}
	heads, err := m.heading(d)
	if err != nil {
		return nil, err
	}
	b := newBuilder(o, m.headDim, sources)
	b.plan.Notes = notes
	if n := len(d.Ignored); n > 0 {
		b.plan.Notes = append(b.plan.Notes, fmt.Sprintf("%d safetensors files that vLLM does not load, such as %q", n, d.Ignored[0]))
	}
	if note != "" {
		b.plan.Notes = append(b.plan.Notes, note)
	}
	if err := b.model(m, heads, cache); err != nil {
		return nil, err
	}
	return b.finish()
}

// model adds everything that the rank holds, in vLLM's order: all parameters by module, then
// all buffers. A later name of the same tensor is an alias.
func (b *builder) model(m *dense, h heading, cache Rope) error {
	local := b.rank.stage(m.layers)
	if b.rank.first() || h == tied && b.rank.last() {
		if err := b.module("", m.embedding()); err != nil {
			return err
		}
	}
	modules := m.layer()
	for i := range local.n {
		for _, mod := range modules {
			if err := b.module(layerName(local.start+i), mod); err != nil {
				return err
			}
		}
	}
	if b.rank.last() {
		if err := b.module("", m.norm()); err != nil {
			return err
		}
		if err := b.head(m, h); err != nil {
			return err
		}
	}
	for i := range local.n {
		b.buffers(layerName(local.start+i), layerName(local.start), cache)
	}
	for _, name := range attrs {
		b.plan.Table.Attrs = append(b.plan.Table.Attrs, tensor.Attr{Name: name})
	}
	return nil
}

// head adds lm_head, or an alias of embed_tokens.
func (b *builder) head(m *dense, h heading) error {
	const name = "lm_head.weight"
	if h == comparing && b.rank.first() {
		same, err := b.sameHead(m)
		if err != nil {
			return err
		}
		if same {
			h = tied
		}
	}
	if h == tied {
		b.alias(name, "model.embed_tokens.weight")
		return nil
	}
	return b.module("", m.head())
}

// buffers adds the buffers of one layer. All layers share the first layer's cache.
func (b *builder) buffers(layer, firstLayer string, cache Rope) {
	const name = "self_attn.rotary_emb.cos_sin_cache"
	if layer == firstLayer {
		cache.To = b.dtype
		cache.Dst = b.add(layer+name, tensor.Buffer, b.dtype, cache.Rows, 2*int64(len(cache.InvFreq)))
		b.plan.Ropes = append(b.plan.Ropes, cache)
	} else {
		b.alias(layer+name, firstLayer+name)
	}
	for _, s := range scales {
		b.scalar(layer+"self_attn.attn."+s, 1)
	}
}

func layerName(n int64) string { return fmt.Sprintf("model.layers.%d.", n) }
