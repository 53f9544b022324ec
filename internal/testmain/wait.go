// SPDX-FileCopyrightText: The wcache authors
// SPDX-License-Identifier: MIT

package testmain

import (
	"bytes"
	"sync"
	"testing"
	"time"
)

// Patience is how long what has to happen may take: it ends a hang, and is far longer
// than the slowest machine needs.
const Patience = time.Minute

// between is from one look at a condition to the next.
const between = 5 * time.Millisecond

// Eventually waits, for as long as [Patience] allows, for what happens in another
// goroutine or process. What names it for people.
func Eventually(t testing.TB, what string, ok func() bool) {
	t.Helper()
	if !Within(ok) {
		t.Fatalf("waited in vain: %s", what)
	}
}

// Within is Eventually for those who say by themselves that it was in vain.
func Within(ok func() bool) bool {
	for range Patience / between { // looks, and no time: this process may not run at all
		if ok() {
			return true
		}
		time.Sleep(between)
	}
	return false
}

// Log is what others write, to be read meanwhile. It is safe for concurrent use.
type Log struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (l *Log) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.buf.Write(p)
}

func (l *Log) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.buf.String()
}
