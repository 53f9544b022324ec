// SPDX-FileCopyrightText: The wcache authors
// SPDX-License-Identifier: MIT

package layout

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"errors"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/wcache/wcache/internal/testmain"
	"github.com/wcache/wcache/tensor"
	"github.com/wcache/wcache/tensor/cast"
	"github.com/wcache/wcache/weights"
)

func TestMain(m *testing.M) { testmain.Run(m) }

const testdata = "../testdata"

// golden is a file of testdata/layouts: what vLLM's own daemon exports.
type golden struct {
	Case       string                     `json:"case"`
	Checkpoint string                     `json:"checkpoint_dir"`
	Key        map[string]json.RawMessage `json:"key"`
	Aliases    json.RawMessage            `json:"aliases"`
	Attrs      map[string]bool            `json:"attrs"`
	Bytes      int64                      `json:"memory_bytes_if_cuda"`
	Entries    []goldenEntry              `json:"entries"`
}

type goldenEntry struct {
	Name    string  `json:"name"`
	Kind    string  `json:"kind"`
	Shape   []int64 `json:"shape"`
	Stride  []int64 `json:"stride"`
	Offset  int64   `json:"storage_offset"`
	DType   string  `json:"dtype"`
	Storage int64   `json:"storage_nbytes"`
	SHA256  string  `json:"sha256"`
}

// Get makes a key of it, with the types of fingerprint's values.
func (g *golden) Get(name string) (any, bool) {
	raw, ok := g.Key[name]
	if !ok {
		return nil, false
	}
	var v any
	if err := json.Unmarshal(raw, &v); err != nil {
		return nil, false
	}
	if f, ok := v.(float64); ok {
		return int64(f), true
	}
	return v, true
}

func readGolden(t *testing.T, path string) *golden {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	g := new(golden)
	if err := json.Unmarshal(b, g); err != nil {
		t.Fatal(err)
	}
	if g.Checkpoint == "" {
		g.Checkpoint = g.Case
	}
	return g
}

// others are the golden cases outside of the dense family, with the field for which they
// are refused.
var others = map[string]string{
	"gemma": "model_arch", "gpt2": "model_arch", "fp8": "quantization",
	"mixtral": "model_arch", "qwen3moe": "model_arch", "deepseek": "model_arch",
}

func TestGolden(t *testing.T) {
	files, err := filepath.Glob(testdata + "/layouts/*.json")
	if err != nil || len(files) == 0 {
		t.Fatal("no golden layouts", err)
	}
	for _, path := range files {
		name := strings.TrimSuffix(filepath.Base(path), ".json")
		t.Run(name, func(t *testing.T) {
			g := readGolden(t, path)
			d, err := weights.Open(filepath.Join(testdata, "checkpoints", g.Checkpoint))
			if err != nil {
				t.Fatal(err)
			}
			o, err := OptionsOf(g)
			for prefix, field := range others {
				if strings.HasPrefix(name, prefix) {
					checkRefused(t, g, d, err, field)
					return
				}
			}
			if err != nil {
				t.Fatal(err)
			}
			p, err := New(d, o)
			if err != nil {
				t.Fatal(err)
			}
			compare(t, g, p)
		})
	}
}

// checkRefused checks that the directory alone is enough to refuse, and for
// quantized ones the key alone too.
func checkRefused(t *testing.T, _ *golden, d *weights.Dir, keyErr error, field string) {
	t.Helper()
	if field == "quantization" {
		wantRefusal(t, keyErr, field)
	}
	dtype, err := tensor.ParseTorch(d.Config.DType)
	if err != nil {
		dtype, err = tensor.ParseTorch("torch." + d.Config.DType)
	}
	if err != nil {
		t.Fatal(err)
	}
	_, err = New(d, Options{DType: dtype, Release: "0.33.0"})
	wantRefusal(t, err, field)
}

func wantRefusal(t *testing.T, err error, field string) {
	t.Helper()
	var u *Unsupported
	if !errors.As(err, &u) || u.Field != field {
		t.Errorf("got %v, want a refusal by %s", err, field)
	}
}

func compare(t *testing.T, g *golden, p *Plan) {
	t.Helper()
	memory := carryOut(t, p)
	var got []goldenEntry
	for _, x := range p.Table.Tensors {
		s := p.Table.Storages[x.Storage]
		data := memory[s.Offset : s.Offset+s.Bytes]
		if x.DType == tensor.F32 && strings.HasSuffix(x.Name, ".cos_sin_cache") {
			data = nearCache(t, data)
		}
		sum := sha256.Sum256(data)
		got = append(got, goldenEntry{
			x.Name, string(x.Kind), x.Shape, x.Stride, x.Offset, "torch." + x.DType.Torch(), s.Bytes, hex.EncodeToString(sum[:]),
		})
	}
	if diff := cmp.Diff(g.Entries, got, cmpopts.EquateEmpty()); diff != "" {
		t.Errorf("entries (-vLLM +plan):\n%s", diff)
	}
	var aliases []byte // in order, as the golden object has them
	for i, a := range p.Table.Aliases {
		if i > 0 {
			aliases = append(aliases, ',')
		}
		aliases = append(aliases, `"`+a.Name+`":"`+a.Target+`"`...)
	}
	var want strings.Builder
	for _, r := range string(g.Aliases) {
		if !strings.ContainsRune(" \n{}", r) {
			want.WriteRune(r)
		}
	}
	if diff := cmp.Diff(want.String(), string(aliases)); diff != "" {
		t.Errorf("aliases (-vLLM +plan):\n%s", diff)
	}
	attrs := map[string]bool{}
	for _, a := range p.Table.Attrs {
		attrs[a.Name] = a.Value
	}
	if diff := cmp.Diff(g.Attrs, attrs); diff != "" {
		t.Errorf("attrs (-vLLM +plan):\n%s", diff)
	}
	if n := p.Table.Bytes(); n != g.Bytes {
		t.Errorf("plan of %d bytes, vLLM has %d", n, g.Bytes)
	}
}

// nearCache gives vLLM's own cache of the float32 layouts; a plan's must be within one unit
// in the last place of it. Its sum shows that it is the same as in the layouts.
func nearCache(t *testing.T, got []byte) []byte {
	t.Helper()
	own, err := os.ReadFile("testdata/cos_sin_f32.bin")
	if err != nil {
		t.Fatal(err)
	}
	var want []float32
	for b := own; len(b) > 0; b = b[4:] {
		want = append(want, math.Float32frombits(binary.LittleEndian.Uint32(b)))
	}
	checkUlp(t, want, got)
	return own
}

// carryOut does what a loader does, only slowly.
func carryOut(t *testing.T, p *Plan) []byte {
	t.Helper()
	memory := make([]byte, p.Table.Segment)
	files := make([][]byte, len(p.Files))
	for i, f := range p.Files {
		var err error
		if files[i], err = os.ReadFile(f.Path); err != nil {
			t.Fatal(err)
		}
	}
	for _, c := range p.Copies {
		convert := func(dst, src []byte) { copy(dst, src) }
		if c.From != c.To {
			convert = cast.Between(c.From, c.To)
		}
		for row := range c.Rows {
			convert(memory[c.Dst+row*c.Written(c.RowBytes):][:c.Written(c.RowBytes)], files[c.File][c.Src+row*c.SrcStride:][:c.RowBytes])
		}
	}
	for _, z := range p.Zeros {
		clear(memory[z.Dst : z.Dst+z.Bytes])
	}
	for _, l := range p.Literals {
		copy(memory[l.Dst:], l.Data)
	}
	for _, r := range p.Ropes {
		dst := memory[r.Dst:]
		for row := range r.Rows {
			dst = dst[fillRow(dst, r, row):]
		}
	}
	return memory
}

// fillRow writes one row of a cache and returns its size.
func fillRow(b []byte, r Rope, row int64) int64 {
	position, n := float32(row)/r.PositionScale, int64(0)
	for _, wave := range []func(float64) float64{math.Cos, math.Sin} {
		for _, f := range r.InvFreq {
			n += put(b[n:], r.To, float32(float32(wave(float64(float32(position*f))))*r.Magnitude))
		}
	}
	return n
}

// put writes a float32 as a type, and returns its size.
func put(b []byte, d tensor.DType, x float32) int64 {
	bits := math.Float32bits(x)
	switch d {
	case tensor.BF16:
		binary.LittleEndian.PutUint16(b, cast.BF16(bits))
	case tensor.F16:
		binary.LittleEndian.PutUint16(b, cast.F16(bits))
	default:
		binary.LittleEndian.PutUint32(b, bits)
	}
	return int64(d.Size())
}
