// SPDX-FileCopyrightText: The wcache authors
// SPDX-License-Identifier: MIT

// Package logqueue stands between a program and a log that may not be read: who logs
// is never kept waiting, and what could not be kept is counted. [Handler] is how a record
// is written to such a log.
package logqueue

import (
	"fmt"
	"io"
	"sync"
	"time"
)

// maxWaiting is how much may wait for the log at once, in bytes with overhead: some
// 5,000 records.
const maxWaiting = 1 << 20

// overhead is what a record takes beside its text, in bytes.
const overhead = 64

// slow is how long the log may take for one record before that is a problem.
const slow = time.Second

// Queue is what records are written to. They reach the log in their order, each by one
// call of its Write. Beyond 1 MiB of them the newest are dropped, and their number is
// told in their place. It is safe for concurrent use.
type Queue struct {
	out  io.Writer
	told func(dropped int) []byte
	done chan struct{} // closed when all has been written

	mu      sync.Mutex
	more    sync.Cond // there is something to do
	waiting []record
	bytes   int
	closed  bool
	writing time.Time // since when the log has had the record that is being written; zero: none is
	dropped int       // of which the log has not been told
	since   time.Time // when the first of them was
	fault   error     // of the last record
}

// record is a text, or that so many were dropped here.
type record struct {
	text    []byte
	dropped int
}

// New makes a queue for a log, which is written to by one goroutine of the queue's.
// Told gives the record that tells the log how many were dropped. Close it.
func New(out io.Writer, told func(dropped int) []byte) *Queue {
	q := &Queue{out: out, told: told, done: make(chan struct{})}
	q.more.L = &q.mu
	go q.run()
	return q
}

// Write takes a record, or drops it, and returns at once. It gives no error.
func (q *Queue) Write(p []byte) (int, error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.closed || q.bytes+len(p)+overhead > maxWaiting {
		q.drop()
		return len(p), nil
	}
	q.waiting = append(q.waiting, record{text: append([]byte(nil), p...)})
	q.bytes += len(p) + overhead
	q.more.Signal()
	return len(p), nil
}

// drop counts a record that is dropped behind what waits. Precondition: mu is held.
func (q *Queue) drop() {
	if q.dropped == 0 {
		q.since = time.Now()
	}
	q.dropped++
	if last := len(q.waiting) - 1; last >= 0 && q.waiting[last].dropped > 0 {
		q.waiting[last].dropped++
		return
	}
	q.waiting = append(q.waiting, record{dropped: 1})
	q.more.Signal()
}

// run writes what comes until the queue is closed.
func (q *Queue) run() {
	defer close(q.done)
	q.mu.Lock()
	defer q.mu.Unlock()
	for {
		for len(q.waiting) == 0 && !q.closed {
			q.more.Wait()
		}
		if len(q.waiting) == 0 {
			return
		}
		q.next()
	}
}

// next writes the first record that waits. Precondition: mu is held; it is not while
// the log writes.
func (q *Queue) next() {
	r := q.waiting[0]
	q.waiting = q.waiting[1:]
	q.writing = time.Now()
	q.mu.Unlock()
	text := r.text
	if r.dropped > 0 {
		text = q.told(r.dropped)
	}
	_, err := q.out.Write(text)
	q.mu.Lock()
	q.writing = time.Time{}
	if r.text != nil {
		q.bytes -= len(r.text) + overhead
	}
	q.dropped -= r.dropped
	q.fault = err // the record is lost; the log's end must not be the program's
}

// Problem says what is wrong with the log at present, "" for nothing.
func (q *Queue) Problem() string {
	q.mu.Lock()
	defer q.mu.Unlock()
	stuck := !q.writing.IsZero() && time.Since(q.writing) > slow
	switch {
	case q.dropped > 0:
		return fmt.Sprintf("log is not read: records dropped since %s: %d", q.since.UTC().Format(time.RFC3339), q.dropped)
	case stuck:
		return fmt.Sprintf("log is not read since %s: records wait", q.writing.UTC().Format(time.RFC3339))
	case q.fault != nil:
		return fmt.Sprintf("log is not written: %v", q.fault)
	}
	return ""
}

// Close takes no more records, and waits until all that it has are written, for as
// long as limit at most: a log that hangs is left to the program's end. The error says
// that it hangs.
func (q *Queue) Close(limit time.Duration) error {
	q.mu.Lock()
	q.closed = true
	q.more.Signal()
	q.mu.Unlock()
	end := time.NewTimer(limit)
	defer end.Stop()
	select {
	case <-q.done:
		return nil
	case <-end.C:
		return fmt.Errorf("close log: it has not been read within %v", limit)
	}
}
