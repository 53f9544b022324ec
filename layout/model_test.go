// SPDX-FileCopyrightText: The wcache authors
// SPDX-License-Identifier: MIT

package layout

import (
	"encoding/binary"
	"encoding/json"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/wcache/wcache/tensor"
	"github.com/wcache/wcache/weights"
)

// model is a checkpoint that a test has changed.
type model struct {
	config  map[string]any
	tensors map[string]stored
	files   map[string]string // others, by base name
	weights string            // base name of the safetensors file
}

type stored struct {
	dtype tensor.DType
	shape []int64
	data  []byte
}

// golden reads one of testdata/checkpoints.
func goldenModel(t *testing.T, name string) *model {
	t.Helper()
	dir := filepath.Join(testdata, "checkpoints", name)
	m := &model{config: map[string]any{}, tensors: map[string]stored{}, files: map[string]string{}, weights: "model.safetensors"}
	b, err := os.ReadFile(filepath.Join(dir, "config.json"))
	if err == nil {
		err = json.Unmarshal(b, &m.config)
	}
	if err != nil {
		t.Fatal(err)
	}
	d, err := weights.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	for f, x := range d.All() {
		b, err := os.ReadFile(f.Path)
		if err != nil {
			t.Fatal(err)
		}
		m.tensors[x.Name] = stored{x.DType, x.Shape, b[f.Header.Data:][x.Begin:x.End]}
	}
	return m
}

// open writes the model to a directory, aged, and opens that.
func (m *model) open(t *testing.T) *weights.Dir {
	t.Helper()
	dir := t.TempDir()
	config, err := json.Marshal(m.config)
	if err != nil {
		t.Fatal(err)
	}
	files := maps.Clone(m.files)
	files["config.json"] = string(config)
	files[m.weights] = string(safetensorsFile(t, m.tensors))
	past := time.Now().Add(-time.Hour)
	for base, data := range files {
		path := filepath.Join(dir, base)
		if err := os.WriteFile(path, []byte(data), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Chtimes(path, past, past); err != nil {
			t.Fatal(err)
		}
	}
	d, err := weights.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	return d
}

func safetensorsFile(t *testing.T, tensors map[string]stored) []byte {
	t.Helper()
	type entry struct {
		DType   tensor.DType `json:"dtype"`
		Shape   []int64      `json:"shape"`
		Offsets [2]int       `json:"data_offsets"`
	}
	header, data := map[string]entry{}, []byte(nil)
	for _, name := range slices.Sorted(maps.Keys(tensors)) {
		x := tensors[name]
		header[name] = entry{x.dtype, x.shape, [2]int{len(data), len(data) + len(x.data)}}
		data = append(data, x.data...)
	}
	b, err := json.Marshal(header)
	if err != nil {
		t.Fatal(err)
	}
	return append(append(binary.LittleEndian.AppendUint64(nil, uint64(len(b))), b...), data...)
}

// rename moves a tensor.
func (m *model) rename(from, to string) {
	m.tensors[to] = m.tensors[from]
	delete(m.tensors, from)
}

// zeros is a tensor of zeros.
func zeros(d tensor.DType, shape ...int64) stored {
	return stored{d, append([]int64{}, shape...), make([]byte, tensor.Elements(shape)*int64(d.Size()))}
}

var bf16 = Options{DType: tensor.BF16, Release: "0.33.0"}

func ranked(o Options, r Rank) Options { o.Rank = r; return o }
