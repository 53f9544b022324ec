// SPDX-FileCopyrightText: The wcache authors
// SPDX-License-Identifier: MIT

package loader

import (
	"sync"
	"testing"
	"time"
)

// What a child has said counts, also if it has long ended when somebody reads it.
func TestRunReadsLate(t *testing.T) {
	t.Parallel()
	job, _ := testJob(t, 500_000)
	late := sync.OnceFunc(func() { time.Sleep(1200 * time.Millisecond) })
	r, err := Run(t.Context(), options("work"), job, func(p Progress) {
		if p.Done == p.Total {
			late()
		}
	})
	if err != nil {
		t.Fatal(err)
	}
	r.Close()
}
