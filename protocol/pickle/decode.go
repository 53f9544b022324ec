// SPDX-FileCopyrightText: The wcache authors
// SPDX-License-Identifier: MIT

package pickle

import (
	"encoding/binary"
	"math"
	"slices"
	"unicode/utf8"
)

// Options say what a pickle may contain.
type Options struct {
	// Allow reports whether a pickle may name this attribute of this module. Nil: a pickle
	// may name none.
	Allow func(module, name string) bool
	// MaxItems limits the number of values; a shared value counts at each reference. Zero:
	// DefaultItems.
	MaxItems int
}

// Decode reads one pickle that fills b. Each []byte in the result is a part of b, not a copy.
// Errors are a *[SyntaxError], a *[GlobalError] or a *[LimitError].
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
		d.fail("set items of a value that is not a dict")
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

// apply pops the operands of NEWOBJ and REDUCE from the stack: a global and a tuple of
// arguments.
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
