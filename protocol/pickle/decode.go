// SPDX-FileCopyrightText: The wcache authors
// SPDX-License-Identifier: MIT

package pickle

import (
	"encoding/binary"
	"fmt"
	"math"
	"slices"
	"unicode/utf8"
)

// Options say what a pickle may hold.
type Options struct {
	// Allow reports whether a pickle may name this attribute of this module. Nil:
	// it may name none.
	Allow func(module, name string) bool
	// MaxItems bounds the number of values; one that is shared counts each time
	// that it is reached. Zero: DefaultItems.
	MaxItems int
}

// Decode reads one pickle that fills b. A []byte in the result is a part of b,
// not a copy. Errors are a *[SyntaxError], a *[GlobalError] or a *[LimitError].
func Decode(b []byte, o Options) (any, error) {
	if o.MaxItems == 0 {
		o.MaxItems = DefaultItems
	}
	if o.Allow == nil {
		o.Allow = func(string, string) bool { return false }
	}
	d := &decoder{in: b, opts: o, nodes: make([]node, 1, 32)}
	d.run()
	if d.err != nil {
		return nil, d.err
	}
	return d.stack[0].value, nil
}

// slot is a value on the stack or in the memo. node is its place in
// decoder.nodes, 0 for a value that can't hold others.
type slot struct {
	value any
	node  int
}

// node is what is known of a value that holds others. Python may put a value
// into another and change it later, which is how a value comes to contain
// itself; its pickler needs that for nothing but such values. So a node that is
// inside another is final, and depth and size can be kept exactly.
type node struct {
	depth  int  // 1 for one that holds no nodes
	size   int  // values in the tree below, itself included
	inside bool // it is a part of another
}

// decoder is Python's pickle machine. err is the first error; once it is set,
// nothing that the machine does counts.
type decoder struct {
	in    []byte
	pos   int
	op    int // where the current opcode is
	frame int // end of the latest frame
	opts  Options
	stack []slot
	marks []int // lengths of the stack at the open marks
	memo  []slot
	nodes []node
	items int
	err   error
}

func (d *decoder) run() {
	if b := d.take(2); d.err == nil && (b[0] != opProto || b[1] < minProtocol || b[1] > maxProtocol) {
		d.fail("begins with %#x %#x: protocols %d to %d only", b[0], b[1], minProtocol, maxProtocol)
	}
	for d.err == nil {
		d.op = d.pos
		op := byte(d.uint(1))
		if op == opStop && d.err == nil {
			d.stop()
			return
		}
		d.step(op)
		if d.op < d.frame && d.pos > d.frame {
			d.fail("opcode %#x crosses the end of its frame", op)
		}
	}
}

func (d *decoder) stop() {
	switch {
	case len(d.stack) != 1 || len(d.marks) != 0:
		d.fail("ends with %d values and %d marks", len(d.stack), len(d.marks))
	case d.pos < d.frame:
		d.fail("ends before its frame")
	case d.pos != len(d.in):
		d.fail("%d bytes follow its end", len(d.in)-d.pos)
	}
}

func (d *decoder) step(op byte) {
	switch op {
	case opFrame:
		d.openFrame(d.uint(8))
	case opMark:
		if len(d.marks) == MaxDepth {
			d.limit("open marks", MaxDepth)
			return
		}
		d.marks = append(d.marks, len(d.stack))
	case opMemoize:
		if len(d.memo) == d.opts.MaxItems {
			d.limit("memoized values", d.opts.MaxItems)
			return
		}
		d.memo = append(d.memo, d.top())
	case opBinGet:
		d.get(d.uint(1))
	case opLongBinGet:
		d.get(d.uint(4))

	case opNone:
		d.push(slot{value: nil})
	case opNewTrue:
		d.push(slot{value: true})
	case opNewFalse:
		d.push(slot{value: false})
	case opBinInt:
		d.push(slot{value: int64(int32(d.uint(4)))})
	case opBinInt1:
		d.push(slot{value: int64(d.uint(1))})
	case opBinInt2:
		d.push(slot{value: int64(d.uint(2))})
	case opLong1:
		d.long(d.uint(1))
	case opBinFloat:
		if b := d.take(8); b != nil {
			d.push(slot{value: math.Float64frombits(binary.BigEndian.Uint64(b))})
		}
	case opShortBinUnicode:
		d.text(d.uint(1))
	case opBinUnicode:
		d.text(d.uint(4))
	case opShortBinBytes:
		d.bytes(d.uint(1))
	case opBinBytes:
		d.bytes(d.uint(4))
	case opBinBytes8:
		d.bytes(d.uint(8))

	case opEmptyTuple:
		d.push(slot{value: Tuple{}})
	case opTuple1, opTuple2, opTuple3:
		d.tuple(d.pop(int(op-opTuple1) + 1))
	case opTuple:
		d.tuple(d.popMark())
	case opEmptyList:
		d.push(d.hold(new(List), nil))
	case opAppend:
		d.append(d.pop(1))
	case opAppends:
		d.append(d.popMark())
	case opEmptyDict:
		d.push(d.hold(new(Dict), nil))
	case opSetItem:
		d.set(d.pop(2))
	case opSetItems:
		d.set(d.popMark())

	case opStackGlobal:
		d.global(d.pop(2))
	case opNewObj:
		if class, args, held := d.apply(d.pop(2)); d.err == nil {
			d.push(d.hold(&Object{Class: class, Args: args}, held))
		}
	case opReduce:
		if f, args, held := d.apply(d.pop(2)); d.err == nil {
			d.push(d.hold(&Call{Func: f, Args: args}, held))
		}
	case opBuild:
		d.build(d.pop(1))
	default:
		d.fail("opcode %#x is not allowed", op)
	}
}

func (d *decoder) openFrame(n uint64) {
	switch {
	case d.err != nil:
	case d.op < d.frame:
		d.fail("frame inside a frame")
	case n > uint64(len(d.in)-d.pos):
		d.fail("frame of %d bytes, of which %d are there", n, len(d.in)-d.pos)
	default:
		d.frame = d.pos + int(n)
	}
}

func (d *decoder) get(i uint64) {
	if i >= uint64(len(d.memo)) {
		d.fail("no memoized value %d", i)
		return
	}
	d.push(d.memo[i])
}

// long reads a little-endian two's complement integer of n bytes.
func (d *decoder) long(n uint64) {
	if n > 8 {
		d.fail("LONG1 integer of %d bytes is over 64 bits", n)
		return
	}
	v := int64(d.uint(int(n)))
	if shift := 64 - 8*n; n > 0 {
		v = v << shift >> shift
	}
	d.push(slot{value: v})
}

func (d *decoder) text(n uint64) {
	b := d.take(n)
	if !utf8.Valid(b) {
		d.fail("string is not UTF-8")
		return
	}
	d.push(slot{value: string(b)})
}

func (d *decoder) bytes(n uint64) {
	b := d.take(n)
	d.push(slot{value: b[:len(b):len(b)]})
}

func (d *decoder) tuple(items []slot) {
	t := make(Tuple, len(items))
	for i, s := range items {
		t[i] = s.value
	}
	d.push(d.hold(t, items))
}

func (d *decoder) append(items []slot) {
	to := d.top()
	list, ok := to.value.(*List)
	if !ok {
		d.fail("append to a value that is no list")
		return
	}
	d.extend(to.node, items)
	for _, s := range items {
		list.Items = append(list.Items, s.value)
	}
}

func (d *decoder) set(items []slot) {
	to := d.top()
	dict, ok := to.value.(*Dict)
	if !ok {
		d.fail("set items of a value that is no dict")
		return
	}
	if len(items)%2 != 0 {
		d.fail("key without a value")
		return
	}
	d.extend(to.node, items)
	dict.Items = slices.Grow(dict.Items, len(items)/2)
	for i := 0; i < len(items); i += 2 {
		key, ok := items[i].value.(string)
		if !ok {
			d.fail("dict key is no string")
			return
		}
		dict.Items = append(dict.Items, Item{key, items[i+1].value})
	}
}

func (d *decoder) global(names []slot) {
	if d.err != nil {
		return
	}
	module, ok1 := names[0].value.(string)
	name, ok2 := names[1].value.(string)
	if !ok1 || !ok2 {
		d.fail("global's name is no string")
		return
	}
	if !d.opts.Allow(module, name) {
		d.err = &GlobalError{module, name}
		return
	}
	d.push(slot{value: Global{module, name}})
}

// apply reads what NEWOBJ and REDUCE find on the stack: a global and the tuple
// that it is applied to.
func (d *decoder) apply(s []slot) (Global, Tuple, []slot) {
	if d.err != nil {
		return Global{}, nil, nil
	}
	g, ok := s[0].value.(Global)
	if !ok {
		d.fail("call of a value that is no global")
		return Global{}, nil, nil
	}
	args, ok := s[1].value.(Tuple)
	if !ok {
		d.fail("arguments of %s are no tuple", g)
		return Global{}, nil, nil
	}
	return g, args, s[1:]
}

func (d *decoder) build(state []slot) {
	to := d.top()
	o, ok := to.value.(*Object)
	if !ok || o.State != nil {
		d.fail("state for a value that is no new object")
		return
	}
	if d.extend(to.node, state); d.err == nil {
		o.State = state[0].value
	}
}

// hold makes the slot of a new value that holds items.
func (d *decoder) hold(v any, items []slot) slot {
	d.nodes = append(d.nodes, node{depth: 1, size: 1})
	s := slot{v, len(d.nodes) - 1}
	d.extend(s.node, items)
	return s
}

// extend enters items into node i.
func (d *decoder) extend(i int, items []slot) {
	if d.err != nil {
		return
	}
	depth, size := 1, len(items)
	for _, s := range items {
		if s.node == 0 {
			continue
		}
		n := &d.nodes[s.node]
		n.inside = true
		depth = max(depth, n.depth+1)
		if size += n.size - 1; size > d.opts.MaxItems {
			break
		}
	}
	n := &d.nodes[i]
	n.depth = max(n.depth, depth)
	n.size += size
	switch {
	case n.inside:
		d.fail("value is changed after it became a part of another")
	case n.depth > MaxDepth:
		d.limit("levels of values", MaxDepth)
	case n.size > d.opts.MaxItems:
		d.limit("values", d.opts.MaxItems)
	}
}

func (d *decoder) push(s slot) {
	if d.items++; d.items > d.opts.MaxItems {
		d.limit("values", d.opts.MaxItems)
		return
	}
	d.stack = append(d.stack, s)
}

// floor is how far the stack may be emptied: to the last mark.
func (d *decoder) floor() int {
	if len(d.marks) == 0 {
		return 0
	}
	return d.marks[len(d.marks)-1]
}

func (d *decoder) top() slot {
	if len(d.stack) == d.floor() {
		d.fail("stack is empty")
		return slot{}
	}
	return d.stack[len(d.stack)-1]
}

// pop removes the last n values. They are valid until the next push; after an
// error there are none.
func (d *decoder) pop(n int) []slot {
	base := len(d.stack) - n
	if base < d.floor() {
		d.fail("stack is empty")
	}
	if d.err != nil {
		return nil
	}
	items := d.stack[base:]
	d.stack = d.stack[:base]
	return items
}

// popMark removes the values above the last mark, and the mark.
func (d *decoder) popMark() []slot {
	if len(d.marks) == 0 {
		d.fail("no mark is open")
		return nil
	}
	items := d.pop(len(d.stack) - d.floor())
	d.marks = d.marks[:len(d.marks)-1]
	return items
}

// take reads n bytes, nil after an error.
func (d *decoder) take(n uint64) []byte {
	if n > uint64(len(d.in)-d.pos) {
		d.fail("ends in the middle of an opcode")
	}
	if d.err != nil {
		return nil
	}
	b := d.in[d.pos : d.pos+int(n)]
	d.pos += int(n)
	return b
}

// uint reads a little-endian integer of n bytes.
func (d *decoder) uint(n int) uint64 {
	var v uint64
	for i, c := range d.take(uint64(n)) {
		v |= uint64(c) << (8 * i)
	}
	return v
}

func (d *decoder) fail(format string, args ...any) {
	if d.err == nil {
		d.err = &SyntaxError{d.op, fmt.Sprintf(format, args...)}
	}
}

func (d *decoder) limit(what string, n int) {
	if d.err == nil {
		d.err = &LimitError{what, n}
	}
}
