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

// Names that vLLM gives a meaning to. The indexes are SAFE_WEIGHTS_INDEX_NAME of
// transformers and its like for Mistral's own files, from default_loader.py.
const (
	configName            = "config.json"
	ShardIndexName        = "model.safetensors.index.json"
	consolidatedIndexName = "consolidated.safetensors.index.json"
)

// MaxShardIndex is the limit of an index in bytes. The largest published ones
// have some ten million.
const MaxShardIndex = 64 << 20

// maxNested is how many entries of subfolders are looked at, see refuseNested.
const maxNested = 100_000

// IsWeights is the pattern "*.safetensors" as Python's glob takes it: without
// hidden files.
func IsWeights(name string) bool {
	return strings.HasSuffix(name, ".safetensors") && !strings.HasPrefix(name, ".")
}

// Decides reports whether a file can have a part in what vLLM makes of a directory.
// Of JSON files all count but those that are known to have none: vLLM and
// transformers look for more of them with each release, such as modules.json,
// params.json and hf_quant_config.json. Python files are a model's own code.
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

// harmless reports whether a file is one of published models that shapes no weights:
// of tokenizers, image processors and chat templates, defaults of sampling, and notes
// of training.
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

// IsConsolidated is the pattern "consolidated*.safetensors", for files in Mistral's own
// format.
func IsConsolidated(name string) bool {
	return strings.HasPrefix(name, "consolidated") && strings.HasSuffix(name, ".safetensors")
}

// choice is which files of a directory count for what, by base name.
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

// choose applies vLLM's rules to the files that a survey has found. The hash
// covers all of them, or those of the index. Loaded are the same files, unless
// there are consolidated ones: then only these, by an index of their own.
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
		return nil, dangling(path) // vLLM would go on as if there were none, with files that may be no part of the model
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

// Covered holds the names that an index gives against vLLM's rules: files are the
// weights beside it, path is the index's own. It gives the names that are not there,
// which vLLM wants as well. The error is an [*Unusable].
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
			return nil, &Unusable{Path: path, Reason: fmt.Sprintf("names %q, which is no .safetensors file", name)}
		case !there[name]:
			missing = append(missing, name)
		}
	}
	return missing, nil
}

func readShardIndex(path string) ([]string, error) {
	f, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK, 0) // a pipe is empty, and not waited at
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

// readUpTo reads a file, of which it takes the first limit bytes at most, into memory of
// the file's size.
func readUpTo(f *os.File, limit int64) ([]byte, error) {
	var b bytes.Buffer
	if info, err := f.Stat(); err == nil {
		b.Grow(int(min(info.Size(), limit)) + bytes.MinRead)
	}
	_, err := b.ReadFrom(io.LimitReader(f, limit))
	return b.Bytes(), err
}

// ParseShardIndex gives the files of an index's weight_map, sorted. Which tensor
// it puts where is ignored, as vLLM does.
func ParseShardIndex(b []byte) ([]string, error) {
	if len(b) > MaxShardIndex {
		return nil, fmt.Errorf("index is over the limit of %d bytes", MaxShardIndex)
	}
	if n := bytes.Count(b, []byte{':'}); n > MaxTensors { // at least one for a tensor; names have none
		//diag files NUMBER NUMBER
		// The index lists far more tensors than any model has, so it is damaged or made to use up
		// memory. Fetch it again from a source that you trust.
		return nil, fmt.Errorf("index has %d entries, and a model has %d tensors at most", n, MaxTensors)
	}
	var index map[string]json.RawMessage // a struct would take "Weight_Map" too
	if err := json.Unmarshal(b, &index); err != nil {
		return nil, fmt.Errorf("index is no JSON object: %w", err)
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
// weight_utils.py: digits compare as the number that they are.
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

// split cuts a name into other characters and digits in turn, starting with other
// characters, none if need be.
func split(name string) []string {
	parts := numbers.FindAllString(name, -1)
	if len(parts) > 0 && parts[0][0] >= '0' && parts[0][0] <= '9' {
		parts = slices.Insert(parts, 0, "")
	}
	return parts
}

// compareNumbers compares digits of any length.
func compareNumbers(a, b string) int {
	a, b = strings.TrimLeft(a, "0"), strings.TrimLeft(b, "0")
	if len(a) != len(b) {
		return len(a) - len(b)
	}
	return strings.Compare(a, b)
}

// refuseNested refuses a directory that has consolidated files in its subfolders
// alone. vLLM looks for them everywhere to decide on its rules, then finds none
// where it loads from, and gives up. Folders that can't be read are passed over,
// as Python does, and links to folders too; dir itself may be such a link.
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
		// A file in a subfolder has a name of the form that the engine looks for, so that it would
		// read that in place of the weights. Move the file out of the model directory.
		return &Unusable{Path: found, Reason: "makes vLLM load consolidated files, of which none is beside config.json; move it out of the model directory"}
	}
	return nil
}
