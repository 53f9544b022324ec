// SPDX-FileCopyrightText: The wcache authors
// SPDX-License-Identifier: MIT

package layout

import (
	"cmp"
	"crypto/md5"
	"encoding/hex"
	"encoding/json"
	"flag"
	"fmt"
	"maps"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"

	gocmp "github.com/google/go-cmp/cmp"

	"github.com/wcache/wcache/fingerprint"
	"github.com/wcache/wcache/tensor"
	"github.com/wcache/wcache/weights"
	"github.com/wcache/wcache/weights/hfconfig"
)

// oddities are one configuration of weights/hfconfig/testdata/odd.json, and what
// transformers 5.20 and vLLM 0.33 make of each odd value of each key.
type oddities struct {
	Config map[string]any       `json:"config"`
	Want   outcome              `json:"want"`
	Nested string               `json:"nested"` // the key whose object has the odd keys, "" for the file
	Keys   map[string][]oddCase `json:"keys"`
}

// outcome is what decides the tensors and the key.
type outcome struct {
	Arch, DType, QuantHash, RopeHash                                         string
	HiddenSize, IntermediateSize, Layers, Heads, KVHeads, HeadDim, VocabSize raw // as JSON
	Tied, QKVBias, OutBias, MLPBias                                          bool
	Rows                                                                     int64
	LastRow                                                                  floats
	Other                                                                    bool
}

// raw is a value as JSON has it.
type raw string

func (x *raw) UnmarshalJSON(b []byte) error { *x = raw(b); return nil }

// oddCase is an outcome's difference from the plain one, nil where an engine
// ends, and the values that have it.
type oddCase struct {
	differs json.RawMessage
	values  []string
}

func (c *oddCase) UnmarshalJSON(b []byte) error {
	return json.Unmarshal(b, &[]any{&c.differs, &c.values})
}

func readOddities(t *testing.T) []oddities {
	t.Helper()
	b, err := os.ReadFile("../weights/hfconfig/testdata/odd.json")
	if err != nil {
		t.Fatal(err)
	}
	var list []oddities
	if err := json.Unmarshal(b, &list); err != nil {
		t.Fatal(err)
	}
	return list
}

// with is the text of the configuration in which a key has a value, which is JSON
// as Python reads it.
func (o *oddities) with(t *testing.T, key, value string) string {
	t.Helper()
	config := maps.Clone(o.Config)
	if o.Nested == "" {
		config[key] = "@"
	} else {
		inner := maps.Clone(config[o.Nested].(map[string]any))
		inner[key] = "@"
		config[o.Nested] = inner
	}
	b, err := json.Marshal(config)
	if err != nil {
		t.Fatal(err)
	}
	return strings.Replace(string(b), `"@"`, value, 1)
}

// made is what a plan would be made of. The error says why there is none.
func made(t *testing.T, dir string, c *hfconfig.Config) (outcome, error) {
	t.Helper()
	m, err := describe(&weights.Dir{Path: dir, Config: c})
	if err != nil {
		return outcome{}, err
	}
	rope, _, err := m.cosSin(false)
	if err != nil {
		return outcome{}, err
	}
	row := make([]byte, 8*len(rope.InvFreq))
	fillRow(row, Rope{InvFreq: rope.InvFreq, PositionScale: rope.PositionScale, Magnitude: rope.Magnitude, To: tensor.F32}, rope.Rows-1)
	var last floats
	if err := last.UnmarshalText([]byte(hex.EncodeToString(row))); err != nil {
		t.Fatal(err)
	}
	return outcome{
		Arch:       m.arch,
		HiddenSize: number(m.hidden), IntermediateSize: number(m.inner), Layers: number(m.layers), Heads: number(m.heads),
		KVHeads: number(m.kvHeads), HeadDim: number(m.headDim), VocabSize: number(m.vocab), Tied: m.tied, QKVBias: m.qkvBias, OutBias: m.outBias, MLPBias: m.mlpBias,
		Rows: rope.Rows, LastRow: last,
	}, nil
}

func number(n int64) raw { return raw(strconv.FormatInt(n, 10)) }

// keyed are the fields of a key that the configuration decides, "" for those that
// can't be computed.
func keyed(c *hfconfig.Config) outcome {
	sum := func(payload string, err error) string {
		if err != nil {
			return ""
		}
		h := md5.Sum([]byte(payload))
		return hex.EncodeToString(h[:])
	}
	o := outcome{QuantHash: sum(fingerprint.QuantPayload(c)), RopeHash: sum(fingerprint.RopePayload(c))}
	if c.Check(hfconfig.Architecture) == nil {
		o.Arch = strings.Join(c.Architectures, ",")
	}
	if c.Check(hfconfig.ElementType) == nil {
		o.DType = cmp.Or(c.DType, "float32") // without any tensors
	}
	return o
}

// ends are values at which an engine ends and which are taken here, nil for all of
// a key: what would be built is what every other release builds, or the key isn't
// read. Nobody asks for such a model, so that a plan of it does no harm.
var ends = map[string][]string{
	"attention_bias":      {"null"},
	"mlp_bias":            {"null"},
	"head_dim":            {"null"},
	"num_key_value_heads": {"null"},
	"factor":              {"2", "1"}, // linear scaling wants a float
	"rope_theta":          {"1"},      // yarn divides by its logarithm
	"dtype":               nil,
	"layer_types":         nil,
	"sliding_window":      nil,
}

var update = flag.Bool("update", false, "write testdata/odd.txt anew")

// TestOddValues holds every key of config.json that is read against transformers
// and vLLM themselves: a value of a type that isn't documented is refused, or comes
// to the same, and what a key would say of it is right or isn't said. The messages
// are those of testdata/odd.txt, where VALUE stands for the value; what is said of a
// key as in the first configuration of its kind isn't repeated.
func TestOddValues(t *testing.T) {
	const path = "testdata/odd.txt"
	dir := t.TempDir()
	first := make(map[string]map[string]string) // by where the keys are
	var b strings.Builder
	for _, o := range readOddities(t) {
		if first[o.Nested] == nil {
			first[o.Nested] = make(map[string]string)
		}
		inner, _ := o.Config[o.Nested].(map[string]any)
		fmt.Fprintf(&b, "# %s %v\n", o.Want.Arch, inner["rope_type"])
		for _, key := range slices.Sorted(maps.Keys(o.Keys)) {
			said := o.try(t, dir, key)
			if said == first[o.Nested][key] {
				continue
			}
			fmt.Fprintf(&b, "%s\n%s", key, said)
			if _, known := first[o.Nested][key]; !known {
				first[o.Nested][key] = said
			}
		}
	}
	if *update {
		if err := os.WriteFile(path, []byte(b.String()), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if diff := gocmp.Diff(strings.Split(string(want), "\n"), strings.Split(b.String(), "\n")); diff != "" {
		t.Errorf("-want +got (write it with -update):\n%s", diff)
	}
}

// try gives each of its values to a key. It returns what comes of them, a line for
// each outcome.
func (o *oddities) try(t *testing.T, dir, key string) string {
	t.Helper()
	values := make(map[string][]string)
	for _, c := range o.Keys[key] {
		want := o.Want
		if c.differs != nil {
			if err := json.Unmarshal(c.differs, &want); err != nil {
				t.Fatal(err)
			}
		}
		for _, value := range c.values {
			name := fmt.Sprintf("%s: %s with %s %s", o.Want.Arch, o.Nested, key, value)
			config, err := hfconfig.Parse([]byte(o.with(t, key, value)))
			if err != nil {
				t.Fatalf("%s: %v", name, err)
			}
			got, err := made(t, dir, config)
			text := "taken"
			if err != nil {
				text = strings.Replace(err.Error(), " is "+value, " is VALUE", 1)
			}
			values[text] = append(values[text], value)

			switch some, known := ends[key]; {
			case c.differs != nil:
				checkKey(t, name, want, keyed(config))
				if err == nil {
					checkOutcome(t, name, want, got)
				}
			case err == nil && (!known || some != nil && !slices.Contains(some, value)):
				t.Errorf("%s: taken, an engine ends at it", name)
			}
		}
	}
	var b strings.Builder
	for _, text := range slices.Sorted(maps.Keys(values)) {
		slices.Sort(values[text])
		fmt.Fprintf(&b, "\t%s: %s\n", strings.Join(values[text], " "), text)
	}
	return b.String()
}

func checkKey(t *testing.T, name string, want, got outcome) {
	t.Helper()
	for field, pair := range map[string][2]string{
		"model_arch": {want.Arch, got.Arch}, "dtype": {want.DType, got.DType},
		"quant_config_hash": {want.QuantHash, got.QuantHash}, "rope_parameters_hash": {want.RopeHash, got.RopeHash},
	} {
		if pair[1] != "" && pair[1] != pair[0] {
			t.Errorf("%s: %s of the key is %s, not %s", name, field, pair[1], pair[0])
		}
	}
}

func checkOutcome(t *testing.T, name string, want, got outcome) {
	t.Helper()
	for i, w := range want.LastRow {
		if i < len(got.LastRow) && neighbours(w, got.LastRow[i]) {
			got.LastRow[i] = w
		}
	}
	want.DType, want.QuantHash, want.RopeHash = "", "", ""
	if diff := gocmp.Diff(want, got); diff != "" {
		t.Errorf("%s (-vLLM +plan):\n%s", name, diff)
	}
}
