// SPDX-FileCopyrightText: The wcache authors
// SPDX-License-Identifier: MIT

package logqueue

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/wcache/wcache/internal/testmain"
)

func TestMain(m *testing.M) { testmain.Run(m) }

// sink is a log that reads when it is let.
type sink struct {
	read chan error // what each write is to give
	got  []string
}

func (s *sink) Write(b []byte) (int, error) {
	s.got = append(s.got, string(b))
	return len(b), <-s.read
}

func told(n int) []byte { return fmt.Appendf(nil, "%d dropped", n) }

// write fails for a writer that keeps waiting, by the deadlock of the bubble.
func write(t *testing.T, q *Queue, text string) {
	t.Helper()
	if n, err := q.Write([]byte(text)); n != len(text) || err != nil {
		t.Errorf("got %d and %v", n, err)
	}
}

func wantProblem(t *testing.T, q *Queue, want string) {
	t.Helper()
	synctest.Wait()
	if got := q.Problem(); got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
}

// A log that isn't read costs records, and nobody's time; it says how many where they
// would have been.
func TestUnread(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		out := &sink{read: make(chan error)}
		q := New(out, told)
		large := strings.Repeat("x", maxWaiting/4-overhead)
		write(t, q, "first")
		wantProblem(t, q, "")
		time.Sleep(2 * slow)
		wantProblem(t, q, "log is not read since 2000-01-01T00:00:00Z: records wait")
		for range 5 { // of which three go beside the first
			write(t, q, large)
		}
		write(t, q, "small")
		wantProblem(t, q, "log is not read: records dropped since 2000-01-01T00:00:02Z: 2")
		out.read <- nil
		out.read <- nil
		synctest.Wait()
		write(t, q, large)
		write(t, q, large)
		for range 5 {
			out.read <- nil
		}
		wantProblem(t, q, "log is not read: records dropped since 2000-01-01T00:00:02Z: 1")
		out.read <- nil
		wantProblem(t, q, "")
		write(t, q, "last")
		go func() { out.read <- nil }()
		if err := q.Close(time.Second); err != nil {
			t.Error(err)
		}
		write(t, q, "after the end")
		want := []string{"first", large, large, large, "2 dropped", "small", large, "1 dropped", "last"}
		if diff := cmp.Diff(want, out.got); diff != "" {
			t.Errorf("-want +got:\n%s", diff)
		}
	})
}

// A log that can't be written is a problem until it can be again.
func TestBroken(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		out := &sink{read: make(chan error, 1)}
		q := New(out, told)
		out.read <- errors.New("broken pipe")
		write(t, q, "a")
		wantProblem(t, q, "log is not written: broken pipe")
		out.read <- nil
		write(t, q, "b")
		wantProblem(t, q, "")
		if err := q.Close(time.Second); err != nil {
			t.Error(err)
		}
	})
}

// The end of the program waits for a log that hangs, and not for ever.
func TestCloseOfOneThatHangs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		out := &sink{read: make(chan error)}
		q := New(out, told)
		write(t, q, "a")
		write(t, q, "b")
		if err := q.Close(2 * time.Second); err == nil || err.Error() != "close log: it has not been read within 2s" {
			t.Errorf("got %v", err)
		}
		out.read <- nil
		out.read <- nil
	})
}

// Many writers and a real pipe: each keeps its order, and nothing is lost.
func TestOrder(t *testing.T) {
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	q := New(w, told)
	const writers, each = 4, 500
	var group sync.WaitGroup
	for i := range writers {
		group.Go(func() {
			for n := range each {
				fmt.Fprintf(q, "%d %d\n", i, n)
			}
		})
	}
	next := make([]int, writers)
	done := make(chan error)
	go func() {
		for range writers * each {
			var i, n int
			if _, err := fmt.Fscanf(r, "%d %d\n", &i, &n); err != nil || n != next[i] {
				done <- fmt.Errorf("writer %d: got %d, want %d, %w", i, n, next[i], err)
				return
			}
			next[i]++
		}
		done <- nil
	}()
	group.Wait()
	if err := errors.Join(<-done, q.Close(time.Minute), w.Close(), r.Close()); err != nil {
		t.Error(err)
	}
}
