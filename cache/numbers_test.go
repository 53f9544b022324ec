// SPDX-FileCopyrightText: The wcache authors
// SPDX-License-Identifier: MIT

package cache

import (
	"fmt"
	"regexp"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// At any limit of open files, no segment gets a number that another had within fetchTime: if
// there is no other number, raise fails (case C6). After that time it gets the number.
func TestNumbers(t *testing.T) {
	var before unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &before); err != nil {
		t.Fatal(err)
	}
	refused := regexp.MustCompile(`^number descriptor: the \d+ numbers for segments are in use or were within the last 10m0s: raise LimitNOFILE= in a drop-in \(systemctl --user edit wcache@\.service\), or ulimit -n$`)
	for _, limit := range []int{64, 256, 1024, 1025, 1500} {
		t.Run(fmt.Sprint(limit), func(t *testing.T) {
			if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: uint64(limit), Max: before.Max}); err != nil {
				t.Skipf("%v; lower limits are tried", err)
			}
			defer func() { _ = unix.Setrlimit(unix.RLIMIT_NOFILE, &before) }()
			const held = 5
			now := time.Now()
			n := numbers{now: func() time.Time { return now }}
			var open []*Contents
			last := make(map[int]time.Time) // by number, when it was closed, zero while it is open
			shut := func(c *Contents) {
				last[c.Segment.Pieces[0].Int()] = now
				_ = c.Close()
			}
			defer func() {
				for _, c := range open {
					shut(c)
				}
			}()
			raise := func() error {
				c, err := contents("/m", 1)
				if err != nil {
					t.Fatal(err)
				}
				room := n.room()
				err = n.raise(c)
				if (room == nil) != (err == nil) {
					t.Fatalf("room for another: %v, and then: %v", room, err)
				}
				if err != nil {
					_ = c.Close()
					return err
				}
				number := c.Segment.Pieces[0].Int()
				if at, again := last[number]; again && (at.IsZero() || now.Sub(at) < fetchTime) {
					t.Fatalf("%d is given again %v after it was closed", number, now.Sub(at))
				}
				if number < firstBelow(limit) {
					t.Fatalf("%d is given, which is below %d", number, firstBelow(limit))
				}
				last[number] = time.Time{}
				open = append(open, c)
				return nil
			}
			for round := range 3 {
				given := 0
				for ; given < 2*limit; given++ {
					now = now.Add(time.Millisecond)
					if err := raise(); err != nil {
						if !refused.MatchString(err.Error()) {
							t.Fatal(err)
						}
						break
					}
					if len(open) > held {
						shut(open[0])
						open = open[1:]
					}
				}
				// Each number once, those that are held from the round before aside.
				if want := limit - firstBelow(limit); given > want || given < want-held-1 {
					t.Errorf("round %d: %d of %d numbers are given", round, given, want)
				}
				now = now.Add(fetchTime - time.Second)
				if err := raise(); err == nil {
					t.Fatal("a number is given that still rests")
				}
				now = now.Add(time.Second)
			}
		})
	}
}
