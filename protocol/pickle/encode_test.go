// SPDX-FileCopyrightText: The wcache authors
// SPDX-License-Identifier: MIT

package pickle

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"math"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// TestEncode compares with CPython 3.11: the sums are of pickle.dumps(…, 5) of
// the expression that is the case's name. The long ones are about framing and
// batches.
func TestEncode(t *testing.T) {
	names, count := new(List), new(Dict)
	for i := range 9000 {
		names.Items = append(names.Items, fmt.Sprintf("%06d", i))
	}
	for i := range 1001 {
		count.Items = append(count.Items, Item{fmt.Sprint(i), int64(i)})
	}
	numbers := Tuple{int64(1), 2.5, int64(-1), int64(-129), int64(1 << 31), int64(math.MinInt64), int64(math.MaxInt64),
		int64(255), int64(256), int64(65535), int64(65536), nil, true, false}

	for _, tt := range []struct {
		name  string
		value any
		bytes int
		sum   string
	}{
		{`[]`, &List{}, 5, "3fe4a92ad75f98888c0fdc32304e33df0191042a9f85c4d1c59ea2ca284412c0"},
		{`()`, Tuple{}, 4, "4d2bde2bcd7529f75df8685357afae6f49a6792a5e61bbb22a51ae121291bf57"},
		{`{}`, &Dict{}, 5, "bfce13fc2f13ad950016bb48ccbbbd04ce13be07c748476dde1f940fcdfa0d52"},
		{`""`, "", 15, "3279c4b947f331d055c47442171c9ea17712596bd7fe094c31d4a5d432b42d68"},
		{`["%06d"%i for i in range(9000)]`, names, 81041, "c3c552ea0b573674d00269031fbba28d583821fbca78fdb12019cfa4a00d1402"},
		{`{"%d"%i:i for i in range(1001)}`, count, 8662, "c10bb1ea91ffe4e948f27d9e669df400c81100bd57ef77a628e30940eadb9b2f"},
		{`{"a":bytes(70000),"b":1}`, &Dict{[]Item{{"a", make([]byte, 70000)}, {"b", int64(1)}}}, 70041, "513af841a68be93ef325cb4ca7e6c1a3efc3ec8333f26e0b70a6f0f6baa54456"},
		{`{"a":"x"*70000,"b":(1,2.5,-1,-129,1<<31,-(1<<63),(1<<63)-1,255,256,65535,65536,None,True,False)}`,
			&Dict{[]Item{{"a", strings.Repeat("x", 70000)}, {"b", numbers}}}, 70106, "ca6726d684d22db5b27aaecfb25305a86516c28c180fd89a3fd565db43b1abc0"},
		{`[bytes(65535), bytes(65536), bytes(3)]`, &List{[]any{make([]byte, 65535), make([]byte, 65536), make([]byte, 3)}}, 131114, "3120f5ab790cd28a8f0e3b737bf19b9d53014c8161e00c13f39a0f909dc12a66"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			b, err := Encode(tt.value)
			if err != nil {
				t.Fatal(err)
			}
			if sum := sha256.Sum256(b); len(b) != tt.bytes || hex.EncodeToString(sum[:]) != tt.sum {
				t.Errorf("%d bytes, begins %x\n want %d", len(b), b[:min(len(b), 40)], tt.bytes)
			}
			back, err := Decode(b, Options{})
			if err != nil {
				t.Fatal(err)
			}
			if again, err := Encode(back); err != nil || !bytes.Equal(again, b) {
				t.Errorf("came back as another value, %v", err)
			}
		})
	}
}

func TestEncodeInts(t *testing.T) {
	for _, v := range []int64{0, 1, -1, 127, 128, -128, -129, 255, 256, 65535, 65536, math.MaxInt32, math.MaxInt32 + 1,
		math.MinInt32, math.MinInt32 - 1, 1<<39 - 1, 1 << 39, -1 << 39, -1<<39 - 1, math.MaxInt64, math.MinInt64} {
		b, err := Encode(v)
		if err != nil {
			t.Fatal(err)
		}
		got, err := Decode(b, Options{})
		if err != nil || got != v {
			t.Errorf("%d became %v, %v", v, got, err)
		}
	}
}

// TestEncoderReferences checks that names, globals and remembered values are
// written once, also where the memo is past one byte.
func TestEncoderReferences(t *testing.T) {
	for _, before := range []int{0, 300} {
		e := NewEncoder(0)
		e.Mark()
		want := Tuple{}
		for i := range before {
			e.String(fmt.Sprint(i))
			want = append(want, fmt.Sprint(i))
		}
		for range 2 {
			e.Name("kind")
			e.Global("torch", "float32")
			if !e.Recall(7) {
				e.Ints([]int64{1, 2, 3, 4})
				e.Remember(7)
			}
			e.Bytes([]byte{1})
			want = append(want, "kind", Global{"torch", "float32"}, Tuple{int64(1), int64(2), int64(3), int64(4)}, []byte{1})
		}
		e.Tuple(len(want))
		b, err := e.Finish()
		if err != nil {
			t.Fatal(err)
		}
		if n := bytes.Count(b, []byte("float32")); n != 1 {
			t.Errorf("a global is written %d times", n)
		}
		got, err := Decode(b, Options{Allow: allowAll})
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Error(diff)
		}
	}
}

func TestEncoderErrors(t *testing.T) {
	if _, err := Encode(Tuple{int32(1)}); err == nil || err.Error() != "encode pickle: no form for a int32" {
		t.Errorf("error %v", err)
	}
	e := NewEncoder(0)
	e.BytesFrom(strings.NewReader("abc"), 1, 3)
	if _, err := e.Finish(); !errors.Is(err, io.EOF) {
		t.Errorf("read past the end: %v", err)
	}
	e = NewEncoder(0)
	e.BytesFrom(strings.NewReader("abc"), 1, 2)
	b, err := e.Finish()
	if err != nil {
		t.Fatal(err)
	}
	if got, err := Decode(b, Options{}); err != nil || string(got.([]byte)) != "bc" {
		t.Errorf("bytes %v, %v", got, err)
	}
}

// TestRanges checks that bytes that are read only when a pickle is written change
// nothing in it: neither what frames hold nor where they begin.
func TestRanges(t *testing.T) {
	data := make([]byte, 3*frameTarget)
	for i := range data {
		data[i] = byte(i * 7)
	}
	sizes := []int64{0, 1, 255, 256, minRange - 1, minRange, 5000, 60_000, 5000, 2, 65_535, 65_536, 1, 3 * frameTarget, minRange, 65_000, minRange, minRange}
	write := func(bytes func(e *Encoder, n int64)) *Encoder {
		e := NewEncoder(0)
		e.EmptyList()
		e.Mark()
		for _, n := range sizes {
			bytes(e, n)
			e.String("and")
		}
		e.op(opAppends)
		return e
	}
	want, err := write(func(e *Encoder, n int64) { e.Bytes(data[:n]) }).Finish()
	if err != nil {
		t.Fatal(err)
	}
	later := func(e *Encoder, n int64) { e.BytesFrom(bytes.NewReader(data), 0, n) }
	if got, err := write(later).Finish(); err != nil || !bytes.Equal(got, want) {
		t.Errorf("another pickle, of %d bytes and not %d, %v", len(got), len(want), err)
	}
	parts, err := write(later).Parts()
	if err != nil {
		t.Fatal(err)
	}
	var n int64
	var ranges []int64
	for i := range parts {
		n += parts[i].Len()
		if parts[i].From != nil {
			ranges = append(ranges, parts[i].N)
		}
	}
	if diff := cmp.Diff([]int64{1024, 5000, 60_000, 5000, 65_535, 65_536, 3 * frameTarget, 1024, 65_000, 1024, 1024}, ranges); diff != "" || n != int64(len(want)) {
		t.Errorf("%d bytes for %d, ranges -want +got:\n%s", n, len(want), diff)
	}
	e := NewEncoder(0)
	e.BytesFrom(strings.NewReader("abc"), 0, minRange)
	if _, err := e.Finish(); !errors.Is(err, io.ErrUnexpectedEOF) {
		t.Errorf("a range past the end: %v", err)
	}
}
