// SPDX-FileCopyrightText: The wcache authors
// SPDX-License-Identifier: MIT

package testmain

import (
	"bytes"
	"sync"
	"testing"
	"time"
)

// Eventually waits, for at most some 20 seconds, for what happens in another goroutine
// or process. What names it for people.
func Eventually(t testing.TB, what string, ok func() bool) {
	t.Helper()
	for range 4000 {
		if ok() {
			return
		}
		time.Sleep(5 * time.Millisecond)
	}
	t.Fatalf("waited in vain: %s", what)
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
