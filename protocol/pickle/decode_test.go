// SPDX-FileCopyrightText: The wcache authors
// SPDX-License-Identifier: MIT

package pickle

import (
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func allowAll(string, string) bool { return true }

func TestDecode(t *testing.T) {
	size := Global{"torch", "Size"}
	for _, tt := range []struct {
		name string
		in   string // without the protocol's two bytes
		want any
	}{
		{"none", "N.", nil},
		{"true", "\x88.", true},
		{"false", "\x89.", false},
		{"one byte", "K\xff.", int64(255)},
		{"two bytes", "M\x00\x01.", int64(256)},
		{"four bytes", "J\x00\x00\x00\x80.", int64(math.MinInt32)},
		{"long of no bytes", "\x8a\x00.", int64(0)},
		{"negative long", "\x8a\x01\xff.", int64(-1)},
		{"long", "\x8a\x05\x00\x00\x48\xbd\x03.", int64(16060514304)},
		{"longest long", "\x8a\x08\xff\xff\xff\xff\xff\xff\xff\x7f.", int64(math.MaxInt64)},
		{"float", "G\x40\x04\x00\x00\x00\x00\x00\x00.", 2.5},
		{"short string", "\x8c\x03abc.", "abc"},
		{"string", "X\x02\x00\x00\x00\xc3\xa4.", "ä"},
		{"short bytes", "C\x02\x00\xff.", []byte{0, 255}},
		{"bytes", "B\x01\x00\x00\x00a.", []byte("a")},
		{"bytes of 64-bit length", "\x8e\x01\x00\x00\x00\x00\x00\x00\x00a.", []byte("a")},
		{"empty tuple", ").", Tuple{}},
		{"tuples", "K\x01\x85K\x02\x86N\x88\x89\x87\x86.", Tuple{Tuple{Tuple{int64(1)}, int64(2)}, Tuple{nil, true, false}}},
		{"tuple of four", "(NNNNt.", Tuple{nil, nil, nil, nil}},
		{"list", "]K\x01a(K\x02K\x03e.", &List{[]any{int64(1), int64(2), int64(3)}}},
		{"dict", "}\x8c\x01aK\x01s(\x8c\x01bK\x02\x8c\x01cNu.", &Dict{[]Item{{"a", int64(1)}, {"b", int64(2)}, {"c", nil}}}},
		{"global", "\x8c\x05torch\x8c\x04Size\x93.", size},
		{"call", "\x8c\x05torch\x8c\x04Size\x93K\x02\x85\x85R.", &Call{size, Tuple{Tuple{int64(2)}}}},
		{"object", "\x8c\x05torch\x8c\x04Size\x93)\x81}b.", &Object{size, Tuple{}, &Dict{}}},
		{"memo", "\x8c\x01a\x94h\x00j\x00\x00\x00\x00\x87.", Tuple{"a", "a", "a"}},
		{"frames", "\x95\x04\x00\x00\x00\x00\x00\x00\x00K\x01K\x02\x95\x02\x00\x00\x00\x00\x00\x00\x00\x86.", Tuple{int64(1), int64(2)}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			got, err := Decode([]byte("\x80\x05"+tt.in), Options{Allow: allowAll})
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(tt.want, got); diff != "" {
				t.Error(diff)
			}
		})
	}
}

func TestDecodeRefuses(t *testing.T) {
	const size = "\x8c\x05torch\x8c\x04Size\x93"
	for _, tt := range []struct{ name, in, want string }{
		{"nothing", "", "byte 0: ends in the middle of an opcode"},
		{"protocol 0", "(dp0\n.", "byte 0: begins with 0x28 0x64: protocols 4 to 5 only"},
		{"protocol 2", "\x80\x02N.", "byte 0: begins with 0x80 0x2: protocols 4 to 5 only"},
		{"protocol 6", "\x80\x06N.", "byte 0: begins with 0x80 0x6: protocols 4 to 5 only"},
		{"no end", "\x80\x05N", "byte 3: ends in the middle of an opcode"},
		{"end of nothing", "\x80\x05.", "byte 2: ends with 0 values and 0 marks"},
		{"two values", "\x80\x05NN.", "byte 4: ends with 2 values and 0 marks"},
		{"open mark", "\x80\x05N(.", "byte 4: ends with 1 values and 1 marks"},
		{"more after the end", "\x80\x05N.N", "byte 3: 1 bytes follow its end"},
		{"text of protocol 0", "\x80\x05cos\nsystem\n.", "byte 2: opcode 0x63 is not allowed"},
		{"persistent id", "\x80\x05NQ.", "byte 3: opcode 0x51 is not allowed"},
		{"extension", "\x80\x05\x82\x01.", "byte 2: opcode 0x82 is not allowed"},
		{"out of band", "\x80\x05\x97.", "byte 2: opcode 0x97 is not allowed"},
		{"global", "\x80\x05\x8c\x05posix\x8c\x06system\x93.", `global "system" of module "posix" is not allowed`},
		{"global of ints", "\x80\x05K\x01K\x02\x93.", "byte 6: global's name is no string"},
		{"call of a string", "\x80\x05\x8c\x01a)R.", "byte 6: call of a value that is no global"},
		{"arguments of none", "\x80\x05" + size + "NR.", "byte 17: arguments of torch.Size are no tuple"},
		{"state of a call", "\x80\x05" + size + ")R}b.", "byte 19: state for a value that is no new object"},
		{"second state", "\x80\x05" + size + ")\x81}b}b.", "byte 21: state for a value that is no new object"},
		{"int over 64 bits", "\x80\x05\x8a\x09123456789.", "byte 2: LONG1 integer of 9 bytes is over 64 bits"},
		{"not UTF-8", "\x80\x05\x8c\x01\xff.", "byte 2: string is not UTF-8"},
		{"string past the end", "\x80\x05X\xff\xff\xff\xff.", "byte 2: ends in the middle of an opcode"},
		{"bytes past the end", "\x80\x05\x8e\xff\xff\xff\xff\xff\xff\xff\xff.", "byte 2: ends in the middle of an opcode"},
		{"memo that isn't there", "\x80\x05h\x00.", "byte 2: no memoized value 0"},
		{"memoize nothing", "\x80\x05\x94.", "byte 2: stack is empty"},
		{"tuple below a mark", "\x80\x05N(\x85.", "byte 4: stack is empty"},
		{"no mark", "\x80\x05t.", "byte 2: no mark is open"},
		{"append to none", "\x80\x05NNa.", "byte 4: append to a value that is no list"},
		{"set in none", "\x80\x05N\x8c\x01aNs.", "byte 7: set items of a value that is not a dict"},
		{"key without a value", "\x80\x05}(\x8c\x01au.", "byte 7: key without a value"},
		{"int as key", "\x80\x05}K\x01Ns.", "byte 6: dict key is no string"},
		{"frame past the end", "\x80\x05\x95\x09\x00\x00\x00\x00\x00\x00\x00N.", "byte 2: frame of 9 bytes, of which 2 are there"},
		{"frame of 2^63 bytes", "\x80\x05\x95\x00\x00\x00\x00\x00\x00\x00\x80N.", "byte 2: frame of 9223372036854775808 bytes, of which 2 are there"},
		{"frame in a frame", "\x80\x05\x95\x0b\x00\x00\x00\x00\x00\x00\x00\x95\x02\x00\x00\x00\x00\x00\x00\x00N.", "byte 11: frame inside a frame"},
		{"frame that ends in an opcode", "\x80\x05\x95\x01\x00\x00\x00\x00\x00\x00\x00K\x01.", "byte 11: opcode 0x4b crosses the end of its frame"},
		{"frame that ends late", "\x80\x05\x95\x03\x00\x00\x00\x00\x00\x00\x00N.N", "byte 12: ends before its frame"},
		{"list in itself", "\x80\x05]\x94h\x00a.", "byte 6: value is changed after it became a part of another"},
		{"lists in each other", "\x80\x05]\x94]\x94h\x00ah\x00h\x01a.", "byte 13: value is changed after it became a part of another"},
		{"tuple in its list", "\x80\x05]\x94h\x00\x85a.", "byte 7: value is changed after it became a part of another"},
		{"object in its state", "\x80\x05" + size + ")\x81\x94}\x8c\x01ah\x00sb.", "byte 26: value is changed after it became a part of another"},
		{"too deep", "\x80\x05N" + strings.Repeat("\x85", MaxDepth+1) + ".", "over 32 levels of values"},
		{"too many marks", "\x80\x05" + strings.Repeat("(", MaxDepth+1) + ".", "over 32 open marks"},
		{"too many values", "\x80\x05" + strings.Repeat("N", 101) + ".", "over 100 values"},
		{"too many memoized", "\x80\x05N" + strings.Repeat("\x94", 101) + ".", "over 100 memoized values"},
		{"doubled seven times", "\x80\x05)" + "\x94h\x00\x86" + doublings(7) + ".", "over 100 values"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			v, err := Decode([]byte(tt.in), Options{
				Allow:    func(module, _ string) bool { return module == "torch" },
				MaxItems: 100,
			})
			if err == nil || v != nil {
				t.Fatalf("value %v, error %v", v, err)
			}
			if got := strings.TrimPrefix(err.Error(), "decode pickle: "); got != tt.want {
				t.Errorf("error %q\n want %q", got, tt.want)
			}
		})
	}
}

// doublings makes a pair of the last value and itself, n times, after one value
// has been memoized.
func doublings(n int) string {
	var b strings.Builder
	for i := range n {
		b.WriteString("\x94h")
		b.WriteByte(byte(i + 1))
		b.WriteString("\x86")
	}
	return b.String()
}

// TestRecorded decodes every recorded message: engines and vLLM's daemon use no
// opcode that is refused here.
func TestRecorded(t *testing.T) {
	for name, b := range recorded(t) {
		v, err := Decode(b, Options{Allow: allowAll})
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		if _, ok := v.(*Dict); !ok {
			t.Errorf("%s: is a %T", name, v)
		}
	}
}

// recorded is the pickle of each recorded message, without its frame.
func recorded(t testing.TB) map[string][]byte {
	t.Helper()
	paths, err := filepath.Glob("../../testdata/wire/*.bin")
	if err != nil || len(paths) == 0 {
		t.Fatalf("recorded messages: %d, %v", len(paths), err)
	}
	all := make(map[string][]byte)
	for _, p := range paths {
		b, err := os.ReadFile(p)
		if err != nil {
			t.Fatal(err)
		}
		all[filepath.Base(p)] = b[8:]
	}
	return all
}

func FuzzDecode(f *testing.F) {
	for _, b := range recorded(f) {
		f.Add(b)
	}
	f.Add([]byte("\x80\x05]\x94]\x94h\x00ah\x00h\x01a."))
	f.Add([]byte("\x80\x05)\x94h\x00\x86" + doublings(7) + "."))
	f.Fuzz(func(t *testing.T, b []byte) {
		v, err := Decode(b, Options{Allow: allowAll, MaxItems: 1 << 12})
		if err != nil {
			if v != nil {
				t.Fatalf("value %v and error %v", v, err)
			}
			return
		}
		again, err := Encode(v)
		if err != nil {
			t.Fatalf("encode what was decoded: %v", err)
		}
		back, err := Decode(again, Options{Allow: allowAll, MaxItems: 1 << 16})
		if err != nil {
			t.Fatalf("decode what was encoded: %v", err)
		}
		third, err := Encode(back)
		if err != nil || string(third) != string(again) {
			t.Fatalf("value changed on its way: %v", err)
		}
	})
}
