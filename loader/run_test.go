// SPDX-FileCopyrightText: The wcache authors
// SPDX-License-Identifier: MIT

package loader

import (
	"errors"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/wcache/wcache/internal/testmain"
)

// The parent reads the packets of a child that has already ended.
func TestRunReadsLate(t *testing.T) {
	job, _ := testJob(t, 500_000)
	r, err := Run(t.Context(), options("work"), job, func(p Progress) {
		if p.Done == p.Total {
			testmain.Eventually(t, "the end of the child", func() bool {
				return errors.Is(unix.Waitid(unix.P_ALL, 0, nil, unix.WEXITED|unix.WNOHANG|unix.WNOWAIT, nil), unix.ECHILD)
			})
		}
	})
	if err != nil {
		t.Fatal(err)
	}
	r.Close()
}
