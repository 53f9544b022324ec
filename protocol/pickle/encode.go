// SPDX-FileCopyrightText: The wcache authors
// SPDX-License-Identifier: MIT

package pickle

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"io"
	"math"
	"math/bits"
	"slices"
)

// The frame sizes of CPython's pickler: _FRAME_SIZE_TARGET and _FRAME_SIZE_MIN of Lib/pickle.py.
// Strings and bytes of at least the target stand outside of frames.
const (
	frameTarget = 64 << 10
	frameMin    = 4
	frameHeader = 9 // the opcode and 8 bytes of length
)

// Python's pickler adds at most this many items to a list or dict at a time, so
// that the stack of the reader stays small: _BATCHSIZE of Lib/pickle.py.
const batchSize = 1000

// Encode writes a tree of this package's values.
func Encode(v any) ([]byte, error) {
	e := NewEncoder(256)
	e.Value(v)
	return e.Finish()
}

// Encoder writes one pickle, opcode by opcode. The caller follows the order of the pickle
// machine: arguments first, then the operation. It is not safe for concurrent use.
//
// After an error further calls do nothing, and Finish returns the error.
type Encoder struct {
	buf     []byte
	ranges  []span
	frame   int   // offset of the open frame's header, -1 if none is open
	ranged  int64 // bytes of the ranges in the open frame
	memo    int   // values memoized so far
	names   map[string]int
	globals map[Global]int
	marked  map[int]int
	err     error
}

// NewEncoder starts a pickle that will have about size bytes.
func NewEncoder(size int) *Encoder {
	e := &Encoder{
		buf:     make([]byte, 0, size),
		frame:   -1,
		names:   make(map[string]int),
		globals: make(map[Global]int),
		marked:  make(map[int]int),
	}
	e.buf = append(e.buf, opProto, maxProtocol)
	return e
}

// Finish ends the pickle, when its value is the only one on the stack, and reads the ranges of
// BytesFrom. The caller owns the bytes, and must not use the encoder again.
func (e *Encoder) Finish() ([]byte, error) {
	parts, err := e.Parts()
	switch {
	case err != nil:
		return nil, err
	case len(parts) == 1:
		return parts[0].Bytes, nil
	}
	var b bytes.Buffer
	for _, p := range parts {
		if err := p.Write(&b); err != nil {
			return nil, err
		}
	}
	return b.Bytes(), nil
}

// Value writes a tree of this package's values.
func (e *Encoder) Value(v any) {
	switch v := v.(type) {
	case nil:
		e.None()
	case bool:
		e.Bool(v)
	case int64:
		e.Int(v)
	case float64:
		e.begin()
		e.buf = binary.BigEndian.AppendUint64(append(e.buf, opBinFloat), math.Float64bits(v))
	case string:
		e.String(v)
	case []byte:
		e.Bytes(v)
		e.Memoize()
	case Tuple:
		e.tuple(v)
	case *List:
		e.list(v)
	case *Dict:
		e.dict(v)
	case Global:
		e.Global(v.Module, v.Name)
	case *Object:
		e.Global(v.Class.Module, v.Class.Name)
		e.tuple(v.Args)
		e.NewObj()
		e.Memoize()
		if v.State != nil {
			e.Value(v.State)
			e.Build()
		}
	case *Call:
		e.Global(v.Func.Module, v.Func.Name)
		e.tuple(v.Args)
		e.Reduce()
		e.Memoize()
	default:
		e.fail(fmt.Errorf("encode pickle: no form for a %T", v))
	}
}

func (e *Encoder) tuple(t Tuple) {
	if len(t) == 0 {
		e.EmptyTuple()
		return
	}
	if len(t) > 3 {
		e.Mark()
	}
	for _, v := range t {
		e.Value(v)
	}
	e.Tuple(len(t))
	e.Memoize()
}

func (e *Encoder) list(l *List) {
	e.EmptyList()
	e.Memoize()
	if len(l.Items) == 1 {
		e.Value(l.Items[0])
		e.op(opAppend)
		return
	}
	for batch := range slices.Chunk(l.Items, batchSize) {
		e.Mark()
		for _, v := range batch {
			e.Value(v)
		}
		e.op(opAppends)
	}
}

func (e *Encoder) dict(d *Dict) {
	e.EmptyDict()
	e.Memoize()
	if len(d.Items) == 1 {
		e.String(d.Items[0].Key)
		e.Value(d.Items[0].Value)
		e.op(opSetItem)
		return
	}
	for batch := range slices.Chunk(d.Items, batchSize) {
		e.Mark()
		for _, item := range batch {
			e.String(item.Key)
			e.Value(item.Value)
		}
		e.SetItems()
	}
}

// None writes None.
func (e *Encoder) None() {
	e.begin()
	e.op(opNone)
}

// Bool writes True or False.
func (e *Encoder) Bool(v bool) {
	e.begin()
	if v {
		e.op(opNewTrue)
	} else {
		e.op(opNewFalse)
	}
}

// Int writes an int.
func (e *Encoder) Int(v int64) {
	e.begin()
	switch {
	case v >= 0 && v <= math.MaxUint8:
		e.buf = append(e.buf, opBinInt1, byte(v))
	case v >= 0 && v <= math.MaxUint16:
		e.buf = binary.LittleEndian.AppendUint16(append(e.buf, opBinInt2), uint16(v))
	case v >= math.MinInt32 && v <= math.MaxInt32:
		e.buf = binary.LittleEndian.AppendUint32(append(e.buf, opBinInt), uint32(v))
	default:
		// The bits of the magnitude and one for the sign, rounded up to bytes.
		n := bits.Len64(uint64(v^v>>63))/8 + 1
		e.buf = append(e.buf, opLong1, byte(n))
		for i := range n {
			e.buf = append(e.buf, byte(v>>(8*i)))
		}
	}
}

// String writes a string of UTF-8 and memoizes it, as Python does.
func (e *Encoder) String(s string) {
	e.begin()
	if uint64(len(s)) > math.MaxUint32 {
		e.fail(fmt.Errorf("encode pickle: string of %d bytes", len(s)))
		return
	}
	if len(s) <= math.MaxUint8 {
		e.buf = append(append(e.buf, opShortBinUnicode, byte(len(s))), s...)
	} else {
		e.leaveFrame(int64(len(s)))
		e.buf = binary.LittleEndian.AppendUint32(append(e.buf, opBinUnicode), uint32(len(s)))
		e.buf = append(e.buf, s...)
	}
	e.Memoize()
}

// Name writes a string that comes several times: the string the first time, then references.
func (e *Encoder) Name(s string) {
	if i, ok := e.names[s]; ok {
		e.get(i)
		return
	}
	e.String(s)
	e.names[s] = e.memo - 1
}

// Bytes writes bytes, without memoizing them.
func (e *Encoder) Bytes(b []byte) {
	e.bytesHeader(int64(len(b)))
	e.buf = append(e.buf, b...)
}

// BytesFrom writes, as a bytes value, the n bytes at off of r. They are read when the pickle is
// written, see [Encoder.Parts]; small ranges are copied at once.
func (e *Encoder) BytesFrom(r io.ReaderAt, off, n int64) {
	if e.err != nil {
		return
	}
	e.bytesHeader(n)
	if n >= minRange {
		e.ranges = append(e.ranges, span{len(e.buf), Part{From: r, Off: off, N: n}})
		e.ranged += n
		return
	}
	at := len(e.buf)
	e.buf = slices.Grow(e.buf, int(n))[:at+int(n)]
	if got, err := r.ReadAt(e.buf[at:], off); int64(got) < n {
		e.fail(fmt.Errorf("read %d bytes at %d: %w", n, off, err))
	}
}

func (e *Encoder) bytesHeader(n int64) {
	e.begin()
	e.leaveFrame(n)
	switch {
	case n <= math.MaxUint8:
		e.buf = append(e.buf, opShortBinBytes, byte(n))
	case n <= math.MaxUint32:
		e.buf = binary.LittleEndian.AppendUint32(append(e.buf, opBinBytes), uint32(n))
	default:
		e.buf = binary.LittleEndian.AppendUint64(append(e.buf, opBinBytes8), uint64(n))
	}
}

// Global writes the name of an attribute of a module: the name the first time, then references.
func (e *Encoder) Global(module, name string) {
	g := Global{module, name}
	if i, ok := e.globals[g]; ok {
		e.get(i)
		return
	}
	e.begin()
	e.Name(module)
	e.String(name)
	e.op(opStackGlobal)
	e.globals[g] = e.Memoize()
}

// Ints writes a tuple of ints.
func (e *Encoder) Ints(v []int64) {
	if len(v) > 3 {
		e.Mark()
	}
	for _, n := range v {
		e.Int(n)
	}
	e.Tuple(len(v))
}

// EmptyTuple writes (), EmptyList [] and EmptyDict {}.
func (e *Encoder) EmptyTuple() { e.begin(); e.op(opEmptyTuple) }

// EmptyList writes []; see [Encoder.EmptyTuple].
func (e *Encoder) EmptyList() { e.begin(); e.op(opEmptyList) }

// EmptyDict writes {}; see [Encoder.EmptyTuple].
func (e *Encoder) EmptyDict() { e.begin(); e.op(opEmptyDict) }

// Mark begins the items of a SetItems, or of a Tuple of more than three.
func (e *Encoder) Mark() { e.op(opMark) }

// SetItems puts the keys and values since the mark into the dict below it.
func (e *Encoder) SetItems() { e.op(opSetItems) }

// Tuple makes a tuple of the last n values; they begin with a mark if n is over 3.
func (e *Encoder) Tuple(n int) {
	switch {
	case n > 3:
		e.op(opTuple)
	case n > 0:
		e.op(opTuple1 + byte(n) - 1)
	default:
		e.EmptyTuple()
	}
}

// Reduce calls the global below the last value, a tuple of arguments.
func (e *Encoder) Reduce() { e.op(opReduce) }

// NewObj makes an object of the class below the last value, a tuple of arguments.
func (e *Encoder) NewObj() { e.op(opNewObj) }

// Build gives the object below the last value that value as its state.
func (e *Encoder) Build() { e.op(opBuild) }

// Memoize memoizes the last value and returns its number.
func (e *Encoder) Memoize() int {
	e.op(opMemoize)
	e.memo++
	return e.memo - 1
}

// Remember memoizes the last value under a number of the caller's.
func (e *Encoder) Remember(id int) { e.marked[id] = e.Memoize() }

// Recall writes a reference to the value remembered under id; false if there is none.
func (e *Encoder) Recall(id int) bool {
	i, ok := e.marked[id]
	if ok {
		e.get(i)
	}
	return ok
}

func (e *Encoder) get(i int) {
	e.begin()
	if i <= math.MaxUint8 {
		e.buf = append(e.buf, opBinGet, byte(i))
	} else {
		e.buf = binary.LittleEndian.AppendUint32(append(e.buf, opLongBinGet), uint32(i))
	}
}

func (e *Encoder) op(op byte) {
	e.openFrame()
	e.buf = append(e.buf, op)
}

// begin is called where a value begins, the one place where Python's pickler checks whether the
// open frame is full.
func (e *Encoder) begin() {
	if e.frame >= 0 && e.framed() >= frameTarget {
		e.closeFrame()
	}
	e.openFrame()
}

func (e *Encoder) openFrame() {
	if e.frame < 0 {
		e.frame, e.ranged = len(e.buf), 0
		e.buf = append(e.buf, opFrame, 0, 0, 0, 0, 0, 0, 0, 0)
	}
}

func (e *Encoder) closeFrame() {
	if e.frame < 0 {
		return
	}
	if n := e.framed(); n >= frameMin {
		binary.LittleEndian.PutUint64(e.buf[e.frame+1:], uint64(n))
	} else { // too few bytes to include a range
		e.buf = append(e.buf[:e.frame], e.buf[e.frame+frameHeader:]...)
	}
	e.frame = -1
}

// framed is how many bytes the open frame has so far.
func (e *Encoder) framed() int64 { return int64(len(e.buf)-e.frame-frameHeader) + e.ranged }

// leaveFrame ends the frame if the next n bytes have to stand outside of one.
func (e *Encoder) leaveFrame(n int64) {
	if n >= frameTarget {
		e.closeFrame()
	}
}

func (e *Encoder) fail(err error) {
	if e.err == nil {
		e.err = err
	}
}
