// SPDX-FileCopyrightText: The wcache authors
// SPDX-License-Identifier: MIT

package fingerprint

import (
	"encoding/json"
	"math"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestNewKeyRefuses(t *testing.T) {
	many := make([]Field, maxFields+1)
	deep := Tuple{}
	for range maxDepth {
		deep = Tuple{deep}
	}
	for _, tt := range []struct {
		fields []Field
		want   string
	}{
		{[]Field{{"", 1}}, `make key: field name "" is empty, over 256 bytes, or not UTF-8`},
		{[]Field{{"\xff", 1}}, `make key: field name "\xff" is empty, over 256 bytes, or not UTF-8`},
		{[]Field{{"a", 1}, {"a", 1}}, `make key: field "a" twice`},
		{[]Field{{"a", int32(1)}}, `make key: field "a": a int32 can't be a value of a key`},
		{[]Field{{"a", map[string]any{}}}, `make key: field "a": a map[string]interface {} can't be a value of a key`},
		{[]Field{{"a", "\xff"}}, `make key: field "a": string "\xff" is not UTF-8`},
		{[]Field{{"a", math.NaN()}}, `make key: field "a": NaN can't be compared`},
		{[]Field{{"a", Tuple{math.Inf(1)}}}, `make key: field "a": +Inf can't be compared`},
		{[]Field{{"a", deep}}, `make key: field "a": more than 4 tuples in each other`},
		{[]Field{{"a", strings.Repeat("x", maxValue)}}, `make key: field "a": values take more than 1048576 bytes`},
		{many, `make key: 257 fields are over the limit of 256`},
	} {
		if _, err := NewKey(tt.fields); err == nil || err.Error() != tt.want {
			t.Errorf("got %v, want %s", err, tt.want)
		}
	}
}

func TestKeyValues(t *testing.T) {
	list := []any{"a", []any{int64(1), nil}}
	k := mustKey(t, Field{"s", "x"}, Field{"n", 7}, Field{"b", true}, Field{"none", nil}, Field{"t", list})
	list[0] = "changed"
	want := []Field{{"s", "x"}, {"n", int64(7)}, {"b", true}, {"none", nil}, {"t", Tuple{"a", Tuple{int64(1), nil}}}}
	if diff := cmp.Diff(want, k.Fields()); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if k.Str("s") != "x" || k.Str("n") != "" || k.Str("gone") != "" || k.Int("n", 1) != 7 || k.Int("s", 1) != 1 || !k.Bool("b") || k.Bool("gone") || len(k.fields) != 5 {
		t.Error("an accessor gives another value")
	}
	v, ok := k.Get("none")
	if _, gone := k.Get("gone"); v != nil || !ok || gone {
		t.Error("a field that is None is not told from one that isn't there")
	}
	var zero Key
	if len(zero.fields) != 0 || zero.Int("n", 3) != 3 || !zero.Equal(Key{}) || zero.Equal(k) {
		t.Error("the zero key is not an empty one")
	}
}

func TestID(t *testing.T) {
	different := []Key{
		{},
		mustKey(t, Field{"a", nil}),
		mustKey(t, Field{"a", ""}),
		mustKey(t, Field{"a", 0}),
		mustKey(t, Field{"a", 0.0}),
		mustKey(t, Field{"a", false}),
		mustKey(t, Field{"a", true}),
		mustKey(t, Field{"a", Tuple{}}),
		mustKey(t, Field{"a", Tuple{""}}),
		mustKey(t, Field{"a", Tuple{"", ""}}),
		mustKey(t, Field{"a", Tuple{Tuple{""}, ""}}),
		mustKey(t, Field{"a", Tuple{Tuple{"", ""}}}),
		mustKey(t, Field{"a", nil}, Field{"b", nil}),
		mustKey(t, Field{"a", "nb"}),
	}
	ids := make(map[string]int)
	for i, k := range different {
		if j, ok := ids[k.ID()]; ok || len(k.ID()) != 64 {
			t.Errorf("keys %d and %d have the id %s", i, j, k.ID())
		}
		ids[k.ID()] = i
		for j, o := range different {
			if k.Equal(o) != (i == j) {
				t.Errorf("keys %d and %d: Equal is %v", i, j, k.Equal(o))
			}
		}
	}
	a, b := mustKey(t, Field{"a", 1}, Field{"b", 2}), mustKey(t, Field{"b", 2}, Field{"a", 1})
	if !a.Equal(b) || a.ID() != b.ID() {
		t.Error("order makes a difference")
	}
	// An id names stored entries: it must not change from version to version.
	if got := a.ID()[:12]; got != "2fdd388a0a71" {
		t.Errorf("the id of a fixed key is now %s", got)
	}
}

// P7: each rank alone makes keys differ. P8: so do fields that only one release has.
func TestCompare(t *testing.T) {
	base := layoutKey(t, "llama-tp2r0")
	lacks := func(k Key, name string) Key {
		return mustKey(t, slices.DeleteFunc(k.Fields(), func(f Field) bool { return f.Name == name })...)
	}
	for name, tt := range map[string]struct {
		engine, cached Key
		want           []string
	}{
		"equal":               {base, base, nil},
		"tp rank":             {with(t, base, Field{"tp_rank", 1}), base, []string{"tp_rank"}},
		"pp rank":             {with(t, base, Field{"pp_rank", 1}), base, []string{"pp_rank"}},
		"dp rank":             {with(t, base, Field{"dp_rank", 1}), base, []string{"dp_rank"}},
		"role":                {with(t, base, Field{"is_draft", true}), base, []string{"is_draft"}},
		"class order":         {with(t, base, Field{"vllm_version", "0.32.0"}, Field{"dtype", "torch.float16"}), base, []string{"dtype", "vllm_version"}},
		"tuple":               {with(t, base, Field{"linear_backend_per_quant", Tuple{Tuple{"fp8", "marlin"}}}), base, []string{"linear_backend_per_quant"}},
		"none and a string":   {with(t, base, Field{"revision", ""}), base, []string{"revision"}},
		"unknown to us":       {with(t, base, Field{"sparsity", nil}), base, []string{"sparsity"}},
		"unknown to engine":   {base, with(t, base, Field{"sparsity", nil}, Field{"tp_rank", 1}), []string{"tp_rank", "sparsity"}},
		"missing in engine":   {lacks(base, "dp_rank"), base, []string{"dp_rank"}},
		"missing in both":     {lacks(base, "dp_rank"), lacks(base, "dp_rank"), nil},
		"both have a new one": {with(t, base, Field{"sparsity", 2.5}), with(t, base, Field{"sparsity", 2.5}), nil},
	} {
		if diff := cmp.Diff(tt.want, Compare(tt.engine, tt.cached)); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
	}
}

func TestKeyText(t *testing.T) {
	k := mustKey(t,
		Field{"model", "org/модель <&>"}, Field{"quote", "a\"\\\n\x01😀="}, Field{"n", -3}, Field{"f", 1.0}, Field{"e", 1e300}, Field{"revision", nil},
		Field{"b", true}, Field{"t", Tuple{Tuple{"fp8", int64(1)}, Tuple{}}})
	want := `{"model":"org/\u043c\u043e\u0434\u0435\u043b\u044c <&>","quote":"a\"\\\n\u0001\ud83d\ude00=","n":-3,"f":1.0,"e":1e+300,"revision":null,` +
		`"b":true,"t":[["fp8",1],[]]}`
	if b, err := k.MarshalJSON(); err != nil || string(b) != want {
		t.Errorf("got %s, %v", b, err)
	}
	b, err := json.Marshal(k)
	if err != nil {
		t.Fatal(err)
	}
	var read Key
	if err := json.Unmarshal(b, &read); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(k.Fields(), read.Fields()); diff != "" {
		t.Errorf("JSON and back (-want +got):\n%s", diff)
	}
}

func TestKeyTextRefuses(t *testing.T) {
	for text, want := range map[string]string{
		``:                                       "decode key: not an object",
		`[]`:                                     "decode key: not an object",
		`{"a":1,"a":2}`:                          `make key: field "a" twice`,
		`{"a":{"b":1}}`:                          `decode key: field "a": an object can't be a value of a key`,
		`{"a":[[[[[1]]]]]}`:                      `decode key: field "a": more than 4 arrays in each other`,
		`{"a":1} x`:                              "decode key: text after the end",
		`{"a":1`:                                 "decode key: EOF",
		`{"a":9223372036854775808}`:              `decode key: field "a": strconv.ParseInt: parsing "9223372036854775808": value out of range`,
		`{"a":1e999}`:                            `decode key: field "a": strconv.ParseFloat: parsing "1e999": value out of range`,
		`{"` + strings.Repeat("x", 300) + `":1}`: `make key: field name "` + strings.Repeat("x", 40) + `" is empty, over 256 bytes, or not UTF-8`,
	} {
		var k Key
		if err := k.UnmarshalJSON([]byte(text)); err == nil || err.Error() != want || len(k.fields) != 0 {
			t.Errorf("%.60s: %v, want %s", text, err, want)
		}
	}
}

func FuzzKeyJSON(f *testing.F) {
	for _, name := range []string{"llama-tp1r0", "fp8_block-tp2r1"} {
		b, err := json.Marshal(layoutKey(f, name))
		if err != nil {
			f.Fatal(err)
		}
		f.Add(b)
	}
	f.Add([]byte(`{"a":[["b",1.5e-7],null,false],"":1}`))
	f.Fuzz(func(t *testing.T, b []byte) {
		var k Key
		if err := k.UnmarshalJSON(b); err != nil {
			return
		}
		text, err := k.MarshalJSON()
		if err != nil {
			t.Fatal(err)
		}
		var again Key
		if err := again.UnmarshalJSON(text); err != nil || !k.Equal(again) || k.ID() != again.ID() {
			t.Fatalf("%s reads back as another key: %v", text, err)
		}
	})
}
