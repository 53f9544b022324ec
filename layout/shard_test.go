// SPDX-FileCopyrightText: The wcache authors
// SPDX-License-Identifier: MIT

package layout

import "testing"

// TestStage compares with get_pp_indices of vllm/distributed/utils.py, step by step.
func TestStage(t *testing.T) {
	for size := 1; size <= 9; size++ {
		for layers := int64(size); layers <= 40; layers++ {
			parts := make([]int64, size)
			for i := range parts {
				parts[i] = layers / int64(size)
			}
			for i := range int(layers % int64(size)) {
				parts[size-2-i]++
			}
			start := int64(0)
			for rank, n := range parts {
				got := Rank{PPSize: size, PPRank: rank}.stage(layers)
				if want := (span{start, n}); got != want {
					t.Errorf("%d layers, stage %d of %d: got %v, want %v", layers, rank, size, got, want)
				}
				start += n
			}
		}
	}
}

func TestShare(t *testing.T) {
	tests := []struct {
		rank     Rank
		n, units int64
		want     span
	}{
		{Rank{TPSize: 1}, 64, 8, span{0, 64}},
		{Rank{TPSize: 2, TPRank: 1}, 64, 8, span{32, 32}},
		{Rank{TPSize: 4, TPRank: 3}, 32, 4, span{24, 8}},
		{Rank{TPSize: 4, TPRank: 1}, 16, 2, span{0, 8}}, // replicated
		{Rank{TPSize: 4, TPRank: 2}, 16, 2, span{8, 8}},
		{Rank{TPSize: 8, TPRank: 7}, 8, 1, span{0, 8}},
		{Rank{TPSize: 3, TPRank: 2}, 96, 96, span{64, 32}},
	}
	for _, tt := range tests {
		if got := tt.rank.share(tt.n, tt.units); got != tt.want {
			t.Errorf("%+v of %d in %d units: got %v, want %v", tt.rank, tt.n, tt.units, got, tt.want)
		}
	}
}

func TestVocab(t *testing.T) {
	tests := []struct {
		rank   Rank
		n      int64
		tokens span
		rows   int64
	}{
		{Rank{TPSize: 1}, 259, span{0, 259}, 320},
		{Rank{TPSize: 4, TPRank: 2}, 259, span{160, 80}, 80},
		{Rank{TPSize: 4, TPRank: 3}, 259, span{240, 19}, 80},
		{Rank{TPSize: 8, TPRank: 6}, 257, span{240, 17}, 40},
		{Rank{TPSize: 8, TPRank: 7}, 257, span{257, 0}, 40}, // padding alone
		{Rank{TPSize: 2, TPRank: 1}, 128, span{64, 64}, 64},
	}
	for _, tt := range tests {
		if tokens, rows := tt.rank.vocab(tt.n); tokens != tt.tokens || rows != tt.rows {
			t.Errorf("%+v of %d: got %v of %d, want %v of %d", tt.rank, tt.n, tokens, rows, tt.tokens, tt.rows)
		}
	}
}
