// SPDX-FileCopyrightText: The wcache authors
// SPDX-License-Identifier: MIT

package weights

import (
	"os"
	"path/filepath"
	"slices"
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
		{`{"weight_map":{"a":"1"}}x`, nil, "index is no JSON object: invalid character 'x' after top-level value"},
		{``, nil, "index is no JSON object: unexpected end of JSON input"},
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
