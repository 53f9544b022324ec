// SPDX-FileCopyrightText: The wcache authors
// SPDX-License-Identifier: MIT

package safetensors

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/wcache/wcache/tensor"
)

// file makes a file with a header and n bytes of data.
func file(header string, n int) []byte {
	b := binary.LittleEndian.AppendUint64(nil, uint64(len(header)))
	return append(append(b, header...), make([]byte, n)...)
}

func entry(name, dtype, shape string, begin, end int) string {
	return fmt.Sprintf(`"%s":{"dtype":"%s","shape":%s,"data_offsets":[%d,%d]}`, name, dtype, shape, begin, end)
}

func read(b []byte) (*Header, error) { return ReadHeader(bytes.NewReader(b), int64(len(b))) }

// The expected results were compared with safetensors 0.8.0; a case says so if wcache is
// stricter.
func TestReadHeader(t *testing.T) {
	u8 := func(shape ...int64) Tensor {
		return Tensor{Name: "a", DType: tensor.U8, Shape: shape, End: tensor.Elements(shape)}
	}
	for _, c := range []struct {
		name   string
		header string
		data   int
		want   []Tensor
	}{
		{"no tensors", `{}`, 0, []Tensor{}},
		{"one", `{` + entry("a", "U8", "[2]", 0, 2) + `}`, 2, []Tensor{u8(2)}},
		{"trailing space", `{` + entry("a", "U8", "[2]", 0, 2) + "} \n\t\r ", 2, []Tensor{u8(2)}},
		{"space inside", `{ "a" : { "data_offsets" : [ 0 , 2 ] , "shape" : [ 2 ] , "dtype" : "U8" } }`, 2, []Tensor{u8(2)}},
		{"scalar", `{` + entry("a", "F32", "[]", 0, 4) + `}`, 4, []Tensor{{Name: "a", DType: tensor.F32, Shape: []int64{}, End: 4}}},
		{"empty name", `{` + entry("", "U8", "[]", 0, 1) + `}`, 1, []Tensor{{DType: tensor.U8, Shape: []int64{}, End: 1}}},
		{"escapes", `{` + entry(`\u0061\n\ud83d\ude00\"\\\/\b\f\r\té`, "\\u0055\\u0038", "[1]", 0, 1) + `}`, 1,
			[]Tensor{{Name: "a\n😀\"\\/\b\f\r\té", DType: tensor.U8, Shape: []int64{1}, End: 1}}},
		{"unknown fields", `{"a":{"dtype":"U8","x":[{"y":[null,true,false,-1.5e+3,0,"\u0000"]},[],{}],"shape":[2],"data_offsets":[0,2]}}`, 2, []Tensor{u8(2)}},
		{"empty tensors", `{` + entry("c", "U8", "[0]", 2, 2) + `,` + entry("b", "U8", "[2]", 0, 2) + `,` + entry("a", "F32", "[0,4294967296,4294967296]", 0, 0) + `}`, 2,
			[]Tensor{
				{Name: "a", DType: tensor.F32, Shape: []int64{0, 1 << 32, 1 << 32}},
				{Name: "b", DType: tensor.U8, Shape: []int64{2}, End: 2},
				{Name: "c", DType: tensor.U8, Shape: []int64{0}, Begin: 2, End: 2},
			}},
		{"half bytes", `{` + entry("a", "F4", "[2,3]", 0, 3) + `}`, 3, []Tensor{{Name: "a", DType: tensor.F4, Shape: []int64{2, 3}, End: 3}}},
		{"six bits", `{` + entry("a", "F6_E3M2", "[4]", 0, 3) + `}`, 3, []Tensor{{Name: "a", DType: tensor.F6E3M2, Shape: []int64{4}, End: 3}}},
	} {
		t.Run(c.name, func(t *testing.T) {
			h, err := read(file(c.header, c.data))
			if err != nil {
				t.Fatal(err)
			}
			want := &Header{Raw: c.header, Tensors: c.want, Data: int64(8 + len(c.header))}
			if diff := cmp.Diff(want, h); diff != "" {
				t.Error(diff)
			}
		})
	}
}

func TestMetadata(t *testing.T) {
	for header, want := range map[string]map[string]string{
		`{}`:                               nil,
		`{"__metadata__":null}`:            {},
		`{"__metadata__":{}}`:              {},
		`{"__metadat\u0061__":{"a":"b"}}`:  {"a": "b"},
		`{"__metadata__":{"":"","a":"ä"}}`: {"": "", "a": "ä"},
	} {
		h, err := read(file(header, 0))
		if err != nil {
			t.Errorf("%s: %v", header, err)
			continue
		}
		if diff := cmp.Diff(want, h.Metadata); diff != "" {
			t.Errorf("%s: %s", header, diff)
		}
	}
}

func TestEveryDType(t *testing.T) {
	for d := tensor.DType(1); d.Valid(); d++ {
		n := d.Bits() / 2
		h, err := read(file(`{`+entry("a", d.String(), "[4]", 0, n)+`}`, n))
		if err != nil {
			t.Errorf("%v: %v", d, err)
			continue
		}
		if diff := cmp.Diff([]Tensor{{Name: "a", DType: d, Shape: []int64{4}, End: int64(n)}}, h.Tensors); diff != "" {
			t.Errorf("%v: %s", d, diff)
		}
	}
}

func TestRefused(t *testing.T) {
	length := func(n uint64) []byte { return append(binary.LittleEndian.AppendUint64(nil, n), '{', '}') }
	one := func(shape string, begin, end int) string { return `{` + entry("a", "U8", shape, begin, end) + `}` }
	two := func(begin, end int) string {
		return `{` + entry("a", "U8", "[2]", 0, 2) + `,` + entry("b", "U8", "[2]", begin, end) + `}`
	}
	for _, c := range []struct {
		name   string
		file   []byte
		tensor string
		reason string
	}{
		{"no length", []byte("1234567"), "", "a file of 7 bytes has no room for the header's length"},
		{"length 0", file("", 0), "", "its length is 0"},
		{"length past the file", length(3), "", "its length of 3 bytes runs past the end of a file of 10"},
		{"length 2^63", length(1 << 63), "", "its length of 9223372036854775808 bytes is over the format's limit of 100000000"},
		{"length over the limit", length(MaxHeader + 1), "", "its length of 100000001 bytes is over the format's limit of 100000000"},
		{"leading space, which the crate takes", file(" {}", 0), "", "it starts with ' ', not with '{'"},
		{"array", file("[]", 0), "", "it starts with '[', not with '{'"},
		{"byte order mark", file("\ufeff{}", 0), "", "it starts with 'ï', not with '{'"},
		{"not UTF-8", file("{\"__metadata__\":{\"a\":\"\xff\"}}", 0), "", "it is not UTF-8"},
		{"text after the header", file("{}x", 0), "", "JSON is followed by 'x' (at byte 2)"},
		{"zero after the header", file("{}\x00", 0), "", "JSON is followed by '\\x00' (at byte 2)"},
		{"cut short", file(`{"a":{"dtype":"U8"`, 0), "a", "JSON ends where ',' should be (at byte 18)"},
		{"cut in a string", file(`{"a`, 0), "", "string does not end (at byte 3)"},
		{"cut in an escape", file(`{"a\`, 0), "", "string does not end (at byte 4)"},
		{"cut in a number", file(`{"a":{"x":-`, 0), "a", "number lacks a digit (at byte 11)"},
		{"trailing comma", file(`{"__metadata__":{"a":"b"},}`, 0), "", "JSON has '}' where '\"' should be (at byte 26)"},
		{"control character", file("{\"a\nb\":{}}", 0), "", "string holds the control character '\\n' (at byte 3)"},
		{"control character after an escape", file("{\"\\na\n\":{}}", 0), "", "string holds the control character '\\n' (at byte 6)"},
		{"unknown escape", file(`{"\x":{}}`, 0), "", "string holds the unknown escape \\x (at byte 4)"},
		{"escape without digits", file(`{"\u00g0":{}}`, 0), "", "string holds an escape with 'g' for a digit (at byte 4)"},
		{"half a surrogate pair", file(`{"\ud800":{}}`, 0), "", "string holds half of a surrogate pair (at byte 8)"},
		{"second half first", file(`{"\udc00\ud800":{}}`, 0), "", "string holds half of a surrogate pair (at byte 14)"},

		{"named twice, which the crate takes", file(two(2, 4)[:len(two(2, 4))-1]+`,`+entry(`\u0061`, "U8", "[2]", 0, 2)+`}`, 4), "a", "named twice (at byte 114)"},
		{"field twice", file(`{"a":{"dtype":"U8","dtype":"U8"}}`, 0), "a", "dtype comes twice (at byte 27)"},
		{"metadata twice", file(`{"__metadata__":{},"__metadata__":{}}`, 0), "", "__metadata__ comes twice (at byte 34)"},
		{"metadata name twice, which the crate takes", file(`{"__metadata__":{"x":"","x":""}}`, 0), "", "__metadata__ has \"x\" twice (at byte 28)"},
		{"metadata of a number", file(`{"__metadata__":{"x":1}}`, 0), "", "JSON has '1' where '\"' should be (at byte 21)"},
		{"metadata as an array", file(`{"__metadata__":[]}`, 0), "", "JSON has '[' where '{' should be (at byte 16)"},
		{"tensor as an array, which the crate takes", file(`{"a":["U8",[2],[0,2]]}`, 2), "a", "JSON has '[' where '{' should be (at byte 5)"},
		{"no dtype", file(`{"a":{"shape":[2],"data_offsets":[0,2]}}`, 2), "a", "no dtype (at byte 39)"},
		{"no shape", file(`{"a":{"dtype":"U8","data_offsets":[0,2]}}`, 2), "a", "no shape (at byte 40)"},
		{"no offsets", file(`{"a":{"dtype":"U8","shape":[2]}}`, 2), "a", "no data_offsets (at byte 31)"},
		{"one offset", file(`{"a":{"data_offsets":[0]}}`, 2), "a", "JSON has ']' where ',' should be (at byte 23)"},
		{"three offsets", file(`{"a":{"data_offsets":[0,1,2]}}`, 2), "a", "JSON has ',' where ']' should be (at byte 25)"},
		{"unknown dtype", file(`{`+entry("a", "X8", "[2]", 0, 2)+`}`, 2), "a", "unknown dtype \"X8\" (at byte 18)"},
		{"shape null", file(one("null", 0, 2), 2), "a", "JSON has 'n' where '[' should be (at byte 27)"},
		{"negative", file(one("[-1]", 0, 2), 2), "a", "JSON has no number of 0 or more where one should be (at byte 28)"},
		{"fraction", file(one("[2.0]", 0, 2), 2), "a", "number is not an integer (at byte 29)"},
		{"exponent", file(one("[2e0]", 0, 2), 2), "a", "number is not an integer (at byte 29)"},
		{"leading zero", file(one("[02]", 0, 2), 2), "a", "number starts with 0 (at byte 30)"},
		{"2^63, of which the crate takes 0", file(one("[9223372036854775808,0]", 0, 0), 0), "a", "number is over 9223372036854775807 (at byte 46)"},
		{"deep", file(`{"a":{"x":`+strings.Repeat("[", 200)+strings.Repeat("]", 200)+`}}`, 0), "a", "JSON nests deeper than 127 (at byte 135)"},
		{"65 dimensions", file(one("[1"+strings.Repeat(",1", 64)+"]", 0, 1), 1), "a", "shape has more than 64 dimensions (at byte 156)"},
		{"metadata without end", file(`{"__metadata__":{`+manyPairs(MaxMetadata+1)+`}}`, 0), "", "__metadata__ has more than 16384 names (at byte 185523)"},
		{"unknown word", file(`{"a":{"x":nul}}`, 0), "a", "JSON has no value where one should be (at byte 10)"},

		{"begin after end", file(one("[0]", 2, 0), 2), "a", "data_offsets [2,0] end before they begin"},
		{"hole", file(two(3, 5), 5), "b", "data_offsets [3,5] leave a hole: the data before ends at 2"},
		{"hole at the start", file(one("[2]", 1, 3), 3), "a", "data_offsets [1,3] leave a hole: the data before ends at 0"},
		{"overlap", file(two(1, 3), 3), "b", "data_offsets [1,3] overlap the data before, which ends at 2"},
		{"the same data", file(two(0, 2), 2), "b", "data_offsets [0,2] overlap the data before, which ends at 2"},
		{"empty tensor inside another", file(`{`+entry("a", "U8", "[2]", 0, 2)+`,`+entry("b", "U8", "[0]", 1, 1)+`}`, 2), "b", "data_offsets [1,1] overlap the data before, which ends at 2"},
		{"past the data", file(one("[3]", 0, 3), 2), "", "1 bytes are missing at the end of the file: its tensors take 3, and 2 are there"},
		{"all data missing", file(two(2, 4), 0), "", "4 bytes are missing at the end of the file: its tensors take 4, and 0 are there"},
		{"past the data and of another size", file(one("[2]", 0, 3), 2), "a", "shape [2] of U8 needs 2 bytes, data_offsets [0,3] give 3"},
		{"data left over", file(one("[2]", 0, 2), 3), "", "the tensors cover 2 bytes of data, the file has 3"},
		{"data without tensors", file("{}", 1), "", "the tensors cover 0 bytes of data, the file has 1"},
		{"size of another type", file(`{`+entry("a", "F32", "[1]", 0, 2)+`}`, 2), "a", "shape [1] of F32 needs 4 bytes, data_offsets [0,2] give 2"},
		{"odd F4", file(`{`+entry("a", "F4", "[3]", 0, 2)+`}`, 2), "a", "shape [3] of F4 is 12 bits, which ends inside a byte"},
		{"odd F6", file(`{`+entry("a", "F6_E2M3", "[2]", 0, 2)+`}`, 2), "a", "shape [2] of F6_E2M3 is 12 bits, which ends inside a byte"},
		{"elements overflow", file(one("[4294967296,4294967296,0]", 0, 0), 0), "a", "shape [4294967296 4294967296 0] of U8 is too large"},
		{"bits overflow", file(`{`+entry("a", "F32", "[1152921504606846976]", 0, 0)+`}`, 0), "a", "shape [1152921504606846976] of F32 is too large"},
	} {
		t.Run(c.name, func(t *testing.T) {
			h, err := read(c.file)
			if h != nil {
				t.Errorf("got the header %+v", h)
			}
			var got *FormatError
			if !errors.As(err, &got) {
				t.Fatalf("got %v, want a FormatError", err)
			}
			missing := map[string]int64{"no length": 1, "length past the file": 1, "past the data": 1, "all data missing": 4}[c.name]
			if diff := cmp.Diff(&FormatError{Tensor: c.tensor, Reason: c.reason, Missing: missing}, got); diff != "" {
				t.Error(diff)
			}
		})
	}
}

// manyPairs are n names with values, in JSON.
func manyPairs(n int) string {
	var b strings.Builder
	for i := range n {
		fmt.Fprintf(&b, `,"%d":"x"`, i)
	}
	return b.String()[1:]
}

// No header takes more memory than Cost says, and a real model's header takes far less
// (case W6, with 1.3 million tensors in 126 MB).
func TestCost(t *testing.T) {
	const size = 4_000_000
	fill := func(entry func(n int) string) string {
		var b strings.Builder
		for n := 0; b.Len() < size; n++ {
			b.WriteString(entry(n))
		}
		return b.String()
	}
	real, _ := large(40_000)
	for _, c := range []struct {
		name string
		text string
		most float64 // bytes for each byte of JSON
	}{
		{"real", string(real[Begin:]), 2},
		{"shortest", `{` + fill(func(n int) string {
			return `"` + strconv.FormatInt(int64(n), 36) + `":{"dtype":"U8","shape":[0],"data_offsets":[0,0]},`
		})[:size-100], Cost},
		{"shapes", `{` + fill(func(n int) string {
			return fmt.Sprintf(`"%x":{"dtype":"U8","shape":[0%s],"data_offsets":[0,0]},`, n, strings.Repeat(",0", MaxDims-1))
		}), Cost},
		{"shapes among braces", `{` + fill(func(n int) string {
			return fmt.Sprintf(`"{{{{%x":{"dtype":"U8","shape":[0%s],"data_offsets":[0,0]},`, n, strings.Repeat(",0", MaxDims-1))
		}), Cost},
		{"braces", `{"` + strings.Repeat("{", size) + `":`, Cost},
		{"escapes", `{` + fill(func(n int) string {
			return fmt.Sprintf(`"\n\n\n\n\n\n\n\n%x":{"\u0064type":"U8","shape":[0],"data_offsets":[0,0]},`, n)
		}), Cost},
		{"one long escape", `{"` + strings.Repeat(`\n`, size/2), Cost},
		{"metadata", `{"__metadata__":{` + manyPairs(MaxMetadata) + `},`, 3 * Cost}, // a larger header can't have more of it
		{"depth", `{"a":{"x":` + strings.Repeat("[", size), Cost},
	} {
		b := file(c.text, 0)
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		_, _ = read(b) // most end in the middle of something
		runtime.ReadMemStats(&after)
		const block = 1 << 20 // read in blocks of this size
		if n := float64(after.TotalAlloc-before.TotalAlloc-block) / float64(len(b)); n > c.most {
			t.Errorf("%s: %.2f bytes for each", c.name, n)
		}
	}
}

// A header of 1.3 million tensors is refused by the length that it claims, before
// any of it is read.
func TestLimitIsCheckedBeforeReading(t *testing.T) {
	const n = 126_000_000
	r := onlyLength(binary.LittleEndian.AppendUint64(nil, n))
	_, err := ReadHeader(r, 1<<40)
	want := "read safetensors header: its length of 126000000 bytes is over the format's limit of 100000000"
	if err == nil || err.Error() != want {
		t.Errorf("got %v, want %s", err, want)
	}
}

type onlyLength []byte

func (r onlyLength) ReadAt(b []byte, off int64) (int, error) {
	if off != 0 || len(b) > len(r) {
		return 0, errors.New("read past the length")
	}
	return copy(b, r), nil
}

func TestReadErrorsAreNoFormatErrors(t *testing.T) {
	b := file(`{"__metadata__":{}}`, 0)
	for _, c := range []struct {
		r    io.ReaderAt
		want error
	}{
		{bytes.NewReader(b[:4]), io.ErrUnexpectedEOF}, // a file that shrank meanwhile
		{bytes.NewReader(b[:12]), io.ErrUnexpectedEOF},
		{broken{}, os.ErrDeadlineExceeded},
	} {
		_, err := ReadHeader(c.r, int64(len(b)))
		var f *FormatError
		if !errors.Is(err, c.want) || errors.As(err, &f) {
			t.Errorf("got %v, want %v", err, c.want)
		}
	}
}

type broken struct{}

func (broken) ReadAt([]byte, int64) (int, error) { return 0, os.ErrDeadlineExceeded }

func golden(tb testing.TB) []string {
	tb.Helper()
	files, err := filepath.Glob("../../testdata/checkpoints/*/*.safetensors")
	if err != nil || len(files) == 0 {
		tb.Fatalf("no golden files: %v", err)
	}
	return files
}

// encoding/json is the second opinion on files that are valid.
func TestGoldenFiles(t *testing.T) {
	for _, name := range golden(t) {
		b, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		h, err := read(b)
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		if diff := cmp.Diff(decode(t, []byte(h.Raw)), byName(h)); diff != "" {
			t.Errorf("%s: %s", name, diff)
		}
	}
}

type info struct {
	DType   tensor.DType
	Shape   []int64
	Offsets [2]int64
}

func decode(t *testing.T, raw []byte) map[string]info {
	unmarshal := func(text []byte, v any) {
		if err := json.Unmarshal(text, v); err != nil {
			t.Fatal(err)
		}
	}
	var all map[string]json.RawMessage
	unmarshal(raw, &all)
	delete(all, "__metadata__")
	infos := make(map[string]info)
	for name, text := range all {
		var fields map[string]json.RawMessage // a struct would take "Shape" for "shape"
		var i info
		unmarshal(text, &fields)
		unmarshal(fields["dtype"], &i.DType)
		unmarshal(fields["shape"], &i.Shape)
		unmarshal(fields["data_offsets"], &i.Offsets)
		infos[name] = i
	}
	return infos
}

func byName(h *Header) map[string]info {
	infos := make(map[string]info)
	for _, t := range h.Tensors {
		infos[t.Name] = info{DType: t.DType, Shape: t.Shape, Offsets: [2]int64{t.Begin, t.End}}
	}
	return infos
}

func FuzzReadHeader(f *testing.F) {
	for _, name := range golden(f) {
		b, err := os.ReadFile(name)
		if err != nil {
			f.Fatal(err)
		}
		h, err := read(b)
		if err != nil {
			f.Fatal(err)
		}
		f.Add([]byte(h.Raw), int64(len(b))-h.Data)
	}
	f.Add([]byte(`{"__metadata__":{"\u0061":"\ud83d\ude00"},"a":{"x":[-1.5e3,{"y":null}],"dtype":"F4","shape":[2,0],"data_offsets":[0,0]}} `), int64(0))
	f.Fuzz(func(t *testing.T, header []byte, data int64) {
		data &= 1<<62 - 1
		b := append(binary.LittleEndian.AppendUint64(nil, uint64(len(header))), header...)
		h, err := ReadHeader(bytes.NewReader(b), int64(len(b))+data)
		if err != nil {
			var e *FormatError
			if h != nil || !errors.As(err, &e) {
				t.Fatalf("got %v and %v", h, err)
			}
			return
		}
		var end int64
		for _, x := range h.Tensors {
			if x.Begin != end || x.End < x.Begin {
				t.Fatalf("tensor %q lies at [%d,%d] after %d", x.Name, x.Begin, x.End, end)
			}
			end = x.End
		}
		if end != data {
			t.Fatalf("tensors cover %d bytes of %d", end, data)
		}
		if diff := cmp.Diff(decode(t, []byte(h.Raw)), byName(h)); diff != "" {
			t.Fatal(diff)
		}
	})
}

// large is a file's header with n tensors, as a big mixture of experts has them, and
// the file's size.
func large(n int) ([]byte, int64) {
	var b bytes.Buffer
	b.Write(make([]byte, Begin))
	b.WriteString(`{"__metadata__":{"format":"pt"}`)
	const bytes = 2 * 2048 * 7168
	for i := range n {
		fmt.Fprintf(&b, `,"model.layers.%d.mlp.experts.%d.down_proj.weight":{"dtype":"BF16","shape":[7168,2048],"data_offsets":[%d,%d]}`, i/256, i%256, i*bytes, (i+1)*bytes)
	}
	b.WriteString(`}`)
	binary.LittleEndian.PutUint64(b.Bytes(), uint64(b.Len()-Begin))
	return b.Bytes(), int64(b.Len()) + int64(n)*bytes
}

func BenchmarkReadHeader(b *testing.B) {
	for _, n := range []int{400, 500_000} {
		file, size := large(n)
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			b.SetBytes(int64(len(file)))
			b.ReportAllocs()
			for b.Loop() {
				if _, err := ReadHeader(bytes.NewReader(file), size); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
