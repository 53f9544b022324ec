// SPDX-FileCopyrightText: The wcache authors
// SPDX-License-Identifier: MIT

package native

import (
	"fmt"
	"testing"

	"github.com/wcache/wcache/layout"
	"github.com/wcache/wcache/tensor"
)

// TestCheck: a plan that is right is refused where it can't be carried out here.
func TestCheck(t *testing.T) {
	of := func(frequencies int) *layout.Plan {
		r := layout.Rope{Rows: 1, InvFreq: make([]float32, frequencies), PositionScale: 1, Magnitude: 1, To: tensor.F32}
		return &layout.Plan{Table: tableOf([]int64{r.RowBytes()}), Ropes: []layout.Rope{r}}
	}
	longest := scratchBytes / 8
	for _, tt := range []struct {
		plan   *layout.Plan
		memory int64
		want   string
	}{
		{of(2), 16, "<nil>"},
		{of(longest), scratchBytes, "<nil>"},
		{nil, 4096, "check plan: no table"},
		{of(2), 15, "check plan: a segment of 16 bytes for memory of 15"},
		{of(longest + 1), 2 * scratchBytes, "check plan: rope 0: rows of 262152 bytes"},
	} {
		if got := fmt.Sprint(check(tt.plan, tt.memory)); got != tt.want {
			t.Errorf("got  %s\nwant %s", got, tt.want)
		}
	}
}
