// SPDX-FileCopyrightText: The wcache authors
// SPDX-License-Identifier: MIT

package native

import (
	"fmt"

	"github.com/wcache/wcache/layout"
)

// check reports why a plan can't be carried out in memory of the given bytes: an engine
// must never run on a byte that nobody wrote.
func check(plan *layout.Plan, memory int64) error {
	if err := plan.Check(); err != nil {
		return err
	}
	if n := plan.Table.Segment; n > memory {
		return fmt.Errorf("check plan: a segment of %d bytes for memory of %d", n, memory)
	}
	for i := range plan.Ropes {
		if n := plan.Ropes[i].RowBytes(); n > scratchBytes {
			return fmt.Errorf("check plan: rope %d: rows of %d bytes", i, n)
		}
	}
	return nil
}
