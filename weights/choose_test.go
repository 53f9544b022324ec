// SPDX-FileCopyrightText: The wcache authors
// SPDX-License-Identifier: MIT

package weights

import (
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestParseShardIndex(t *testing.T) {
	for _, c := range []struct {
		text string
		want []string
		err  string
	}{
		{`{"weight_map":{"a":"2","b":"1","c":"2"},"metadata":{"x":[{}]}}`, []string{"1", "2"}, ""},
		{`{"weight_map":{"a":"1","a":"2"}}`, []string{"2"}, ""}, // Python keeps the last
		{`{"weight_map":{"a":"1"},"Weight_map":{"a":"2"}}`, []string{"1"}, ""},
		{`{}`, nil, "index has no weight_map"},
		{`null`, nil, "index has no weight_map"},
		{`{"weight_map":null}`, nil, "weight_map names no files"},
		{`{"weight_map":{}}`, nil, "weight_map names no files"},
		{`{"weight_map":{"a":""}}`, nil, `weight_map gives no file for "a"`},
		{`{"weight_map":{"a":null}}`, nil, `weight_map gives no file for "a"`},
		{`{"weight_map":{"a":1}}`, nil, "weight_map does not give files by tensor: json: cannot unmarshal number into Go value of type string"},
		{`{"weight_map":["a"]}`, nil, "weight_map does not give files by tensor: json: cannot unmarshal array into Go value of type map[string]string"},
		{`{"weight_map":{"a":"1"}}x`, nil, "index is not a JSON object: invalid character 'x' after top-level value"},
		{``, nil, "index is not a JSON object: unexpected end of JSON input"},
	} {
		got, err := ParseShardIndex([]byte(c.text))
		text := ""
		if err != nil {
			text = err.Error()
		}
		if text != c.err || !cmp.Equal(got, c.want) {
			t.Errorf("%s: got %v and %q, want %v and %q", c.text, got, text, c.want, c.err)
		}
	}
	if _, err := ParseShardIndex(make([]byte, MaxShardIndex+1)); err == nil || err.Error() != "index is over the limit of 67108864 bytes" {
		t.Errorf("got %v", err)
	}
	many := []byte(`{"weight_map":{` + strings.Repeat(`"":"",`, MaxTensors) + `"":""}}`)
	if _, err := ParseShardIndex(many); err == nil || err.Error() != "index has 1500002 entries, and a model has 1500000 tensors at most" {
		t.Errorf("got %v", err)
	}
}

// Parsing an index takes no more memory than was reserved for it, whatever its text.
func TestIndexCost(t *testing.T) {
	short, long := strings.Builder{}, strings.Builder{}
	for i := range 200_000 {
		fmt.Fprintf(&short, `"%s":"",`, strconv.FormatInt(int64(i), 36))
		fmt.Fprintf(&long, `"model.layers.%d.mlp.experts.%d.down_proj.weight":"model-%05d-of-00163.safetensors",`, i>>8, i&255, i>>11)
	}
	for name, text := range map[string]string{
		"short": `{"weight_map":{` + short.String() + `"":"x"}}`,
		"long":  `{"weight_map":{` + long.String() + `"":"x"}}`,
		"other": `{"weight_map":{"":"x"},"a":[` + strings.Repeat("[],", 1_000_000) + `0]}`,
	} {
		b := []byte(text)
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		_, _ = ParseShardIndex(b)
		runtime.ReadMemStats(&after)
		if n := int64(after.TotalAlloc - before.TotalAlloc); n > indexCost(int64(len(b)))-int64(len(b)) {
			t.Errorf("%s: %d bytes for an index of %d, and %d are taken", name, n, len(b), indexCost(int64(len(b))))
		}
	}
}

func FuzzShardIndex(f *testing.F) {
	for _, path := range []string{"llama", "llama_consolidated"} {
		b, err := os.ReadFile(filepath.Join(checkpoints, path, ShardIndexName))
		if err != nil {
			f.Fatal(err)
		}
		f.Add(b)
	}
	f.Add([]byte(`{"weight_map":{"a":null}}`))
	f.Fuzz(func(t *testing.T, b []byte) {
		shards, err := ParseShardIndex(b)
		if err == nil == (len(shards) == 0) {
			t.Fatalf("got %v and %v", shards, err)
		}
		if !slices.IsSorted(shards) || slices.Contains(shards, "") {
			t.Fatalf("got %v", shards)
		}
	})
}

// The order was taken from _natural_sort_key of vLLM 0.33.0.
func TestNaturalOrder(t *testing.T) {
	want := []string{
		"1.safetensors",
		"02.safetensors",
		"10.safetensors",
		"!.safetensors",
		"M.safetensors",
		"m-1-of-3.safetensors",
		"m-1-of-20.safetensors",
		"m-00002-of-3.safetensors",
		"m-99999999999999999999.safetensors",
		"m-100000000000000000000.safetensors",
		"m.safetensors",
		"ä1.safetensors",
		"ä2.safetensors",
	}
	got := slices.Clone(want)
	slices.Sort(got)
	slices.SortStableFunc(got, naturalOrder)
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}
