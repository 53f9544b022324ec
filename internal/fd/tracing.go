// SPDX-FileCopyrightText: The wcache authors
// SPDX-License-Identifier: MIT

package fd

import (
	"os"
	"runtime/debug"
	"strings"
	"sync"
)

// tracing reports whether this is a test binary, as "go test" names them. The
// package testing would tell too, but would then be part of every binary.
func tracing() bool { return strings.HasSuffix(os.Args[0], ".test") }

// owned remembers the stack that made each FD, and only in test binaries: it is
// a debugging aid of the process, not state that a caller could depend on.
var owned struct {
	mu     sync.Mutex
	stacks map[int]string
	lost   []string
}

func remember(n int) {
	if !tracing() {
		return
	}
	stack := string(debug.Stack())
	owned.mu.Lock()
	defer owned.mu.Unlock()
	if owned.stacks == nil {
		owned.stacks = make(map[int]string)
	}
	owned.stacks[n] = stack
}

func forget(n int) {
	owned.mu.Lock()
	defer owned.mu.Unlock()
	delete(owned.stacks, n)
}

// lose is forget for an FD that the garbage collector had to close: the leak
// must show however the collector's timing is.
func lose(n int) {
	owned.mu.Lock()
	defer owned.mu.Unlock()
	if stack, ok := owned.stacks[n]; ok {
		owned.lost = append(owned.lost, stack)
		delete(owned.stacks, n)
	}
}

// Open lists the stacks that made the descriptors that are owned now, or that
// were lost before they were closed. It is empty outside of test binaries.
func Open() []string {
	owned.mu.Lock()
	defer owned.mu.Unlock()
	list := append([]string(nil), owned.lost...)
	for _, s := range owned.stacks {
		list = append(list, s)
	}
	return list
}
