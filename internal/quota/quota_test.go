// SPDX-FileCopyrightText: The wcache authors
// SPDX-License-Identifier: MIT

package quota

import (
	"context"
	"errors"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
)

// take takes n in a goroutine of its own.
func take(t *testing.T, q *Quota, ctx context.Context, n int64) <-chan *Share {
	t.Helper()
	got := make(chan *Share, 1)
	go func() {
		s, err := q.Take(ctx, n)
		if (s == nil) != (err != nil) {
			t.Errorf("got %v", err)
		}
		got <- s
	}()
	synctest.Wait()
	return got
}

// One who needs much is not passed by those who need little, and one who leaves lets
// them pass.
func TestOrder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := New(10)
		ctx, leave := context.WithCancelCause(t.Context())
		six := <-take(t, q, t.Context(), 6)
		much := take(t, q, ctx, 8)
		little := take(t, q, t.Context(), 1)
		if len(much)+len(little) != 0 {
			t.Fatal("somebody was served out of turn")
		}
		why := errors.New("enough")
		leave(why)
		if s := <-much; s != nil {
			t.Error("it got what is not there")
		}
		one := <-little
		if _, err := q.Take(ctx, 9); !errors.Is(err, why) {
			t.Errorf("got %v, want the cause", err)
		}
		six.Keep(7) // which is more than it has
		six.Keep(2)
		seven := take(t, q, t.Context(), 7)
		(<-seven).Give()
		six.Give()
		six.Give() // which gives nothing more
		all := take(t, q, t.Context(), 1<<40)
		if synctest.Wait(); len(all) != 0 {
			t.Fatal("all was given while one was out")
		}
		one.Give()
		(<-all).Give()
		(*Share)(nil).Give()
		if q.free != q.Total() {
			t.Errorf("%d are free in the end", q.free)
		}
	})
}

// However many come and leave, never more than all is out, and all comes back.
func TestMany(t *testing.T) {
	q := New(100)
	var out atomic.Int64
	var group sync.WaitGroup
	for range 8 {
		group.Go(func() {
			for i := range 2000 {
				ctx, cancel := context.WithCancel(t.Context())
				if i%3 == 0 {
					go cancel()
				}
				n := 1 + rand.Int64N(100)
				if s, err := q.Take(ctx, n); err == nil {
					if now := out.Add(n); now > 100 {
						t.Errorf("%d are out", now)
					}
					out.Add(-n)
					s.Keep(n / 2)
					s.Give()
				}
				cancel()
			}
		})
	}
	group.Wait()
	if q.free != 100 || len(q.queue) != 0 {
		t.Errorf("%d are free and %d wait in the end", q.free, len(q.queue))
	}
}
