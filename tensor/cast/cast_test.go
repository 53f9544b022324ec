// SPDX-FileCopyrightText: The wcache authors
// SPDX-License-Identifier: MIT

package cast

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"math"
	"os"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/wcache/wcache/tensor"
)

// castValues are those of testdata/casts.py.
func castValues() map[tensor.DType][]byte {
	var b16, b32, b64 []byte
	for upper := range uint64(1 << 16) {
		b16 = binary.LittleEndian.AppendUint16(b16, uint16(upper))
		for _, low := range []uint64{0, 1, 0x0fff, 0x1000, 0x1001, 0x1fff, 0x2000, 0x3000, 0x7fff, 0x8000, 0x8001, 0xffff} {
			b32 = binary.LittleEndian.AppendUint32(b32, uint32(upper<<16|low))
		}
		for _, mid := range []uint64{0, 0x1000, 0x7fff, 0x8000, 0x3ffff} {
			for _, low := range []uint64{0, 1, 0x10000000, 0x1fffffff} {
				b64 = binary.LittleEndian.AppendUint64(b64, upper<<48|mid<<29|low)
			}
		}
	}
	return map[tensor.DType][]byte{tensor.F16: b16, tensor.BF16: b16, tensor.F32: b32, tensor.F64: b64}
}

func TestCastsAreTorchs(t *testing.T) {
	t.Parallel()
	b, err := os.ReadFile("testdata/casts.json")
	if err != nil {
		t.Fatal(err)
	}
	var want map[string]string
	if err := json.Unmarshal(b, &want); err != nil {
		t.Fatal(err)
	}
	values := castValues()
	got := make(map[string]string)
	for from := tensor.DType(1); from.Valid(); from++ {
		for to := tensor.DType(1); to.Valid(); to++ {
			f := Between(from, to)
			if (f != nil) != Possible(from, to) {
				t.Errorf("%v to %v: Possible %v, Between %v", from, to, Possible(from, to), f != nil)
			}
			if f == nil {
				continue
			}
			out := make([]byte, len(values[from])/from.Size()*to.Size())
			f(out, values[from])
			sum := sha256.Sum256(out)
			got[from.String()+" to "+to.String()] = hex.EncodeToString(sum[:])
		}
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("casts differ from torch's (-want +got):\n%s", diff)
	}
}

// The conversions take several elements at a time; each must come out as it does
// alone, wherever it stands.
func TestCastsAreElementwise(t *testing.T) {
	floats := []float32{0, 1, -1.5, 65519, 65520, 6e-5, 6e-8, 2.9e-8, -1e-10, 3.4e38,
		float32(math.Inf(1)), float32(math.NaN()), float32(math.Inf(-1)), -65504, 1.00048828125}
	var f32 []byte
	for i := range 200 {
		f32 = binary.LittleEndian.AppendUint32(f32, math.Float32bits(floats[i*i%len(floats)]))
	}
	for _, from := range []tensor.DType{tensor.F16, tensor.BF16, tensor.F32, tensor.F64} {
		for _, to := range []tensor.DType{tensor.F16, tensor.BF16, tensor.F32} {
			f := Between(from, to)
			if f == nil {
				continue
			}
			for n := range 20 {
				src := f32[n*8:][:n*from.Size()]
				got := make([]byte, n*to.Size())
				f(got, src)
				var want []byte
				for i := range n {
					one := make([]byte, to.Size())
					f(one, src[i*from.Size():][:from.Size()])
					want = append(want, one...)
				}
				if diff := cmp.Diff(want, got, cmp.Transformer("hex", hex.EncodeToString)); diff != "" {
					t.Errorf("%v to %v: %d elements (-alone +together):\n%s", from, to, n, diff)
				}
			}
		}
	}
}
