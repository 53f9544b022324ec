// SPDX-FileCopyrightText: The wcache authors
// SPDX-License-Identifier: MIT

package testmain

import (
	"bytes"
	"sync"
	"testing"
	"time"
)

// Patience is how long a test waits for an event: it ends a hang, and is far longer than the
// slowest machine needs.
const Patience = time.Minute

// between is the pause between two checks of a condition.
const between = 5 * time.Millisecond

// Eventually waits, for [Patience] at most, for an event in another goroutine or process. What
// names the event.
func Eventually(t testing.TB, what string, ok func() bool) {
	t.Helper()
	if !Within(ok) {
		t.Fatalf("waited in vain: %s", what)
	}
}

// Within is Eventually for callers that report the failure themselves.
func Within(ok func() bool) bool {
	for range Patience / between { // counts checks and not time, since this process may not get the processor
		if ok() {
			return true
		}
		time.Sleep(between)
	}
	return false
}

// Log stores what other goroutines write, and can be read meanwhile. It is safe for concurrent
// use.
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
