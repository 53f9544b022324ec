// SPDX-FileCopyrightText: The wcache authors
// SPDX-License-Identifier: MIT

package pickle

import "fmt"

// slot is a value on the stack or in the memo. Node is its index in decoder.nodes, 0 for a value
// that can't contain others.
type slot struct {
	value any
	node  int
}

// node has the depth and size of a value that contains others. A pickle could put a value into
// another and change it later, and so make a value that contains itself; Python's pickler does
// that only for such values. So the decoder treats a node inside another as final, and depth
// and size are exact.
type node struct {
	depth  int  // 1 if it contains no nodes
	size   int  // values in its tree, with itself
	inside bool // it is part of another node
}

// decoder is Python's pickle machine. Err is the first error; once it is set, the machine's
// results are not used.
type decoder struct {
	in    []byte
	pos   int
	op    int // offset of the current opcode
	frame int // end of the latest frame
	opts  Options
	stack []slot
	marks []int // lengths of the stack at the open marks
	memo  []slot
	nodes []node
	items int
	err   error
}

// hold makes the slot of a new value that holds items.
func (d *decoder) hold(v any, items []slot) slot {
	d.nodes = append(d.nodes, node{depth: 1, size: 1})
	s := slot{v, len(d.nodes) - 1}
	d.extend(s.node, items)
	return s
}

// extend adds items to node i.
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

// floor is the smallest length to which the stack may be popped: that at the last mark.
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

// pop removes the last n values. They are valid until the next push; after an error pop gives
// none.
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
