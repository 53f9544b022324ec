// SPDX-FileCopyrightText: The wcache authors
// SPDX-License-Identifier: MIT

package weights

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"

	"github.com/wcache/wcache/stamp"
)

// Names to which vLLM gives a meaning. The indexes are SAFE_WEIGHTS_INDEX_NAME of
// transformers and its counterpart for Mistral's own files, from default_loader.py.
const (
	configName            = "config.json"
	ShardIndexName        = "model.safetensors.index.json"
	consolidatedIndexName = "consolidated.safetensors.index.json"
)

// MaxShardIndex is the limit of an index in bytes. The largest published indexes
// have some ten million.
const MaxShardIndex = 64 << 20

// maxNested is how many entries of subfolders are looked at, see refuseNested.
const maxNested = 100_000

// IsWeights matches a name against "*.safetensors" as Python's glob does: hidden
// files don't match.
func IsWeights(name string) bool {
	return strings.HasSuffix(name, ".safetensors") && !strings.HasPrefix(name, ".")
}

// Decides reports whether a file can influence what vLLM loads from a directory.
// Every JSON file counts unless it is known to be harmless: vLLM and transformers
// look for more of them with each release, such as modules.json, params.json and
// hf_quant_config.json. Python files are a model's own code.
func Decides(name string) bool {
	if IsWeights(name) {
		return true
	}
	switch filepath.Ext(name) {
	case ".py":
		return !strings.HasPrefix(name, ".")
	case ".json":
		return !strings.HasPrefix(name, ".") && !harmless(name)
	}
	return false
}

// harmless reports whether a file, as published models have it, has no effect on the
// weights: files of tokenizers, image processors and chat templates, sampling defaults,
// and notes about training.
func harmless(name string) bool {
	switch name {
	case "added_tokens.json", "all_results.json", "chat_template.json", "eval_results.json", "generation_config.json",
		"merges.json", "preprocessor_config.json", "processor_config.json", "special_tokens_map.json", "tekken.json",
		"tokenizer.json", "tokenizer_config.json", "train_results.json", "trainer_state.json",
		"video_preprocessor_config.json", "vocab.json":
		return true
	}
	return false
}

// IsConsolidated matches a name against "consolidated*.safetensors", the files in
// Mistral's own format.
func IsConsolidated(name string) bool {
	return strings.HasPrefix(name, "consolidated") && strings.HasSuffix(name, ".safetensors")
}

// choice says which files of a directory are hashed and which are loaded, by base name.
type choice struct {
	hashed  []string // sorted
	load    []string // in load order
	ignored []string // sorted
	indexed bool     // an index decided what is hashed
}

// names is hashed and load without repetition.
func (c *choice) names() []string {
	all := slices.Concat(c.hashed, c.load)
	slices.Sort(all)
	return slices.Compact(all)
}

// choose applies vLLM's rules to the files that a survey has found. The hash covers
// all of them, or those that the index names. The same files are loaded, unless there
// are consolidated ones: then vLLM loads only these, by an index of their own.
func choose(dir string, have map[string]stamp.Stamp) (*choice, error) {
	var all, consolidated []string
	for name := range have {
		if IsWeights(name) {
			all = append(all, name)
		}
		if IsConsolidated(name) {
			consolidated = append(consolidated, name)
		}
	}
	if len(all) == 0 {
		return nil, noWeights(dir)
	}
	slices.Sort(all)
	slices.Sort(consolidated)
	_, indexed := have[ShardIndexName]
	hashed, err := indexedFiles(dir, ShardIndexName, all, have)
	if err != nil {
		return nil, err
	}
	c := &choice{hashed: hashed, load: slices.Clone(hashed), indexed: indexed}
	if len(consolidated) > 0 {
		if c.load, err = indexedFiles(dir, consolidatedIndexName, consolidated, have); err != nil {
			return nil, err
		}
	}
	slices.SortStableFunc(c.load, naturalOrder)
	loaded := set(c.load)
	for _, name := range all {
		if !loaded[name] {
			c.ignored = append(c.ignored, name)
		}
	}
	return c, nil
}

func set(names []string) map[string]bool {
	s := make(map[string]bool, len(names))
	for _, name := range names {
		s[name] = true
	}
	return s
}

// indexedFiles filters files by an index, if there is one. As in vLLM, each file
// that the index names must be there.
func indexedFiles(dir, index string, files []string, have map[string]stamp.Stamp) ([]string, error) {
	at, ok := have[index]
	if !ok {
		return files, nil
	}
	path := filepath.Join(dir, index)
	if at == (stamp.Stamp{}) {
		return nil, dangling(path) // vLLM would go on without the index, and load files that may not belong to the model
	}
	shards, err := readShardIndex(path)
	if err != nil {
		return nil, err
	}
	missing, err := Covered(path, shards, files)
	if err != nil {
		return nil, err
	}
	if len(missing) > 0 {
		return nil, missingShards(path, len(shards), missing)
	}
	return shards, nil
}

// Covered checks the names in an index by vLLM's rules: shards are the names, files the
// weights beside the index, and path is the index. It returns the names that vLLM needs
// and that don't exist. The error is an [*Unusable].
func Covered(path string, shards, files []string) (missing []string, err error) {
	there := set(files)
	for _, name := range shards {
		switch {
		case strings.ContainsRune(name, '/'):
			//diag files FILE
			// The index names a file in another folder, which the engine would leave out without a
			// message. Move the file beside the index and correct its name there.
			return nil, &Unusable{Path: path, Reason: fmt.Sprintf("names %q, but vLLM loads no files from other folders; move it beside the index and correct its name there", name)}
		case !IsWeights(name):
			//diag files FILE
			// The index belongs to weights in another format, such as `.bin`. Remove the index if
			// the directory also has safetensors files, or fetch a safetensors version of the
			// model.
			return nil, &Unusable{Path: path, Reason: fmt.Sprintf("names %q, which is not a .safetensors file", name)}
		case !there[name]:
			missing = append(missing, name)
		}
	}
	return missing, nil
}

func readShardIndex(path string) ([]string, error) {
	f, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK, 0) // a pipe reads as empty, without waiting
	if err != nil {
		return nil, denied(path, fmt.Errorf("open index: %w", err))
	}
	defer func() { _ = f.Close() }() // nothing was written
	b, err := readUpTo(f, MaxShardIndex+1)
	if err != nil {
		return nil, fmt.Errorf("read index: %w", err)
	}
	shards, err := ParseShardIndex(b)
	if err != nil {
		if what := notJSON(b[:min(len(b), sniffed)]); what != "" {
			return nil, &Unusable{Path: path, Reason: what, Err: err}
		}
		//diag files REASON
		// The JSON of the file can't be read, for the reason in the first part of the message.
		// Fetch the file again.
		return nil, &Unusable{Path: path, Reason: err.Error() + "; fetch it again"}
	}
	return shards, nil
}

// readUpTo reads a file, at most its first limit bytes, into memory of the file's
// size.
func readUpTo(f *os.File, limit int64) ([]byte, error) {
	var b bytes.Buffer
	if info, err := f.Stat(); err == nil {
		b.Grow(int(min(info.Size(), limit)) + bytes.MinRead)
	}
	_, err := b.ReadFrom(io.LimitReader(f, limit))
	return b.Bytes(), err
}

// ParseShardIndex gives the files of an index's weight_map, sorted. Like vLLM, it
// ignores in which file the index puts each tensor.
func ParseShardIndex(b []byte) ([]string, error) {
	if len(b) > MaxShardIndex {
		return nil, fmt.Errorf("index is over the limit of %d bytes", MaxShardIndex)
	}
	if n := bytes.Count(b, []byte{':'}); n > MaxTensors { // each tensor has at least one colon; its name has none
		//diag files NUMBER NUMBER
		// The index lists far more tensors than any model has, so it is damaged or made to use up
		// memory. Fetch it again from a source that you trust.
		return nil, fmt.Errorf("index has %d entries, and a model has %d tensors at most", n, MaxTensors)
	}
	var index map[string]json.RawMessage // a struct would take "Weight_Map" too
	if err := json.Unmarshal(b, &index); err != nil {
		return nil, fmt.Errorf("index is not a JSON object: %w", err)
	}
	text, ok := index["weight_map"]
	if !ok {
		return nil, errors.New("index has no weight_map")
	}
	var files map[string]string
	if err := json.Unmarshal(text, &files); err != nil {
		return nil, fmt.Errorf("weight_map does not give files by tensor: %w", err)
	}
	shards := make([]string, 0, len(files))
	for tensor, name := range files {
		if name == "" {
			return nil, fmt.Errorf("weight_map gives no file for %q", tensor)
		}
		shards = append(shards, name)
	}
	if len(shards) == 0 {
		return nil, errors.New("weight_map names no files")
	}
	slices.Sort(shards)
	return slices.Compact(shards), nil
}

var numbers = regexp.MustCompile(`[0-9]+|[^0-9]+`)

// naturalOrder is the order in which vLLM loads files, _natural_sort_key of
// weight_utils.py: runs of digits compare as numbers.
func naturalOrder(a, b string) int {
	as, bs := split(a), split(b)
	for i := range min(len(as), len(bs)) {
		order := strings.Compare(as[i], bs[i])
		if i%2 == 1 {
			order = compareNumbers(as[i], bs[i])
		}
		if order != 0 {
			return order
		}
	}
	return len(as) - len(bs)
}

// split cuts a name into alternating parts, other characters and digits. The first part
// holds other characters, and may be empty.
func split(name string) []string {
	parts := numbers.FindAllString(name, -1)
	if len(parts) > 0 && parts[0][0] >= '0' && parts[0][0] <= '9' {
		parts = slices.Insert(parts, 0, "")
	}
	return parts
}

// compareNumbers compares runs of digits of any length.
func compareNumbers(a, b string) int {
	a, b = strings.TrimLeft(a, "0"), strings.TrimLeft(b, "0")
	if len(a) != len(b) {
		return len(a) - len(b)
	}
	return strings.Compare(a, b)
}

// refuseNested refuses a directory whose only consolidated files are in subfolders.
// vLLM looks for them everywhere to decide on its rules, then finds none where it
// loads from, and gives up. Like Python, it skips folders that can't be read and links
// to folders; dir itself may be such a link.
func refuseNested(dir string, c *choice) error {
	if slices.ContainsFunc(c.load, IsConsolidated) {
		return nil
	}
	var found string
	left := maxNested
	err := filepath.WalkDir(dir+"/", func(path string, e fs.DirEntry, err error) error {
		if left--; left < 0 {
			return fs.SkipAll
		}
		if err != nil || e.IsDir() || !IsConsolidated(e.Name()) {
			return nil
		}
		if info, err := os.Stat(path); err == nil && info.Mode().IsRegular() {
			found = path
			return fs.SkipAll
		}
		return nil
	})
	if err != nil {
		return fmt.Errorf("search model directory: %w", err)
	}
	if found != "" {
		//diag files
		// A file in a subfolder has a name that makes the engine look for consolidated files, and
		// the engine would find none to load. Move the file out of the model directory.
		return &Unusable{Path: found, Reason: "makes vLLM load consolidated files, of which none is beside config.json; move it out of the model directory"}
	}
	return nil
}
