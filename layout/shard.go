// SPDX-FileCopyrightText: The wcache authors
// SPDX-License-Identifier: MIT

package layout

// vocabMultiple is the number to whose multiples vLLM pads a vocabulary before it splits
// it: DEFAULT_VOCAB_PADDING_SIZE in vocab_parallel_embedding.py.
const vocabMultiple = 64

// span is a run of rows, of columns or of layers.
type span struct{ start, n int64 }

func whole(n int64) span { return span{0, n} }

// share is a rank's part of n rows in equal units that are never split, such as heads. With
// fewer units than ranks, neighbouring ranks hold the same unit (QKVParallelLinear's
// num_kv_head_replicas).
func (r Rank) share(n, units int64) span {
	size, rank, unit := int64(r.TPSize), int64(r.TPRank), n/units
	if units < size {
		return span{rank / (size / units) * unit, unit}
	}
	return span{rank * (units / size) * unit, units / size * unit}
}

// columns is a rank's part of n columns.
func (r Rank) columns(n int64) span { return r.share(n, n) }

// vocab is a rank's part of a vocabulary of n rows: the rows that hold tokens,
// and how many rows the rank has with the padding behind them.
func (r Rank) vocab(n int64) (tokens span, rows int64) {
	rows = padVocab(n) / int64(r.TPSize)
	start := min(int64(r.TPRank)*rows, n)
	return span{start, min(rows, n-start)}, rows
}

func padVocab(n int64) int64 { return (n + vocabMultiple - 1) / vocabMultiple * vocabMultiple }

// stage is a pipeline rank's part of n layers, as get_pp_indices of distributed/utils.py
// splits them: remaining layers go one each to the stages before the last, from the back.
// VLLM_PP_LAYER_PARTITION would split them otherwise; only the engine knows it.
func (r Rank) stage(n int64) span {
	size, rank := int64(r.PPSize), int64(r.PPRank)
	each, rest := n/size, n%size
	first := size - 1 - rest // the stages from here up to the last but one have one more
	s := span{rank * each, each}
	s.start += min(max(rank-first, 0), rest)
	if rank >= first && rank < size-1 {
		s.n++
	}
	return s
}

func (r Rank) first() bool { return r.PPRank == 0 }
func (r Rank) last() bool  { return r.PPRank == r.PPSize-1 }
