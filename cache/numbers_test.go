// SPDX-FileCopyrightText: The wcache authors
// SPDX-License-Identifier: MIT

package cache

import (
	"fmt"
	"testing"

	"golang.org/x/sys/unix"
)

// However few files may be open, a segment gets a number that comes again as late as
// can be.
func TestNumbers(t *testing.T) {
	var before unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &before); err != nil {
		t.Fatal(err)
	}
	for _, limit := range []int{256, 1024, 1025, 1500} {
		t.Run(fmt.Sprint(limit), func(t *testing.T) {
			if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: uint64(limit), Max: before.Max}); err != nil {
				t.Skipf("%v; lower limits are tried", err)
			}
			defer func() { _ = unix.Setrlimit(unix.RLIMIT_NOFILE, &before) }()
			const held = 10
			var n numbers
			var open []*Contents
			last := make(map[int]int) // by number, when it was given
			soonest := limit
			for i := range 2 * limit {
				c, err := contents("/m", 1)
				if err != nil {
					t.Fatal(err)
				}
				if open = append(open, c); len(open) > held {
					_ = open[0].Close()
					open = open[1:]
				}
				if err := n.raise(c); err != nil {
					t.Error(err)
					break
				}
				number := c.Segments[0].FD.Int()
				if at, again := last[number]; again {
					soonest = min(soonest, i-at)
				}
				last[number] = i
			}
			for _, c := range open {
				_ = c.Close()
			}
			if want := limit - firstBelow(limit) - held; soonest < want {
				t.Errorf("a number came again after %d others, want %d", soonest, want)
			}
		})
	}
}
