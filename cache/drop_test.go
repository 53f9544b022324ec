// SPDX-FileCopyrightText: The wcache authors
// SPDX-License-Identifier: MIT

package cache

import (
	"context"
	"testing"

	"github.com/wcache/wcache/internal/fd"
)

// What was being loaded when the device lost all that it held is not served either,
// unless its load has begun anew since.
func TestDropLoading(t *testing.T) {
	for _, again := range []bool{false, true} {
		var c *Cache
		kept := &shelf{has: make(map[string]*fd.FD)}
		c = New(Options{Store: kept, Load: func(_ context.Context, _ Want, ticket *Ticket) (*Contents, error) {
			if err := ticket.Reserve(segment); err != nil {
				return nil, err
			}
			c.Drop("the GPU is lost")
			if again {
				if err := ticket.Reserve(segment); err != nil {
					return nil, err
				}
			}
			return contents("/m", segment)
		}})
		h, _, err := c.Get(t.Context(), want(key(t, "a")))
		switch {
		case again && err != nil:
			t.Error(err)
		case again:
			h.Release()
		case err == nil || err.Error() != "load model: the GPU is lost":
			t.Errorf("got %v, %v", h, err)
		case !c.Empty():
			t.Errorf("left are %v", c.status())
		}
		c.Close()
		if !again && len(kept.has) != 0 {
			t.Errorf("in the store are left %v", kept.has)
		}
		for _, f := range kept.has {
			_ = f.Close()
		}
	}
}
