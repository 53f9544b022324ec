// SPDX-FileCopyrightText: The wcache authors
// SPDX-License-Identifier: MIT

// Package logqueue decouples a program from a log whose reader may be slow: a call that logs
// never waits, and the queue counts the records that it drops. [Handler] writes records in the
// form of the journal.
package logqueue

import (
	"fmt"
	"io"
	"sync"
	"time"
)

// maxWaiting is the most bytes, with overhead, that may wait for the log: some 5,000 records.
const maxWaiting = 1 << 20

// overhead is the memory of a record in addition to its text, in bytes.
const overhead = 64

// slow is how long the log may take for one record before Problem reports it.
const slow = time.Second

// Queue takes records and writes them to the log in order, each by one call of its Write. When
// 1 MiB of records wait, it drops new ones, and writes their number in their place. It is safe
// for concurrent use.
type Queue struct {
	out  io.Writer
	told func(dropped int) []byte
	done chan struct{} // closed when all has been written

	mu      sync.Mutex
	more    sync.Cond // signals a new record, or Close
	waiting []record
	bytes   int
	closed  bool
	writing time.Time // start of the Write that is under way; zero: none is
	dropped int       // dropped records that the log doesn't know of yet
	since   time.Time // when the first of these was dropped
	fault   error     // of the last Write
}

// record is a text, or the number of records that were dropped here.
type record struct {
	text    []byte
	dropped int
}

// New makes a queue for a log. One goroutine of the queue writes to out. Told makes the record
// about dropped records. The caller closes the queue.
func New(out io.Writer, told func(dropped int) []byte) *Queue {
	q := &Queue{out: out, told: told, done: make(chan struct{})}
	q.more.L = &q.mu
	go q.run()
	return q
}

// Write queues a record, or drops it, and returns at once. It never gives an error.
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

// drop counts a dropped record at the end of the queue. Precondition: mu is held.
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

// run writes records until the queue is closed.
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

// next writes the first record that waits. Precondition: mu is held; next releases it during
// the Write.
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
	q.fault = err // the record is lost; a broken log must not end the program
}

// Problem describes the current problem of the log, "" for none.
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

// Close ends the queue, and waits until all records are written, for limit at most. The error
// says that the log hangs; then the end of the program ends the Write.
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
